// NumPy's arrays: .npy, and .npz, which is a ZIP archive of them.

#include <fmt/core.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>

#include "base/os/file.h"
#include "base/text.h"
#include "learn/data/text.h"
#include "learn/data/values/values.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

std::uint32_t little(std::string_view bytes, std::size_t at, std::size_t count) {
  std::uint32_t value = 0;
  for (std::size_t i = count; i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

struct NpyHeader {
  std::string type;  // "<f4"
  bool fortran = false;
  std::vector<std::int64_t> shape;
  std::size_t size = 0;  // bytes up to the data
};

/// The text behind 'key': in the header's Python dictionary, up to `ends`.
std::string_view entry(std::string_view header, std::string_view key, char ends,
                       std::string_view name) {
  const std::string quoted = fmt::format("'{}':", key);
  const std::size_t at = header.find(quoted);
  const std::size_t begin = at == std::string_view::npos ? at : at + quoted.size();
  const std::size_t end = at == std::string_view::npos ? at : header.find(ends, begin);
  if (end == std::string_view::npos)
    throw DataError(fmt::format("{}: byte 10: the header has no '{}'", name, key));
  return trim(header.substr(begin, end - begin));
}

NpyHeader read_header(std::string_view bytes, std::string_view name) {
  constexpr std::string_view kMagic("\x93NUMPY", 6);
  if (!bytes.starts_with(kMagic) || bytes.size() < 12)
    throw DataError(fmt::format("{}: byte 0: not a .npy file of NumPy", name));
  const bool first = bytes[6] == 1;
  const std::size_t begin = first ? 10 : 12;
  const std::size_t length = little(bytes, 8, first ? 2 : 4);
  if (length > bytes.size() - begin)
    throw DataError(fmt::format("{}: byte {}: the file ends inside its header; it was cut off",
                                name, bytes.size()));
  NpyHeader out;
  const std::string_view header = bytes.substr(begin, length);
  out.size = begin + length;
  out.type = entry(header, "descr", ',', name);
  if (out.type.size() > 2) out.type = out.type.substr(1, out.type.size() - 2);
  out.fortran = entry(header, "fortran_order", ',', name) == "True";
  std::string_view shape = entry(header, "shape", ')', name);
  if (shape.starts_with('(')) shape.remove_prefix(1);
  for (const std::string_view part : split(shape, ',')) {
    if (trim(part).empty()) continue;
    const std::optional<std::int64_t> length_of = parse_int(trim(part));
    if (!length_of || *length_of < 0)
      throw DataError(fmt::format("{}: byte 10: the shape is {}", name, shown(shape)));
    out.shape.push_back(*length_of);
  }
  return out;
}

/// Of header and elements; nothing where 64 bits cannot count them.
std::optional<std::uint64_t> bytes_of(const NpyHeader& header) {
  std::uint64_t bytes =
      parse_int(header.type.substr(std::min<std::size_t>(2, header.type.size()))).value_or(0);
  for (const std::int64_t size : header.shape)
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) return {};
  if (__builtin_add_overflow(bytes, header.size, &bytes)) return {};
  return bytes;
}

template <class T>
float number(std::string_view data, std::size_t index, bool swap) {
  char raw[sizeof(T)];
  std::memcpy(raw, data.data() + index * sizeof(T), sizeof(T));
  if (swap) std::reverse(std::begin(raw), std::end(raw));
  return static_cast<float>(std::bit_cast<T>(raw));
}

// --- ZIP -----------------------------------------------------------------------------------------

struct ZipEntry {
  std::string name;
  std::uint32_t method = 0;  // 0: stored, 8: deflated
  std::size_t packed = 0, size = 0, offset = 0;
};

[[noreturn]] void broken(std::string_view name, const char* what) {
  throw DataError(fmt::format("{}: {}; expected an .npz file of NumPy", name, what));
}

/// The archive's list of files, which stands at its end.
std::vector<ZipEntry> zip_entries(std::string_view bytes, std::string_view name) {
  constexpr std::string_view kEnd = "PK\x05\x06";
  constexpr std::string_view kFile = "PK\x01\x02";
  const std::size_t end = bytes.rfind(kEnd);
  if (end == std::string_view::npos || bytes.size() - end < 22)
    broken(name, "this is not a ZIP file");
  std::size_t at = little(bytes, end + 16, 4);
  std::vector<ZipEntry> out;
  for (std::uint32_t count = little(bytes, end + 10, 2); count > 0; --count) {
    if (at > bytes.size() || bytes.size() - at < 46 || bytes.substr(at, 4) != kFile)
      broken(name, "its list of files is damaged");
    const std::size_t length = little(bytes, at + 28, 2);
    ZipEntry entry{"", little(bytes, at + 10, 2), little(bytes, at + 20, 4),
                   little(bytes, at + 24, 4), little(bytes, at + 42, 4)};
    if (bytes.size() - at - 46 < length) broken(name, "its list of files is damaged");
    entry.name = bytes.substr(at + 46, length);
    out.push_back(std::move(entry));
    at += 46 + length + little(bytes, at + 30, 2) + little(bytes, at + 32, 2);
  }
  return out;
}

/// The first `size` bytes of what was packed; `whole`: and there are no more.
std::string inflated(std::string_view packed, std::size_t size, bool whole, std::string_view name) {
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, int (*)(z_stream*)> closing(&stream, &inflateEnd);
  std::string out(size, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int state = inflate(&stream, whole ? Z_FINISH : Z_SYNC_FLUSH);
  if (stream.avail_out > 0 || (whole ? state != Z_STREAM_END : state < 0))
    broken(name, "a compressed array is damaged or was cut off");
  return out;
}

/// An array is unpacked once its beginning says that it has so many bytes.
std::string inflated_array(std::string_view packed, std::size_t size, std::string_view name) {
  constexpr std::size_t kBeginning = std::size_t{1} << 16;
  // Deflate packs a byte into a thousandth at best.
  if (size / 1100 > packed.size()) broken(name, "a compressed array is damaged");
  if (size > kBeginning) {
    const NpyHeader header = read_header(inflated(packed, kBeginning, false, name), name);
    const std::optional<std::uint64_t> wanted = bytes_of(header);
    if (wanted != size)
      throw DataError(fmt::format(
          "{}: a compressed array of {} bytes, and its header announces {}; the file is damaged",
          name, size, wanted ? std::to_string(*wanted) : "more than there can be"));
    check_room(size, std::string(name));
  }
  return inflated(packed, size, true, name);
}

std::string content_of(std::string_view bytes, const ZipEntry& entry, std::string_view name) {
  constexpr std::size_t kHead = 30;
  if (entry.offset > bytes.size() || bytes.size() - entry.offset < kHead)
    broken(name, "a file in it begins after its end");
  const std::size_t begin = entry.offset + kHead + little(bytes, entry.offset + 26, 2) +
                            little(bytes, entry.offset + 28, 2);
  if (begin > bytes.size() || bytes.size() - begin < entry.packed)
    broken(name, "a file in it was cut off");
  const std::string_view packed = bytes.substr(begin, entry.packed);
  if (entry.method == 8) return inflated_array(packed, entry.size, name);
  if (entry.method != 0) broken(name, "a file in it is neither stored nor deflated");
  return std::string(packed);
}

}  // namespace

Tensor parse_npy(std::string_view bytes, std::string_view name) {
  const NpyHeader header = read_header(bytes, name);
  const std::string kind = header.type.size() == 3 ? header.type.substr(1) : "";
  if (kind != "f4" && kind != "f8" && kind != "i2")
    throw DataError(fmt::format(
        "{}: the array has the type {}; expected float32, float64 or int16 (numpy.float32(x))",
        name, shown(header.type)));
  if (header.shape.empty() || header.shape.size() > 2)
    throw DataError(fmt::format(
        "{}: the array has {} dimensions; expected T x D: rows that follow each other in time, and "
        "their values",
        name, header.shape.size()));
  const std::int64_t frames = header.shape[0];
  const std::int64_t columns = header.shape.size() == 2 ? header.shape[1] : 1;
  check_size(static_cast<double>(frames), static_cast<double>(columns), name);
  const std::size_t width = kind == "f8" ? 8 : kind == "f4" ? 4 : 2;
  const std::string_view data = bytes.substr(header.size);
  const std::size_t row = static_cast<std::size_t>(columns) * width;
  if (data.size() / row < static_cast<std::size_t>(frames))
    throw DataError(fmt::format(
        "{}: byte {}: {} x {} values are announced, {} bytes follow; the file was cut off", name,
        header.size, frames, columns, data.size()));
  Tensor out(DType::kF32, {frames, columns});
  const std::span<float> to = out.span<float>();
  const bool swap = header.type[0] == '>';
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::size_t t = i / static_cast<std::size_t>(columns);
    const std::size_t d = i % static_cast<std::size_t>(columns);
    const std::size_t from = header.fortran ? d * static_cast<std::size_t>(frames) + t : i;
    to[i] = width == 8   ? number<double>(data, from, swap)
            : width == 4 ? number<float>(data, from, swap)
                         : number<std::int16_t>(data, from, swap);
  }
  return out;
}

Tensor parse_npz(std::string_view bytes, std::string_view name, const std::string& part) {
  const std::vector<ZipEntry> entries = zip_entries(bytes, name);
  std::vector<std::string> names;
  const ZipEntry* found = nullptr;
  for (const ZipEntry& entry : entries) {
    const std::string array = entry.name.substr(0, entry.name.rfind(".npy"));
    names.push_back(array);
    if (part.empty() || array == part) found = &entry;
  }
  if (found == nullptr || (part.empty() && entries.size() != 1))
    throw DataError(fmt::format("{}: {} arrays ({}); expected {}", name, names.size(),
                                shown(quoted_list(names)),
                                part.empty() ? "one alone" : fmt::format("one named '{}'", part)));
  return parse_npy(content_of(bytes, *found, name), name);
}

}  // namespace segfuse::data
