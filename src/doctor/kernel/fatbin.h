#pragma once
// Fat binaries: cubins and PTX for several architectures in one, as nvcc puts them into object
// files, programs and libraries.

#include <string>
#include <string_view>
#include <vector>

namespace segfuse::doctor {

struct Fatbin {
  std::vector<std::string> cubins;
  std::vector<std::string> texts;  ///< PTX
  std::vector<std::string> notes;  ///< what could not be taken out
};

/// Whether the bytes begin as one.
bool is_fatbin(std::string_view bytes);
/// All that `bytes` holds one behind the other. DataError "FILE: ..." where it does not fit.
Fatbin read_fatbin(std::string_view bytes, const std::string& file);
/// Those of an ELF file for a CPU; empty without any. DataError where it is no ELF file.
Fatbin read_embedded(std::string_view bytes, const std::string& file);

/// A block of LZ4 whose text has `size` bytes; empty if it does not fit.
std::string unpack_lz4(std::string_view packed, std::size_t size);

}  // namespace segfuse::doctor
