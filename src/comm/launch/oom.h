#pragma once
// How often the kernel has killed a process of this one's group for want of memory.

#include <cstdint>
#include <filesystem>
#include <optional>

namespace segfuse::comm::launch {

/// Nothing where the system does not say. `root` holds proc/ and sys/.
std::optional<std::int64_t> oom_kills(const std::filesystem::path& root = "/");

}  // namespace segfuse::comm::launch
