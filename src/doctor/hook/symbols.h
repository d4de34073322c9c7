#pragma once
// Functions of loaded libraries, found without asking dlsym: the hook stands in its place.

#include <cstddef>

namespace segfuse::hook {

/// The address of `name` in a loaded library whose file name begins with one of `files`; of several
/// versions the one that a program without versions gets. Null where there is none.
void* find_symbol(const char* name, const char* const* files, std::size_t count) noexcept;

}  // namespace segfuse::hook
