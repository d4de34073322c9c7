#include "doctor/elf.h"

#include <fmt/core.h>

#include "segfuse/error.h"

namespace segfuse::doctor {

namespace {

constexpr std::size_t kHeader = 64;
constexpr std::size_t kSectionEntry = 64;
constexpr std::size_t kSymbolEntry = 24;
constexpr std::uint32_t kSymbols = 2;
constexpr std::uint32_t kNoBits = 8;
constexpr std::uint32_t kLoadersSymbols = 11;
// Types of a symbol.
constexpr std::uint64_t kObject = 1;
constexpr std::uint64_t kFunction = 2;

std::string_view text_at(std::string_view table, std::uint64_t offset) {
  if (offset >= table.size()) return {};
  const std::string_view rest = table.substr(offset);
  return rest.substr(0, rest.find('\0'));
}

std::string_view part(std::string_view bytes, std::uint64_t offset, std::uint64_t size,
                      const std::string& file, const char* what) {
  if (offset > bytes.size() || size > bytes.size() - offset)
    throw DataError(fmt::format("{}: {} goes from byte {} over {} bytes, but the file has {}", file,
                                what, offset, size, bytes.size()));
  return bytes.substr(offset, size);
}

/// `stripped`: the loader's table, of which only variables are taken.
void read_symbols(Elf& elf, std::string_view table, std::string_view names, bool stripped) {
  for (std::size_t at = 0; at + kSymbolEntry <= table.size(); at += kSymbolEntry) {
    const std::string_view name = text_at(names, little_endian(table, at, 4));
    const bool defined = little_endian(table, at + 6, 2) != 0;
    const std::uint64_t type = little_endian(table, at + 4, 1) & 15;
    const std::uint64_t size = little_endian(table, at + 16, 8);
    if (defined && type == kObject)
      elf.objects.push_back({name, little_endian(table, at + 8, 8), size});
    if (stripped) continue;
    elf.symbols.push_back(name);
    if (defined && type == kFunction) elf.functions.push_back({name, size});
  }
}

}  // namespace

std::uint64_t little_endian(std::string_view bytes, std::size_t offset, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count && offset + i < bytes.size(); ++i)
    value |= std::uint64_t{static_cast<unsigned char>(bytes[offset + i])} << (8 * i);
  return value;
}

const ElfSection* Elf::find(std::string_view name) const {
  for (const ElfSection& section : sections)
    if (section.name == name) return &section;
  return nullptr;
}

Elf parse_elf(std::string_view bytes, const std::string& file) {
  if (bytes.size() < kHeader || bytes.substr(0, 6) != std::string_view("\x7f"
                                                                       "ELF\x02\x01",
                                                                       6))
    throw DataError(
        fmt::format("{}: expected a 64-bit little-endian ELF file, found something else", file));
  Elf elf;
  elf.abi_version = static_cast<std::uint8_t>(bytes[8]);
  elf.machine = static_cast<std::uint16_t>(little_endian(bytes, 18, 2));
  elf.flags = static_cast<std::uint32_t>(little_endian(bytes, 48, 4));
  const std::uint64_t table_offset = little_endian(bytes, 40, 8);
  const std::uint64_t entry = little_endian(bytes, 58, 2);
  const std::uint64_t count = little_endian(bytes, 60, 2);
  const std::uint64_t names_index = little_endian(bytes, 62, 2);
  if (count > 0 && entry != kSectionEntry)
    throw DataError(fmt::format("{}: its section headers have {} bytes, expected {}", file, entry,
                                kSectionEntry));
  const std::string_view table =
      part(bytes, table_offset, count * kSectionEntry, file, "the table of sections");
  std::vector<std::uint64_t> names;
  std::vector<std::uint64_t> links;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string_view head = table.substr(i * kSectionEntry, kSectionEntry);
    ElfSection section;
    names.push_back(little_endian(head, 0, 4));
    links.push_back(little_endian(head, 40, 4));
    section.type = static_cast<std::uint32_t>(little_endian(head, 4, 4));
    section.flags = little_endian(head, 8, 8);
    section.size = little_endian(head, 32, 8);
    section.info = static_cast<std::uint32_t>(little_endian(head, 44, 4));
    if (section.type != kNoBits && section.type != 0)
      section.bytes = part(bytes, little_endian(head, 24, 8), section.size, file, "a section");
    elf.sections.push_back(section);
  }
  if (names_index < count)
    for (std::uint64_t i = 0; i < count; ++i)
      elf.sections[i].name = text_at(elf.sections[names_index].bytes, names[i]);
  // Of a kind there is one table, as a rule.
  const auto table_of = [&](std::uint32_t type) {
    for (std::uint64_t i = 0; i < count; ++i)
      if (elf.sections[i].type == type && links[i] < count) return i;
    return count;
  };
  const bool stripped = table_of(kSymbols) == count;
  if (const std::uint64_t i = table_of(stripped ? kLoadersSymbols : kSymbols); i < count)
    read_symbols(elf, elf.sections[i].bytes, elf.sections[links[i]].bytes, stripped);
  return elf;
}

}  // namespace segfuse::doctor
