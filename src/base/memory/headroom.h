#pragma once
// How much memory is left, as the system's files say.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace segfuse {

/// A file of the system, such as one of /proc; nothing if it cannot be read.
[[nodiscard]] std::optional<std::string> read_system_file(const std::string& path);

inline constexpr std::uint64_t kUnlimited = std::uint64_t{1} << 62;
/// The number that is all of such a file; "max" is kUnlimited.
std::optional<std::uint64_t> number_in_file(const std::string& path);

/// The value of "Key:  123 kB" in bytes, of "Key: 123" as it is; nothing without that key.
std::optional<std::uint64_t> status_value(std::string_view text, std::string_view key);

struct Headroom {
  std::uint64_t bytes = 0;  ///< that can still be used, what is given back under pressure included
  std::string of;           ///< the cgroup, or "the machine"
};
/// Of the tightest memory cgroup (version 1 or 2) around a process, or of the machine.
/// `root` is where the system's files stand ("" but in tests).
std::optional<Headroom> memory_headroom(const std::string& cgroup_text, const std::string& root);
/// Of this process, its limit of address space (ulimit -v) included.
std::optional<Headroom> memory_headroom();

}  // namespace segfuse
