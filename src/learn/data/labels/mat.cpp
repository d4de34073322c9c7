#include "learn/data/labels/mat.h"

#include <fmt/core.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>

#include "learn/data/text.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

constexpr std::size_t kMaxInflated = std::size_t{128} << 20;
constexpr std::size_t kMaxArrays = 2'000'000;
constexpr int kMaxNested = 16;

enum DataType : std::uint32_t {
  kInt8 = 1,
  kUint8 = 2,
  kInt16 = 3,
  kUint16 = 4,
  kInt32 = 5,
  kUint32 = 6,
  kSingle = 7,
  kDouble = 9,
  kInt64 = 12,
  kUint64 = 13,
  kMatrix = 14,
  kCompressed = 15,
  kUtf8 = 16,
  kUtf16 = 17,
  kUtf32 = 18,
};

enum ArrayClass : std::uint32_t {
  kCellClass = 1,
  kStructClass = 2,
  kCharClass = 4,
  kDoubleClass = 6,
  kUint64Class = 15,
};

std::size_t width_of(std::uint32_t type) {
  switch (type) {
    case kInt8:
    case kUint8:
    case kUtf8: return 1;
    case kInt16:
    case kUint16:
    case kUtf16: return 2;
    case kInt32:
    case kUint32:
    case kSingle:
    case kUtf32: return 4;
    case kDouble:
    case kInt64:
    case kUint64: return 8;
    default: return 0;
  }
}

/// A tagged piece of the file: an element.
struct Element {
  std::uint32_t type = 0;
  std::string_view data;
  std::size_t offset = 0;  // in the file, or in what was inflated
};

/// Elements one after another.
class Elements {
 public:
  Elements(std::string_view bytes, std::size_t offset, bool swap, std::string_view name,
           std::size_t& arrays)
      : bytes_(bytes), offset_(offset), swap_(swap), name_(name), arrays_(arrays) {}

  /// One array more; an empty cell of eight bytes takes much more memory than that.
  void count_array() const {
    if (++arrays_ > kMaxArrays) fail(offset(), fmt::format("more than {} arrays", kMaxArrays));
  }

  bool at_end() const { return at_ >= bytes_.size(); }
  std::size_t offset() const { return offset_ + at_; }
  bool swap() const { return swap_; }

  [[noreturn]] void fail(std::size_t offset, const std::string& what) const {
    throw DataError(fmt::format("{}: byte {}: {}", name_, offset, what));
  }

  Element next(std::string_view what) {
    const std::size_t begin = at_;
    if (bytes_.size() - at_ < 8)
      fail(offset(), fmt::format("the file ends where {} should stand; it was cut off", what));
    const std::uint32_t first = word(at_);
    Element out;
    std::size_t size = first >> 16;  // of a small element, whose data stand in the tag
    out.type = size > 0 ? first & 0xFFFF : first;
    if (size > 4) fail(offset(), fmt::format("a small element of {} bytes", size));
    const bool small = size > 0;
    if (!small) size = word(at_ + 4);
    at_ += small ? 4 : 8;
    if (size > bytes_.size() - at_)
      fail(offset_ + begin, fmt::format("{} has {} bytes, {} follow; the file was cut off", what,
                                        size, bytes_.size() - at_));
    out.data = bytes_.substr(at_, size);
    out.offset = offset();
    const std::size_t end = at_ + size;
    at_ = small                     ? begin + 8
          : out.type == kCompressed ? end
                                    : std::min(bytes_.size(), (end + 7) / 8 * 8);
    return out;
  }

  template <class T>
  T value(std::string_view data, std::size_t index) const {
    char raw[sizeof(T)];
    std::memcpy(raw, data.data() + index * sizeof(T), sizeof(T));
    if (swap_) std::reverse(std::begin(raw), std::end(raw));
    return std::bit_cast<T>(raw);
  }

