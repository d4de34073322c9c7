#pragma once
// MATLAB's MAT-files of version 5: numbers, text, cells and structures. Read with suspicion: what
// is compressed may grow to 256 MiB, arrays nest at most sixteen times and are two
// million at most.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace segfuse::data {

struct MatValue {
  enum class Kind { kNumbers, kText, kCells, kStructs, kOther };
  Kind kind = Kind::kOther;
  std::vector<std::int64_t> shape;
  std::vector<double> numbers;       ///< column by column
  std::vector<std::u32string> rows;  ///< of a text
  std::vector<MatValue> cells;       ///< or the fields of all structures, one after another
  std::vector<std::string> fields;   ///< their names
  std::int64_t size() const;         ///< elements of the array
  const MatValue* field(std::int64_t index, std::string_view name) const;  ///< or null
};

struct MatVariable {
  std::string name;
  MatValue value;
};

std::vector<MatVariable> parse_mat(std::string_view bytes, std::string_view name);

/// Writes such a file, with nothing compressed.
class MatWriter {
 public:
  MatWriter();
  void add(std::string_view name, const std::vector<double>& column);
  void add(std::string_view name, std::u16string_view text);
  std::string finish() { return std::move(bytes_); }

 private:
  void add(std::string_view name, std::uint32_t type, std::int32_t rows, std::int32_t columns,
           std::uint32_t data_type, std::string_view data);
  std::string bytes_;
};

/// UTF-8 of characters.
std::string utf8_of(std::u32string_view text);

}  // namespace segfuse::data
