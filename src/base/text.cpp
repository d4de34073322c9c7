#include "base/text.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "segfuse/error.h"

namespace segfuse {
namespace {

constexpr std::string_view kBlanks = " \t\r\n\v\f";

std::string with_underscores(std::string_view name) {
  std::string result(name);
  std::replace(result.begin(), result.end(), '-', '_');
  return result;
}

template <class T>
std::optional<T> parse_whole(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

template <class T>
T value_at(const std::optional<T>& value, const LinePosition& position, const Field& field,
           std::string_view what) {
  if (value) return *value;
  throw DataError(fmt::format("{}:{}:{}: expected {}, found '{}'", position.file, position.line,
                              field.column, what, field.text));
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::optional<std::string> nearest_match(std::string_view name,
                                         std::span<const std::string> candidates) {
  const std::string wanted = with_underscores(name);
  std::size_t least = std::max<std::size_t>(2, name.size() / 3) + 1;
  std::optional<std::string> nearest;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(wanted, with_underscores(candidate));
    // A short candidate can be reached from anything by rewriting it whole.
    if (distance >= least || distance >= candidate.size()) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

std::string suggestion(std::string_view name, std::span<const std::string> candidates) {
  if (const auto nearest = nearest_match(name, candidates))
    return fmt::format("did you mean '{}'?", *nearest);
  return fmt::format("known are {}", quoted_list(candidates));
}

std::string quoted_list(std::span<const std::string> names) {
  if (names.empty()) return "none";
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " and " : ", ";
    text += "'" + names[i] + "'";
  }
  return text;
}

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  while (true) {
    const std::size_t end = text.find(separator);
    pieces.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return pieces;
    text.remove_prefix(end + 1);
  }
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  if (text.empty()) return lines;
  if (text.ends_with('\n')) text.remove_suffix(1);
  lines = split(text, '\n');
  for (std::string_view& line : lines)
    if (line.ends_with('\r')) line.remove_suffix(1);
  return lines;
}

std::vector<Field> split_fields(std::string_view line) {
  std::vector<Field> fields;
  for (std::size_t begin = line.find_first_not_of(kBlanks); begin != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBlanks, begin), line.size());
    fields.push_back({line.substr(begin, end - begin), begin + 1});
    begin = line.find_first_not_of(kBlanks, end);
  }
  return fields;
}

std::optional<double> parse_double(std::string_view text) {
  const std::optional<double> value = parse_whole<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<std::int64_t> parse_int(std::string_view text) {
  return parse_whole<std::int64_t>(text);
}

double number_at(const LinePosition& position, const Field& field, std::string_view what) {
  return value_at(parse_double(field.text), position, field, what);
}

std::int64_t integer_at(const LinePosition& position, const Field& field, std::string_view what) {
  return value_at(parse_int(field.text), position, field, what);
}

}  // namespace segfuse