  /// Number `index` of an element of numbers.
  double number(const Element& element, std::size_t index) const {
    const std::string_view data = element.data;
    switch (element.type) {
      case kInt8: return value<std::int8_t>(data, index);
      case kUint8:
      case kUtf8: return value<std::uint8_t>(data, index);
      case kInt16: return value<std::int16_t>(data, index);
      case kUint16:
      case kUtf16: return value<std::uint16_t>(data, index);
      case kInt32: return value<std::int32_t>(data, index);
      case kUint32:
      case kUtf32: return value<std::uint32_t>(data, index);
      case kSingle: return static_cast<double>(value<float>(data, index));
      case kDouble: return value<double>(data, index);
      case kInt64: return static_cast<double>(value<std::int64_t>(data, index));
      default: return static_cast<double>(value<std::uint64_t>(data, index));
    }
  }

  std::size_t count(const Element& element, std::string_view what) const {
    const std::size_t width = width_of(element.type);
    if (width == 0)
      fail(element.offset,
           fmt::format("{} has the data type {}; expected numbers", what, element.type));
    return element.data.size() / width;
  }

  Elements inside(const Element& element) const {
    return {element.data, element.offset, swap_, name_, arrays_};
  }

 private:
  std::uint32_t word(std::size_t at) const { return value<std::uint32_t>(bytes_.substr(at), 0); }

  std::string_view bytes_;
  std::size_t offset_;
  bool swap_;
  std::string_view name_;
  std::size_t& arrays_;  // so far, in the whole file
  std::size_t at_ = 0;
};

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t size = 1;
  for (const std::int64_t n : shape) size *= n;
  return size;
}

std::vector<std::int64_t> read_shape(Elements& elements, std::size_t most) {
  const Element element = elements.next("the dimensions of an array");
  const std::size_t count = elements.count(element, "the dimensions");
  std::vector<std::int64_t> shape;
  std::int64_t size = 1;
  for (std::size_t i = 0; i < count; ++i) {
    const double length = elements.number(element, i);
    // A cell takes eight bytes, a number one; only empty arrays may be of any shape.
    if (!(length >= 0) || length > static_cast<double>(most))
      elements.fail(element.offset,
                    fmt::format("an array of length {}; the file has {} bytes", length, most));
    shape.push_back(static_cast<std::int64_t>(length));
    if (shape.back() > 0 && size > static_cast<std::int64_t>(most) / shape.back())
      elements.fail(element.offset,
                    fmt::format("an array of more elements than the file has bytes, {}", most));
    size *= shape.back();
  }
  if (shape.size() < 2) elements.fail(element.offset, "an array of less than two dimensions");
  return shape;
}

/// Characters of UTF-8 or UTF-16 count once each in an array's shape, whatever bytes they take.
std::u32string characters(const Elements& elements, const Element& element) {
  std::u32string out;
  const std::size_t count = elements.count(element, "a text");
  for (std::size_t i = 0; i < count; ++i) {
    const auto code =
        static_cast<std::uint32_t>(std::clamp(elements.number(element, i), 0.0, 4294967295.0));
    const bool in_utf8 = element.type == kUtf8 && code >= 0x80;
    if (!in_utf8) {
      out.push_back(code);
      continue;
    }
    const int more = code >= 0xF0 ? 3 : code >= 0xE0 ? 2 : 1;
    char32_t value = code & (0x3FU >> more);
    for (int k = 0; k < more && i + 1 < count; ++k)
      value = value << 6 | (static_cast<std::uint32_t>(elements.number(element, ++i)) & 0x3FU);
    out.push_back(value);
  }
  return out;
}

MatVariable read_array(const Elements& outer, const Element& array, int depth);

void read_numbers(Elements& elements, MatValue& out) {
  const Element data = elements.next("the numbers of an array");
  const std::size_t count = elements.count(data, "an array");
  if (static_cast<std::int64_t>(count) < out.size())
    elements.fail(data.offset, fmt::format("{} numbers for an array of {}", count, out.size()));
  out.kind = MatValue::Kind::kNumbers;
  for (std::int64_t i = 0; i < out.size(); ++i)
    out.numbers.push_back(elements.number(data, static_cast<std::size_t>(i)));
}

