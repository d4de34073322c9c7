#include "comm/registered/foreign.h"

#include <fmt/core.h>
#include <link.h>
#include <pthread.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <string_view>

#include "base/text.h"
#include "comm/registered/mapping.h"
#include "segfuse/error.h"

namespace segfuse::comm {
namespace {

std::uintptr_t hexadecimal(std::string_view text) {
  std::uintptr_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

MapLine parse(std::string_view line) {
  // begin-end rwxp offset device inode name
  MapLine out;
  const std::size_t dash = line.find('-');
  const std::size_t blank = line.find(' ');
  out.begin = hexadecimal(line.substr(0, dash));
  out.end = hexadecimal(line.substr(dash + 1, blank - dash - 1));
  out.readable = line.substr(blank + 1).starts_with("r");
  out.writable = line.substr(blank + 2).starts_with("w");
  std::size_t at = blank;
  for (int field = 0; field < 4 && at != std::string_view::npos; ++field)
    at = line.find(' ', at + 1);
  if (at == std::string_view::npos) return out;
  at = line.find_first_not_of(' ', at);
  if (at != std::string_view::npos) out.name = line.substr(at);
  return out;
}

bool on_own_stack(std::uintptr_t address) {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return false;
  void* begin = nullptr;
  std::size_t bytes = 0;
  const bool known = pthread_attr_getstack(&attributes, &begin, &bytes) == 0;
  pthread_attr_destroy(&attributes);
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  return known && address >= first && address - first < bytes;
}

/// Anonymous memory that a 64 MiB boundary begins and that unused addresses end.
bool looks_like_arena(const std::vector<MapLine>& maps, std::size_t index, std::uintptr_t address) {
  return maps[index].begin == address / kArena * kArena && index + 1 < maps.size() &&
         maps[index + 1].begin == maps[index].end && !maps[index + 1].readable;
}

/// The file whose variables these are, as its headers say; "" without one. What the kernel puts
/// right behind them looks like a part of them in its list of mappings.
std::string file_of_variables(const std::vector<MapLine>& maps, std::uintptr_t address) {
  struct Search {
    std::uintptr_t address;
    std::uintptr_t begin = 0;
  } search{address};
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* data) {
        auto& found = *static_cast<Search*>(data);
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const ElfW(Phdr)& part = object->dlpi_phdr[i];
          const std::uintptr_t begin = object->dlpi_addr + part.p_vaddr;
          const std::uintptr_t end = begin + part.p_memsz;
          if (part.p_type != PT_LOAD || (part.p_flags & PF_W) == 0 ||
              found.address < begin / page_bytes() * page_bytes() ||
              found.address >= (end + page_bytes() - 1) / page_bytes() * page_bytes())
            continue;
          found.begin = begin;
          return 1;
        }
        return 0;
      },
      &search);
  if (search.begin == 0) return "";
  // The path as the kernel has it: that of the program itself is empty in the loader's list.
  for (std::size_t i = std::min(find_mapping(maps, search.begin) + 1, maps.size()); i-- > 0;)
    if (maps[i].name.starts_with('/')) return maps[i].name;
  return "a program or library";
}

}  // namespace

std::vector<MapLine> read_maps() {
  std::ifstream file("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<MapLine> out;
  for (const std::string_view line : split_lines(text))
    if (!line.empty()) out.push_back(parse(line));
  return out;
}

std::size_t find_mapping(const std::vector<MapLine>& maps, std::uintptr_t address) {
  const auto found =
      std::upper_bound(maps.begin(), maps.end(), address,
                       [](std::uintptr_t at, const MapLine& m) { return at < m.end; });
  if (found == maps.end() || address < found->begin) return maps.size();
  return static_cast<std::size_t>(found - maps.begin());
}

std::string owner_of(const std::vector<MapLine>& maps, std::size_t index, std::uintptr_t address) {
  const MapLine& mapping = maps[index];
  if (on_own_stack(address)) return "the stack of this thread";
  if (mapping.name == "[heap]") return "the malloc heap";
  if (mapping.name.starts_with("[stack")) return "the stack of the main thread";
  if (mapping.name.starts_with('[')) return "the mapping " + mapping.name;
  if (mapping.name.starts_with("/memfd:")) return "the memory file " + mapping.name.substr(7);
  if (const std::string file = file_of_variables(maps, address); !file.empty())
    return "static data of " + file;
  if (mapping.name.starts_with('/')) return "the file " + mapping.name;
  if (looks_like_arena(maps, index, address)) return "a malloc arena";
  return fmt::format("an anonymous mapping of {} bytes", mapping.end - mapping.begin);
}

void check_usable(const void* address, std::size_t bytes, bool read, bool write) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  if (address == nullptr) throw UsageError("registered memory: the address is null");
  if (bytes == 0)
    throw UsageError(fmt::format("registered memory: 0 bytes at {}; expected at least 1", address));
  if (bytes > UINTPTR_MAX - begin)
    throw UsageError(fmt::format("registered memory: {} bytes at {} go beyond the last address",
                                 bytes, address));
  const std::vector<MapLine> maps = read_maps();
  for (std::uintptr_t at = begin; at < begin + bytes;) {
    const std::size_t index = find_mapping(maps, at);
    if (index == maps.size())
      throw UsageError(fmt::format("registered memory: {} bytes at {}: nothing is mapped at {:#x}",
                                   bytes, address, at));
    if ((read && !maps[index].readable) || (write && !maps[index].writable))
      throw UsageError(fmt::format(
          "registered memory: {} bytes at {}: {:#x} to {:#x} may not be {}", bytes, address,
          maps[index].begin, maps[index].end, read && !maps[index].readable ? "read" : "written"));
    at = maps[index].end;
  }
}

void refuse_foreign(const void* address, std::size_t bytes) {
  check_usable(address, bytes, false, false);
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t page = begin / page_bytes() * page_bytes();
  const std::uintptr_t last = (begin + bytes - 1) / page_bytes() * page_bytes() + page_bytes();
  const std::vector<MapLine> maps = read_maps();
  const std::size_t index = find_mapping(maps, begin);
  const std::string owner =
      index < maps.size() ? owner_of(maps, index, begin) : "memory that is no longer mapped";
  const std::size_t others = last - page - bytes;
  throw UsageError(fmt::format(
      "registered memory: {} bytes at {} belong to {}; {}; take memory from Registry::make_slab, "
      "or "
      "let Registry::bounce copy it",
      bytes, address, owner,
      others > 0
          ? fmt::format("registering them would take the {} other bytes of their pages ({:#x} "
                        "to {:#x}) from every forked child",
                        others, page, last)
          : "segfuse can keep only slabs from forked children"));
}

}  // namespace segfuse::comm
