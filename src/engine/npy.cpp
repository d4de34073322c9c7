#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "base/os/file.h"
#include "base/text.h"
#include "segfuse/error.h"
#include "segfuse/ops.h"

namespace segfuse {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kMaxAxes = 64;
/// Of an array without elements: what its other axes would hold. Results may have their sizes.
constexpr std::uint64_t kMaxAroundNothing = std::uint64_t{1} << 24;

struct TypeRow {
  std::string_view descr;
  DType dtype;
};
constexpr std::array<TypeRow, 8> kTypes{{{"|b1", DType::kBool},
                                         {"<i4", DType::kI32},
                                         {"<i8", DType::kI64},
                                         {"<f2", DType::kF16},
                                         {"<V2", DType::kBF16},
                                         {"<f4", DType::kF32},
                                         {"<f8", DType::kF64},
                                         {"|V2", DType::kBF16}}};

struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran;
  std::optional<Shape> shape;
};

/// The dictionary of Python's that stands in front of the elements.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::filesystem::path& path)
      : text_(text), path_(path) {}

  Header read() {
    Header header;
    expect('{');
    while (!found('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr" && !header.descr) {
        header.descr = peek() == '[' ? "several fields" : quoted();
        if (*header.descr == "several fields") refuse_type(*header.descr);
      } else if (key == "fortran_order" && !header.fortran) {
        header.fortran = truth();
      } else if (key == "shape" && !header.shape) {
        header.shape = tuple();
      } else {
        fail();
      }
      if (!found(',') && peek() != '}') fail();
    }
    if (peek() != '\0' || !header.descr || !header.fortran || !header.shape) fail();
    return header;
  }

  [[noreturn]] void refuse_type(std::string_view descr) const {
    throw DataError(fmt::format(
        "{}: holds elements of NumPy's type {}, expected bool, int32, int64, float16, bfloat16, "
        "float32 or float64, little-endian",
        path_.string(), descr));
  }

 private:
  [[noreturn]] void fail() const {
    throw DataError(fmt::format("{}: the header of the .npy file is not understood: {}",
                                path_.string(), text_.substr(0, 200)));
  }
  char peek() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool found(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!found(c)) fail();
  }
  std::string quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') fail();
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail();
    const std::string inside(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return inside;
  }
  std::string_view word() {
    peek();
    const std::size_t first = at_;
    while (at_ < text_.size() && std::isalnum(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return text_.substr(first, at_ - first);
  }
  bool truth() {
    const std::string_view found = word();
    if (found != "True" && found != "False") fail();
    return found == "True";
  }
  Shape tuple() {
    Shape shape;
    expect('(');
    while (!found(')')) {
      const auto size = parse_int(word());
      if (!size || *size < 0 || shape.size() == kMaxAxes) fail();
      shape.push_back(*size);
      if (!found(',') && peek() != ')') fail();
    }
    return shape;
  }

  std::string_view text_;
  const std::filesystem::path& path_;
  std::size_t at_ = 0;
};

/// Where the header's text stands, and where the elements begin.
struct Layout {
  std::string_view header;
  std::size_t data = 0;
};

Layout layout_of(std::string_view text, const std::filesystem::path& path) {
  if (!text.starts_with(kMagic) || text.size() < 12)
    throw DataError(fmt::format("{}: is not a .npy file of NumPy", path.string()));
  const auto byte = [&](std::size_t i) {
    return static_cast<std::size_t>(static_cast<unsigned char>(text[i]));
  };
  const std::size_t version = byte(6);
  if (version < 1 || version > 3)
    throw DataError(fmt::format("{}: version {} of the .npy format, expected 1, 2 or 3",
                                path.string(), version));
  const std::size_t start = version == 1 ? 10 : 12;
  std::size_t size = byte(8) | byte(9) << 8;
  if (version > 1) size |= byte(10) << 16 | byte(11) << 24;
  if (size > text.size() - start)
    throw DataError(fmt::format("{}: is cut short: its header has {} bytes, the file {}",
                                path.string(), size, text.size()));
  return {text.substr(start, size), start + size};
}

/// The elements of an array whose first axis is the innermost.
void copy_transposed(const std::byte* from, std::byte* to, const Shape& shape, std::size_t item) {
  Shape at(shape.size(), 0);
  Shape strides(shape.size(), 1);
  for (std::size_t axis = 1; axis < shape.size(); ++axis)
    strides[axis] = strides[axis - 1] * shape[axis - 1];
  for (std::int64_t left = num_elements(shape); left > 0; --left, to += item) {
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) offset += at[axis] * strides[axis];
    std::memcpy(to, from + static_cast<std::size_t>(offset) * item, item);
    for (std::size_t axis = shape.size(); axis-- > 0 && ++at[axis] == shape[axis];) at[axis] = 0;
  }
}

}  // namespace

