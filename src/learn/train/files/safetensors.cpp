#include "learn/train/files/safetensors.h"

#include <fmt/core.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/console/printable.h"
#include "base/json/json.h"
#include "base/os/file.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

constexpr std::size_t kPrefix = 8;
constexpr std::uint64_t kMaxHeader = 100'000'000;  // the limit that the format's own readers set

struct TypeName {
  DType dtype;
  const char* name;
};
constexpr std::array<TypeName, 7> kTypes = {{{DType::kBool, "BOOL"},
                                             {DType::kI32, "I32"},
                                             {DType::kI64, "I64"},
                                             {DType::kF16, "F16"},
                                             {DType::kBF16, "BF16"},
                                             {DType::kF32, "F32"},
                                             {DType::kF64, "F64"}}};

const char* type_name(DType dtype) {
  return std::find_if(kTypes.begin(), kTypes.end(),
                      [&](const TypeName& t) { return t.dtype == dtype; })
      ->name;
}

/// Of the header without the sum itself, and of what is behind the header.
constexpr const char* kChecksum = "crc32";

std::uint64_t crc_of(std::string_view bytes, std::uint64_t before) {
  return crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
}
std::string checksum_text(std::uint64_t crc) { return fmt::format("{:08x}", crc); }

std::string_view bytes_of(const Tensor& tensor) {
  return {static_cast<const char*>(tensor.data()), tensor.bytes()};
}

std::string header_text(const TensorFile& file) {
  Json header = Json::object();
  if (!file.metadata.empty()) header["__metadata__"] = file.metadata;
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : file.tensors) {
    header[name] = {{"dtype", type_name(tensor.dtype())},
                    {"shape", tensor.shape()},
                    {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  std::uint64_t crc = crc_of(json_text(header), 0);
  for (const auto& [name, tensor] : file.tensors) crc = crc_of(bytes_of(tensor), crc);
  header["__metadata__"][kChecksum] = checksum_text(crc);
  std::string text = json_text(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // tensors start aligned
  return text;
}

/// Reads one header entry after the other.
class Reader {
 public:
  Reader(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  TensorFile read() {
    Json header = read_header();
    TensorFile file;
    for (const auto& [key, entry] : header.get_ref<const Json::object_t&>()) {
      if (key == "__metadata__") {
        read_metadata(entry, file);
      } else {
        file.tensors.emplace_back(key, read_tensor(key, entry));
      }
    }
    if (used_ != data_.size())
      throw DataError(
          fmt::format("{}: the tensors cover {} bytes, the file holds {} behind its header", name_,
                      used_, data_.size()));
    check_sum(std::move(header), file);
    return file;
  }

  std::map<std::string, std::string> metadata() {
    const Json header = read_header();
    TensorFile file;
    if (header.contains("__metadata__")) read_metadata(header["__metadata__"], file);
    file.metadata.erase(kChecksum);
    return std::move(file.metadata);
  }

 private:
  /// Files of other programs have no sum.
  void check_sum(Json header, TensorFile& file) const {
    const auto sum = file.metadata.extract(kChecksum);
    if (sum.empty()) return;
    header["__metadata__"].erase(kChecksum);
    if (header["__metadata__"].empty()) header.erase("__metadata__");
    const std::string found = checksum_text(crc_of(data_, crc_of(json_text(header), 0)));
    if (found == sum.mapped()) return;
    throw DataError(fmt::format(
        "{}: the checksum (CRC-32) of its content is {}, but the file states {}: it was damaged, "
        "or "
        "changed by another program; take another copy, or remove '{}' from its metadata if the "
        "change is intended",
        name_, found, printable(sum.mapped()), kChecksum));
  }

  Json read_header() {
    if (bytes_.size() < kPrefix)
      throw DataError(
          fmt::format("{}: {} bytes are too short for a safetensors file", name_, bytes_.size()));
    std::uint64_t length = 0;
    std::memcpy(&length, bytes_.data(), kPrefix);
    const bool too_long = length > kMaxHeader || length > bytes_.size() - kPrefix;
    if (too_long && bytes_.size() > kPrefix && bytes_[kPrefix] != '{')
      throw DataError(fmt::format(
          "{}: byte {}: this is not a safetensors file, whose header begins here with {{", name_,
          kPrefix));
    if (too_long)
      throw DataError(fmt::format("{}: byte 0: the header claims {} bytes, the file holds {}",
                                  name_, length, bytes_.size() - kPrefix));
    data_ = bytes_.substr(kPrefix + length);
    try {
      Json header = parse_json(bytes_.substr(kPrefix, length), "header");
      if (header.is_object()) return header;
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: byte {}: the header is not a JSON object ({})", name_,
                                  kPrefix, error.what()));
    }
    throw DataError(fmt::format("{}: byte {}: the header is not a JSON object", name_, kPrefix));
  }

  void read_metadata(const Json& entry, TensorFile& file) const {
    if (!entry.is_object())
      throw DataError(fmt::format("{}: __metadata__ is not a JSON object of strings", name_));
    for (const auto& [key, value] : entry.get_ref<const Json::object_t&>()) {
      if (!value.is_string())
        throw DataError(fmt::format("{}: __metadata__ '{}' is not a string", name_, key));
      file.metadata[key] = value.get<std::string>();
    }
  }

  Tensor read_tensor(const std::string& key, const Json& entry) {
    auto bad = [&](std::string_view what) -> DataError {
      return DataError(fmt::format("{}: tensor '{}': {}", name_, key, what));
    };
    auto is_size = [](const Json& v) { return v.is_number_unsigned(); };
    if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
        !entry.contains("data_offsets"))
      throw bad("needs dtype, shape and data_offsets");
    const Json& shape = entry["shape"];
    const Json& offsets = entry["data_offsets"];
    if (!entry["dtype"].is_string() || !shape.is_array() ||
        !std::all_of(shape.begin(), shape.end(), is_size))
      throw bad("dtype must be a string and shape a list of sizes");
    if (!offsets.is_array() || offsets.size() != 2 ||
        !std::all_of(offsets.begin(), offsets.end(), is_size))
      throw bad("data_offsets must be two byte positions");
    const auto type = std::find_if(kTypes.begin(), kTypes.end(),
                                   [&](const TypeName& t) { return entry["dtype"] == t.name; });
    if (type == kTypes.end()) throw bad("has the unknown type " + json_text(entry["dtype"]));
    const auto begin = offsets[0].get<std::uint64_t>();
    const auto end = offsets[1].get<std::uint64_t>();
    if (begin != used_ || end < begin || end > data_.size())
      throw bad("lies outside the file or leaves a gap");
    const auto sizes = shape.get<Shape>();
    if (static_cast<std::uint64_t>(num_elements(sizes)) != (end - begin) / size_of(type->dtype) ||
        (end - begin) % size_of(type->dtype) != 0)
      throw bad("its shape does not fit its bytes");
    Tensor tensor(type->dtype, sizes);
    if (end > begin) std::memcpy(tensor.data(), data_.data() + begin, end - begin);
    used_ = end;
    return tensor;
  }

  std::string_view bytes_;
  const std::string& name_;
  std::string_view data_;
  std::uint64_t used_ = 0;
};

}  // namespace