void read_text(Elements& elements, MatValue& out) {
  out.kind = MatValue::Kind::kText;
  const std::u32string all = characters(elements, elements.next("a text"));
  const auto rows = static_cast<std::size_t>(out.shape[0]);
  const auto wanted = static_cast<std::size_t>(out.size());
  if (all.size() < wanted)
    elements.fail(elements.offset(),
                  fmt::format("{} characters for a text of {}", all.size(), wanted));
  for (std::size_t r = 0; r < rows; ++r) {
    std::u32string row;
    for (std::size_t i = r; i < wanted; i += rows) row.push_back(all[i]);
    out.rows.push_back(std::move(row));
  }
}

void read_cells(Elements& elements, std::int64_t count, MatValue& out, int depth) {
  for (std::int64_t i = 0; i < count; ++i) {
    const Element cell = elements.next("a cell");
    if (cell.type != kMatrix)
      elements.fail(cell.offset,
                    fmt::format("a cell of data type {}; expected an array", cell.type));
    out.cells.push_back(read_array(elements, cell, depth + 1).value);
  }
}

void read_structs(Elements& elements, MatValue& out, std::size_t most, int depth) {
  out.kind = MatValue::Kind::kStructs;
  const Element width = elements.next("the length of field names");
  const double length =
      elements.count(width, "the length of field names") > 0 ? elements.number(width, 0) : 0;
  const Element names = elements.next("field names");
  if (!(length >= 1) || length > 1024)
    elements.fail(width.offset, fmt::format("field names of {} bytes", length));
  const auto step = static_cast<std::size_t>(length);
  for (std::size_t at = 0; at + step <= names.data.size(); at += step)
    out.fields.emplace_back(names.data.substr(at, step).data(),
                            strnlen(names.data.data() + at, step));
  const auto fields = static_cast<std::int64_t>(out.fields.size());
  if (fields > 0 && out.size() > static_cast<std::int64_t>(most) / fields)
    elements.fail(names.offset, "more fields than the file has bytes");
  read_cells(elements, out.size() * fields, out, depth);
}

MatVariable read_array(const Elements& outer, const Element& array, int depth) {
  outer.count_array();
  MatVariable out;
  if (array.data.empty()) {  // an empty cell
    out.value.shape = {0, 0};
    out.value.kind = MatValue::Kind::kNumbers;
    return out;
  }
  if (depth > kMaxNested)
    outer.fail(array.offset, fmt::format("arrays in arrays, more than {} deep", kMaxNested));
  Elements elements = outer.inside(array);
  const Element flags = elements.next("the flags of an array");
  if (elements.count(flags, "the flags of an array") < 1)
    elements.fail(flags.offset, "an array without flags");
  const auto kind = static_cast<std::uint32_t>(elements.number(flags, 0)) & 0xFF;
  out.value.shape = read_shape(elements, array.data.size());
  const Element name = elements.next("the name of an array");
  out.name = std::string(name.data);
  if (kind == kCellClass) {
    out.value.kind = MatValue::Kind::kCells;
    read_cells(elements, out.value.size(), out.value, depth);
  } else if (kind == kStructClass) {
    read_structs(elements, out.value, array.data.size(), depth);
  } else if (kind == kCharClass) {
    read_text(elements, out.value);
  } else if (kind >= kDoubleClass && kind <= kUint64Class) {
    read_numbers(elements, out.value);
  }
  return out;
}

/// What zlib packed; `left` bounds what all variables take together.
std::string inflated(const Elements& elements, const Element& packed, std::size_t& left) {
  z_stream stream{};
  if (inflateInit(&stream) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, int (*)(z_stream*)> closing(&stream, &inflateEnd);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data.data()));
  stream.avail_in = static_cast<uInt>(packed.data.size());
  std::string out;
  std::string block(std::size_t{1} << 16, '\0');
  int state = Z_OK;
  while (state == Z_OK) {
    stream.next_out = reinterpret_cast<Bytef*>(block.data());
    stream.avail_out = static_cast<uInt>(block.size());
    state = inflate(&stream, Z_NO_FLUSH);
    const std::size_t made = block.size() - stream.avail_out;
    if (made > left - out.size())
      elements.fail(packed.offset,
                    fmt::format("compressed variables of more than {} bytes", kMaxInflated));
    out.append(block.data(), made);
    if (state == Z_OK && stream.avail_in == 0 && stream.avail_out > 0) break;
  }
  if (state != Z_STREAM_END)
    elements.fail(packed.offset, "a compressed variable is damaged or was cut off");
  left -= out.size();
  return out;
}

}  // namespace

