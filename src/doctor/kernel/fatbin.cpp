#include "doctor/kernel/fatbin.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/os/shared_library.h"
#include "doctor/elf.h"
#include "segfuse/error.h"

namespace segfuse::doctor {

namespace {

constexpr std::uint64_t kMagic = 0xba55ed50;
constexpr std::size_t kHeader = 16;
/// Of the header of a part, up to the size of its text before it was packed.
constexpr std::size_t kPartHeader = 64;
constexpr std::uint64_t kText = 1;
constexpr std::uint64_t kCode = 2;
// Flags of a part.
constexpr std::uint64_t kLz4 = 0x2000;
constexpr std::uint64_t kZstd = 0x8000;
/// More than any part has: a size that is larger is not believed.
constexpr std::uint64_t kMaxUnpacked = std::uint64_t{1} << 30;

/// Empty if it does not fit, or `why` says that it cannot be done here.
std::string unpack_zstd(std::string_view packed, std::size_t size, std::string& why) {
  static const auto& library =
      *new SharedLibrary(SharedLibrary::open_first({"libzstd.so.1", "libzstd.so"}));
  if (!library) {
    why = "it is packed by zstd, and libzstd.so.1 cannot be opened";
    return "";
  }
  std::size_t (*decompress)(void*, std::size_t, const void*, std::size_t) = nullptr;
  library.load("ZSTD_decompress", decompress);
  std::string text(size, '\0');
  return decompress(text.data(), size, packed.data(), packed.size()) == size ? text : "";
}

struct Part {
  std::uint64_t kind = 0;
  std::uint64_t flags = 0;
  std::uint64_t packed = 0;    ///< bytes; 0: as many as there are
  std::uint64_t unpacked = 0;  ///< bytes
  std::string_view bytes;
};

void add_part(Fatbin& fatbin, const Part& part, const std::string& file) {
  if (part.kind != kText && part.kind != kCode) return;
  std::string content(part.bytes);
  if ((part.flags & (kLz4 | kZstd)) != 0) {
    std::string why = "it does not unpack";
    const std::string_view packed =
        part.bytes.substr(0, part.packed > 0 ? part.packed : part.bytes.size());
    if (part.unpacked > kMaxUnpacked) {
      content.clear();
    } else {
      content = (part.flags & kLz4) != 0 ? unpack_lz4(packed, part.unpacked)
                                         : unpack_zstd(packed, part.unpacked, why);
    }
    if (content.empty()) {
      fatbin.notes.push_back(fmt::format("A part of {} is left out: {}.", file, why));
      return;
    }
  }
  if (part.kind == kText) content.resize(std::min(content.find('\0'), content.size()));
  (part.kind == kCode ? fatbin.cubins : fatbin.texts).push_back(std::move(content));
}

}  // namespace

bool is_fatbin(std::string_view bytes) {
  return bytes.size() >= kHeader && little_endian(bytes, 0, 4) == kMagic;
}

std::string unpack_lz4(std::string_view packed, std::size_t size) {
  std::string text;
  text.reserve(size);
  std::size_t at = 0;
  const auto length = [&](std::size_t nibble) {
    std::size_t total = nibble;
    if (nibble == 15)
      for (std::size_t more = 255; more == 255 && at < packed.size();)
        total += more = static_cast<unsigned char>(packed[at++]);
    return total;
  };
  while (at < packed.size()) {
    const auto token = static_cast<unsigned char>(packed[at++]);
    const std::size_t literals = length(token >> 4);
    if (literals > packed.size() - at || literals > size - text.size()) return "";
    text += packed.substr(at, literals);
    at += literals;
    if (at >= packed.size()) break;  // the last sequence is literals only
    const std::size_t back = little_endian(packed, at, 2);
    at += 2;
    const std::size_t copied = length(token & 15) + 4;
    if (back == 0 || back > text.size() || copied > size - text.size()) return "";
    for (std::size_t i = 0; i < copied; ++i) text += text[text.size() - back];
  }
  return text.size() == size ? text : "";
}

Fatbin read_fatbin(std::string_view bytes, const std::string& file) {
  Fatbin fatbin;
  const auto refuse = [&](std::size_t at) {
    throw DataError(fmt::format("{}: the fat binary at byte {} does not fit its file", file, at));
  };
  for (std::size_t at = 0; at + kHeader <= bytes.size();) {
    // Those of several object files stand at multiples of 8.
    if (little_endian(bytes, at, 4) != kMagic) {
      at += 8;
      continue;
    }
    const std::uint64_t header = little_endian(bytes, at + 6, 2);
    const std::uint64_t size = little_endian(bytes, at + 8, 8);
    if (header < kHeader || header > bytes.size() - at || size > bytes.size() - at - header)
      refuse(at);
    std::string_view rest = bytes.substr(at + header, size);
    at += (header + size + 7) / 8 * 8;
    while (rest.size() >= kPartHeader) {
      const std::uint64_t part_header = little_endian(rest, 4, 4);
      const std::uint64_t part_size = little_endian(rest, 8, 8);
      if (part_header < kPartHeader || part_header > rest.size() ||
          part_size > rest.size() - part_header)
        refuse(static_cast<std::size_t>(rest.data() - bytes.data()));
      add_part(fatbin,
               {.kind = little_endian(rest, 0, 2),
                .flags = little_endian(rest, 40, 8),
                .packed = little_endian(rest, 16, 4),
                .unpacked = little_endian(rest, 56, 8),
                .bytes = rest.substr(part_header, part_size)},
               file);
      rest.remove_prefix(part_header + part_size);
    }
  }
  return fatbin;
}

Fatbin read_embedded(std::string_view bytes, const std::string& file) {
  Fatbin all;
  for (const ElfSection& section : parse_elf(bytes, file).sections) {
    if (section.name != ".nv_fatbin" && section.name != "__nv_relfatbin") continue;
    Fatbin one = read_fatbin(section.bytes, file);
    std::ranges::move(one.cubins, std::back_inserter(all.cubins));
    std::ranges::move(one.texts, std::back_inserter(all.texts));
    std::ranges::move(one.notes, std::back_inserter(all.notes));
  }
  return all;
}

}  // namespace segfuse::doctor
