#pragma once
// The safetensors file format: an 8-byte little-endian header length, a JSON header, raw tensors.

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "segfuse/tensor.h"

namespace segfuse::learn {

struct TensorFile {
  std::map<std::string, std::string> metadata;          ///< the header's __metadata__
  std::vector<std::pair<std::string, Tensor>> tensors;  ///< in file order

  /// The tensor of that name; DataError that names `source` when it is absent.
  const Tensor& at(const std::string& name, const std::string& source) const;
};

/// Replaces `path` in one step (a killed process leaves the former file). The same content gives
/// the same bytes. The file's metadata also hold "crc32", a checksum of everything else, which
/// reading verifies and removes.
void write_safetensors(const std::filesystem::path& path, const TensorFile& file);
/// Those bytes.
std::string safetensors_bytes(const TensorFile& file);

/// DataError with the file name and the byte offset for anything malformed: a truncated file, a
/// header that is not JSON, unknown types, offsets outside the file, overlapping or wrong sizes,
/// and for content that does not have the checksum that it states.
TensorFile read_safetensors(const std::filesystem::path& path);
TensorFile parse_safetensors(std::string_view bytes, const std::string& name);
/// The metadata alone, of a file whose header is well-formed; what is behind it is not read.
std::map<std::string, std::string> read_safetensors_metadata(const std::filesystem::path& path);

}  // namespace segfuse::learn
