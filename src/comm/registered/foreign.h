#pragma once
// Memory that is not ours: whose it is, and whether it can be copied.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace segfuse::comm {

/// A line of /proc/self/maps.
struct MapLine {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool readable = false;
  bool writable = false;
  std::string name;  ///< of a file, "[heap]", "[stack]"; empty: anonymous
};

/// All mappings of this process, by address. Empty when /proc cannot be read.
std::vector<MapLine> read_maps();
/// The index of the mapping with this address; the number of mappings when there is none.
std::size_t find_mapping(const std::vector<MapLine>& maps, std::uintptr_t address);

/// Whose memory this is, in words: "the malloc heap", "a malloc arena", "the stack
/// of this thread", "static data of /usr/bin/x", "the file x", "an anonymous mapping of 8192
/// bytes".
std::string owner_of(const std::vector<MapLine>& maps, std::size_t index, std::uintptr_t address);

/// UsageError when the range is empty, wraps, is not mapped, or may not be read or written.
void check_usable(const void* address, std::size_t bytes, bool read, bool write);
/// Throws the UsageError that says why memory which is not ours cannot be registered.
[[noreturn]] void refuse_foreign(const void* address, std::size_t bytes);

}  // namespace segfuse::comm
