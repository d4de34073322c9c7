#pragma once
// Sections and symbols of a 64-bit little-endian ELF file, read with suspicion.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace segfuse::doctor {

struct ElfSection {
  std::string_view name;
  std::uint32_t type = 0;
  std::uint64_t flags = 0;
  std::uint64_t size = 0;
  std::uint32_t info = 0;
  std::string_view bytes;  ///< empty where the file has none (NOBITS)
};

/// A function that the file defines.
struct ElfFunction {
  std::string_view name;
  std::uint64_t size = 0;
};

/// A variable that the file defines, or a part of one that has a name of its own.
struct ElfObject {
  std::string_view name;
  std::uint64_t value = 0;  ///< its address, before the file is loaded
  std::uint64_t size = 0;
};

struct Elf {
  std::uint16_t machine = 0;
  std::uint8_t abi_version = 0;
  std::uint32_t flags = 0;
  std::vector<ElfSection> sections;
  std::vector<std::string_view> symbols;  ///< names, by number
  std::vector<ElfFunction> functions;     ///< in the order of the symbols
  std::vector<ElfObject> objects;         ///< the same; of a stripped file those for the loader

  const ElfSection* find(std::string_view name) const;
};

/// Views point into `bytes`. DataError: "FILE: ..., at byte N".
Elf parse_elf(std::string_view bytes, const std::string& file);

/// A little-endian number at `offset`; nothing is read beyond the end, missing bytes are 0.
std::uint64_t little_endian(std::string_view bytes, std::size_t offset, std::size_t count);

}  // namespace segfuse::doctor