const Tensor& TensorFile::at(const std::string& name, const std::string& source) const {
  for (const auto& [key, tensor] : tensors)
    if (key == name) return tensor;
  throw DataError(fmt::format(
      "{}: the tensor '{}' is missing; the file was written for another model", source, name));
}

namespace {

/// Hands the pieces of the file to `write`, one after the other.
template <class Write>
void write_pieces(const TensorFile& file, const Write& write) {
  const std::string header = header_text(file);
  const std::uint64_t length = header.size();
  write(std::string_view(reinterpret_cast<const char*>(&length), kPrefix));
  write(std::string_view(header));
  for (const auto& [name, tensor] : file.tensors) write(bytes_of(tensor));
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const TensorFile& file) {
  write_file_atomically(path, [&](FileWriter& out) {
    write_pieces(file, [&](std::string_view piece) { out.write(piece); });
  });
}

std::string safetensors_bytes(const TensorFile& file) {
  std::string bytes;
  write_pieces(file, [&](std::string_view piece) { bytes += piece; });
  return bytes;
}

TensorFile read_safetensors(const std::filesystem::path& path) {
  const FileMap map(path);
  return parse_safetensors(map.text(), path.string());
}

std::map<std::string, std::string> read_safetensors_metadata(const std::filesystem::path& path) {
  const FileMap map(path);
  const std::string name = path.string();
  return Reader(map.text(), name).metadata();
}

TensorFile parse_safetensors(std::string_view bytes, const std::string& name) {
  try {
    return Reader(bytes, name).read();
  } catch (const UsageError& error) {  // a shape beyond 64 bits
    throw DataError(fmt::format("{}: {}", name, error.what()));
  }
}

}  // namespace segfuse::learn
