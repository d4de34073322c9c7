#pragma once
// Text of printed kernels, compiled by the host's compiler into this process.

#include <string>

namespace segfuse::testing {

/// `text` includes printed_language.h. The handle of the library, which stays open; throws with the
/// compiler's words.
void* compile_printed(const std::string& text, const std::string& optimisation);

}  // namespace segfuse::testing