std::int64_t MatValue::size() const { return product(shape); }

const MatValue* MatValue::field(std::int64_t index, std::string_view name) const {
  for (std::size_t f = 0; f < fields.size(); ++f)
    if (fields[f] == name) return &cells[static_cast<std::size_t>(index) * fields.size() + f];
  return nullptr;
}

std::vector<MatVariable> parse_mat(std::string_view bytes, std::string_view name) {
  constexpr std::size_t kHeader = 128;
  const std::string_view order =
      bytes.size() >= kHeader ? bytes.substr(126, 2) : std::string_view();
  if (order != "IM" && order != "MI")
    throw DataError(
        fmt::format("{}: byte 0: not a MAT-file of version 5 (\"MATLAB 5.0\"); save it in MATLAB "
                    "with -v7 or -v6",
                    name));
  const bool swap = order == "MI";
  std::size_t arrays = 0;
  Elements elements(bytes.substr(kHeader), kHeader, swap, name, arrays);
  std::vector<MatVariable> out;
  std::size_t left = kMaxInflated;
  while (!elements.at_end()) {
    Element element = elements.next("a variable");
    if (element.type == kCompressed) {
      const std::string text = inflated(elements, element, left);
      Elements packed(text, element.offset, swap, name, arrays);
      const Element array = packed.next("a variable");
      if (array.type == kMatrix) out.push_back(read_array(packed, array, 0));
    } else if (element.type == kMatrix) {
      out.push_back(read_array(elements, element, 0));
    }
  }
  return out;
}

namespace {

void put(std::string& out, std::uint32_t value, int count) {
  for (int i = 0; i < count; ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

void put_element(std::string& out, std::uint32_t type, std::string_view data) {
  put(out, type, 4);
  put(out, static_cast<std::uint32_t>(data.size()), 4);
  out += data;
  out.append((8 - data.size() % 8) % 8, '\0');
}

}  // namespace

MatWriter::MatWriter() : bytes_("MATLAB 5.0 MAT-file, written by segfuse") {
  bytes_.resize(116, ' ');
  bytes_.append(8, '\0');
  put(bytes_, 0x0100, 2);
  bytes_ += "IM";
}

void MatWriter::add(std::string_view name, const std::vector<double>& column) {
  std::string data;
  for (const double value : column) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    put(data, static_cast<std::uint32_t>(bits), 4);
    put(data, static_cast<std::uint32_t>(bits >> 32), 4);
  }
  add(name, kDoubleClass, static_cast<std::int32_t>(column.size()), 1, kDouble, data);
}

void MatWriter::add(std::string_view name, std::u16string_view text) {
  std::string data;
  for (const char16_t unit : text) put(data, unit, 2);
  add(name, kCharClass, 1, static_cast<std::int32_t>(text.size()), kUint16, data);
}

void MatWriter::add(std::string_view name, std::uint32_t type, std::int32_t rows,
                    std::int32_t columns, std::uint32_t data_type, std::string_view data) {
  std::string flags, shape, array;
  put(flags, type, 4);
  put(flags, 0, 4);
  put(shape, static_cast<std::uint32_t>(rows), 4);
  put(shape, static_cast<std::uint32_t>(columns), 4);
  put_element(array, kUint32, flags);
  put_element(array, kInt32, shape);
  put_element(array, kInt8, name);
  put_element(array, data_type, data);
  put_element(bytes_, kMatrix, array);
}

std::string utf8_of(std::u32string_view text) {
  std::string out;
  for (const char32_t c : text) append_utf8(out, c);
  return out;
}

}  // namespace segfuse::data
