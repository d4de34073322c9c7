// Values in text: tables of numbers, and sequences of letters.

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "learn/data/text.h"
#include "learn/data/values/values.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

constexpr std::string_view kBases = "ACGT";
constexpr std::string_view kAmbiguous = "NRYSWKMBDHVX";

char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

/// The lines of the wanted sequence, with their numbers.
std::vector<std::pair<std::string_view, std::int64_t>> sequence_lines(std::string_view bytes,
                                                                      std::string_view name,
                                                                      const std::string& part) {
  std::vector<std::pair<std::string_view, std::int64_t>> out;
  std::int64_t number = 0;
  std::int64_t sequences = 0;
  bool wanted = false;
  for (const std::string_view line : split_lines(bytes)) {
    ++number;
    if (line.starts_with('>')) {
      const std::vector<Field> words = split_fields(line.substr(1));
      const std::string_view id = words.empty() ? std::string_view() : words[0].text;
      ++sequences;
      wanted = part.empty() || id == part;
    } else if (sequences == 0 && !trim(line).empty()) {
      throw DataError(fmt::format("{}:{}: {} before a line \">NAME\"; expected FASTA", name, number,
                                  shown(line)));
    } else if (wanted) {
      out.emplace_back(trim(line), number);
    }
  }
  if (part.empty() && sequences > 1)
    throw DataError(fmt::format("{}: {} sequences; name one of them", name, sequences));
  return out;
}

}  // namespace

bool names_columns(const TableRow& row) {
  constexpr std::string_view kNoNames[] = {"nan", "inf", "infinity", "-inf", "-infinity"};
  bool some = false;
  for (const std::string& field : row.fields) {
    const std::string name = lower(trim(field));
    if (std::ranges::find(kNoNames, name) != std::end(kNoNames)) return false;
    some = some || !parse_double(name);
  }
  return some;
}

void append_numbers(const TableRow& row, std::size_t columns, std::string_view name,
                    std::vector<float>& to) {
  if (row.fields.size() != columns)
    throw DataError(fmt::format("{}:{}: {} fields; the first line has {}", name, row.line,
                                row.fields.size(), columns));
  for (std::size_t c = 0; c < columns; ++c) {
    const std::optional<double> value = parse_double(trim(row.fields[c]));
    if (!value)
      throw DataError(fmt::format("{}:{}: field {} is {}; expected a number", name, row.line, c + 1,
                                  shown(row.fields[c])));
    to.push_back(static_cast<float>(*value));
  }
}

namespace {

/// The column that pandas and R put before the others: without a name, 0, 1, 2, ... or 1, 2, ...
bool counts_rows(const std::string& name, const std::vector<float>& numbers, std::size_t columns) {
  if (!trim(name).empty() || columns < 2 || numbers.empty()) return false;
  std::size_t row = numbers[0] == 0 ? 0 : 1;
  for (std::size_t at = 0; at < numbers.size(); at += columns)
    if (numbers[at] != static_cast<float>(row++)) return false;
  return true;
}

void drop_first_column(std::vector<float>& numbers, std::size_t columns) {
  std::size_t to = 0;
  for (std::size_t at = 0; at < numbers.size(); ++at)
    if (at % columns != 0) numbers[to++] = numbers[at];
  numbers.resize(to);
}

}  // namespace

Tensor parse_number_table(std::string_view bytes, std::string_view name) {
  const std::string text = to_utf8(bytes, name);
  const std::vector<TableRow> rows =
      parse_table(text, extension_of(name) == ".tsv" ? '\t' : ',', name);
  const bool header = !rows.empty() && names_columns(rows[0]);
  const std::size_t first = header ? 1 : 0;
  check_size(static_cast<double>(rows.size() - std::min(first, rows.size())),
             rows.empty() ? 1 : static_cast<double>(rows[0].fields.size()), name);
  std::size_t columns = rows[0].fields.size();
  std::vector<float> numbers;
  numbers.reserve((rows.size() - first) * columns);
  for (std::size_t r = first; r < rows.size(); ++r) append_numbers(rows[r], columns, name, numbers);
  if (header && counts_rows(rows[0].fields[0], numbers, columns))
    drop_first_column(numbers, columns--);
  return Tensor::from(numbers, {static_cast<std::int64_t>(rows.size() - first),
                                static_cast<std::int64_t>(columns)});
}

std::vector<std::string> fasta_names(std::string_view bytes, std::string_view name) {
  std::vector<std::string> out;
  std::set<std::string_view> seen;
  std::int64_t number = 0;
  for (const std::string_view line : split_lines(bytes)) {
    ++number;
    if (!line.starts_with('>')) continue;
    const std::vector<Field> words = split_fields(line.substr(1));
    if (words.empty())
      throw DataError(fmt::format("{}:{}: a sequence without a name", name, number));
    if (!seen.insert(words[0].text).second)
      throw DataError(
          fmt::format("{}:{}: a second sequence {}", name, number, shown(words[0].text)));
    out.emplace_back(words[0].text);
  }
  return out;
}

Tensor parse_fasta(std::string_view bytes, std::string_view name, const std::string& part) {
  const auto lines = sequence_lines(bytes, name, part);
  std::size_t length = 0;
  for (const auto& [line, number] : lines) length += line.size();
  if (length == 0)
    throw DataError(fmt::format("{}: the sequence {} is missing or empty", name, shown(part)));
  Tensor out = Tensor::zeros(DType::kF32, {static_cast<std::int64_t>(length), 4});
  const std::span<float> to = out.span<float>();
  std::size_t at = 0;
  for (const auto& [line, number] : lines)
    for (const char letter : line) {
      const char base = upper(letter) == 'U' ? 'T' : upper(letter);
      const std::size_t column = kBases.find(base);
      if (column != std::string_view::npos)
        to[4 * at + column] = 1;
      else if (kAmbiguous.find(base) == std::string_view::npos)
        throw DataError(fmt::format("{}:{}: {} in a sequence; expected letters of DNA or RNA", name,
                                    number, shown({&letter, 1})));
      ++at;
    }
  return out;
}

}  // namespace segfuse::data
