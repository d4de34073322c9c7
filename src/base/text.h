#pragma once
// Small text tools: suggestions for mistyped names, splitting, and number parsing that can say
// where. Nothing here depends on the locale. Views returned point into the argument.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace segfuse {

/// Least number of insertions, deletions, substitutions and swaps of neighbours that turn `a` into
/// `b`, each place edited once (optimal string alignment). Bytes, not code points.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `name` (the first of equals), or nothing when all are too far off to be
/// meant: more than 2 edits, or a third of the name if that is more. '-' and '_' count as equal.
[[nodiscard]] std::optional<std::string> nearest_match(std::string_view name,
                                                       std::span<const std::string> candidates);

/// "did you mean 'threads'?" or, when nothing is near, "known are 'a', 'b' and 'c'".
std::string suggestion(std::string_view name, std::span<const std::string> candidates);

/// "'a', 'b' and 'c'"; "none" when empty.
std::string quoted_list(std::span<const std::string> names);

/// Without blanks, tabs and line ends at either side.
std::string_view trim(std::string_view text);
/// The pieces between separators, empty ones included: one more than there are separators.
std::vector<std::string_view> split(std::string_view text, char separator);
/// The lines of `text` without their ends (LF or CRLF). A last line without an end counts.
std::vector<std::string_view> split_lines(std::string_view text);
/// The lines point into the text, so it cannot be a temporary one.
template <std::same_as<std::string> Text>
std::vector<std::string_view> split_lines(Text&&) = delete;

/// A word of a line and its place, counted in bytes from 1.
struct Field {
  std::string_view text;
  std::size_t column = 1;
};
/// The words between runs of blanks and tabs.
std::vector<Field> split_fields(std::string_view line);

/// The whole of `text` as a number, or nothing: no blanks around it, no overflow, no nan or
/// infinity. A leading '+' is accepted.
std::optional<double> parse_double(std::string_view text);
std::optional<std::int64_t> parse_int(std::string_view text);

/// Where a line of an input file stands; lines count from 1.
struct LinePosition {
  std::string file;
  std::size_t line = 1;
};
/// Parses one word of a line; throws DataError "file:line:column: expected WHAT, found 'text'".
double number_at(const LinePosition& position, const Field& field, std::string_view what);
std::int64_t integer_at(const LinePosition& position, const Field& field, std::string_view what);

}  // namespace segfuse