Tensor read_npy(const std::filesystem::path& path) {
  const FileMap file(path);
  const Layout layout = layout_of(file.text(), path);
  HeaderReader reader(layout.header, path);
  const Header header = reader.read();
  const TypeRow* type = nullptr;
  for (const TypeRow& row : kTypes)
    if (row.descr == *header.descr) type = &row;
  if (type == nullptr) reader.refuse_type("'" + *header.descr + "'");
  const std::size_t item = size_of(type->dtype);
  const std::size_t held = file.size() - layout.data;
  std::uint64_t others = 1;  // elements but for axes of none
  bool none = false;
  for (const std::int64_t size : *header.shape) {
    none = none || size == 0;
    if (size != 0 && __builtin_mul_overflow(others, static_cast<std::uint64_t>(size), &others))
      others = UINT64_MAX / item;
  }
  const std::uint64_t wanted = none ? 0 : std::min(others, UINT64_MAX / item) * item;
  if (none && others > kMaxAroundNothing)
    throw DataError(fmt::format(
        "{}: holds no elements, and its shape is {}; expected axes of at most {} together beside "
        "those of size 0",
        path.string(), to_string(*header.shape), kMaxAroundNothing));
  if (wanted != held)
    throw DataError(fmt::format("{}: holds {} bytes of elements, expected {} for {}{}",
                                path.string(), held, wanted, name_of(type->dtype),
                                to_string(*header.shape)));
  check_room(held, path);
  Tensor tensor(type->dtype, *header.shape);
  const std::byte* const from = file.bytes().data() + layout.data;
  auto* const to = static_cast<std::byte*>(tensor.data());
  if (held > 0 && *header.fortran && header.shape->size() > 1) {
    copy_transposed(from, to, *header.shape, item);
  } else if (held > 0) {
    std::memcpy(to, from, held);
  }
  if (type->dtype == DType::kBool)
    for (std::uint8_t& value : tensor.span<std::uint8_t>()) value = value != 0 ? 1 : 0;
  return tensor;
}

void write_npy(const std::filesystem::path& path, const Tensor& tensor) {
  const Tensor host = tensor.to_host();
  std::string_view descr;
  for (const TypeRow& row : kTypes)
    if (row.dtype == host.dtype() && descr.empty()) descr = row.descr;
  std::string shape;
  for (const std::int64_t size : host.shape()) shape += fmt::format("{}, ", size);
  if (host.shape().size() > 1) shape.resize(shape.size() - 2);
  if (host.shape().size() == 1) shape.pop_back();
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr, shape);
  const std::size_t front = kMagic.size() + 4;
  header.append(kAlignment - (front + header.size() + 1) % kAlignment, ' ');
  header += '\n';
  write_file_atomically(path, [&](FileWriter& out) {
    out.write(kMagic);
    out.write(std::string_view("\x01\x00", 2));
    const std::array<char, 2> size = {static_cast<char>(header.size() & 0xFF),
                                      static_cast<char>(header.size() >> 8)};
    out.write(std::string_view(size.data(), size.size()));
    out.write(header);
    out.write(std::span(static_cast<const std::byte*>(host.data()), host.bytes()));
  });
}

}  // namespace segfuse
