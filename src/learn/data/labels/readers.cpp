// The line-based label formats.

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "learn/data/labels/parsers.h"
#include "learn/data/text.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

/// A field between tabs or commas as a number.
double number_in(std::string_view field, std::string_view what, std::string_view name,
                 std::int64_t line) {
  const std::optional<double> value = parse_double(trim(field));
  if (!value)
    throw DataError(
        fmt::format("{}:{}: {} is {}; expected a number", name, line, what, shown(field)));
  return *value;
}

std::int64_t integer_in(std::string_view field, std::string_view what, std::string_view name,
                        std::int64_t line) {
  const std::optional<std::int64_t> value = parse_int(field);
  if (!value)
    throw DataError(
        fmt::format("{}:{}: {} is {}; expected a whole number", name, line, what, shown(field)));
  return *value;
}

/// Calls visit(text, number) for each line that is not blank; numbers count from 1.
template <class Visit>
void for_lines(std::string_view text, Visit visit) {
  std::int64_t number = 0;
  for (const std::string_view line : split_lines(text)) {
    ++number;
    if (!trim(line).empty()) visit(line, number);
  }
}

/// Lines "start end label" with whole numbers, `unit` of them a second. Fields beyond the third are
/// refused unless `more` allows them.
RawSegments parse_integer_lines(std::string_view text, std::string_view name, double unit,
                                bool more) {
  RawSegments out;
  for_lines(text, [&](std::string_view line, std::int64_t number) {
    const std::vector<Field> fields = split_fields(line);
    if (fields.size() < 3 || (fields.size() > 3 && !more))
      throw DataError(fmt::format("{}:{}: {} fields; expected \"start end label\"", name, number,
                                  fields.size()));
    const std::int64_t start = integer_in(fields[0].text, "the start", name, number);
    const std::int64_t end = integer_in(fields[1].text, "the end", name, number);
    out.segments.push_back({static_cast<double>(start) / unit, static_cast<double>(end) / unit,
                            std::string(fields[2].text), number});
  });
  return out;
}

struct CsvColumns {
  std::size_t start = 0, end = 1, label = 2;
  bool header = false;
  std::size_t last() const { return std::max({start, end, label}); }
};

CsvColumns find_columns(const TableRow& first, std::string_view name) {
  CsvColumns columns;
  if (!first.fields.empty() && parse_double(first.fields[0])) return columns;
  columns.header = true;
  const auto find = [&](std::string_view wanted) {
    for (std::size_t i = 0; i < first.fields.size(); ++i)
      if (lower(first.fields[i]) == wanted) return i;
    throw DataError(
        fmt::format("{}:{}: no column \"{}\" in the header; expected start, end and label", name,
                    first.line, wanted));
  };
  columns.start = find("start");
  columns.end = find("end");
  columns.label = find("label");
  return columns;
}

void refuse_empty(std::string_view label, std::string_view name, std::int64_t line) {
  if (label.empty()) throw DataError(fmt::format("{}:{}: the label is empty", name, line));
}

}  // namespace

RawSegments parse_phn(std::string_view text, std::string_view name, double sample_rate) {
  if (!(sample_rate > 0))
    throw UsageError(
        fmt::format("{}: its times count samples; the sample rate of the audio is needed", name));
  return parse_integer_lines(text, name, sample_rate, false);
}

RawSegments parse_htk(std::string_view text, std::string_view name) {
  return parse_integer_lines(text, name, 1e7, true);
}

RawSegments parse_festvox(std::string_view text, std::string_view name) {
  RawSegments out;
  bool in_header = true;
  double start = 0;
  for_lines(text, [&](std::string_view line, std::int64_t number) {
    if (in_header) {
      in_header = trim(line) != "#";
      return;
    }
    const std::vector<Field> fields = split_fields(line);
    if (fields.size() < 3 || (fields.size() > 3 && !fields[3].text.starts_with(';')))
      throw DataError(fmt::format("{}:{}: {} fields; expected \"end number label\"", name, number,
                                  fields.size()));
    const double end = number_in(fields[0].text, "the end time", name, number);
    number_in(fields[1].text, "the second field", name, number);
    std::string_view label = fields[2].text;
    if (label.size() > 1 && label.ends_with(';')) label.remove_suffix(1);
    out.segments.push_back({start, end, std::string(label), number});
    start = end;
  });
  if (in_header)
    throw DataError(
        fmt::format("{}: no line \"#\" that ends the header; is this a festvox label file?", name));
  return out;
}

RawSegments parse_audacity(std::string_view text, std::string_view name) {
  RawSegments out;
  for_lines(text, [&](std::string_view line, std::int64_t number) {
    if (line.starts_with('\\')) return;  // the frequency range of the label above
    const std::vector<std::string_view> fields = split(line, '\t');
    if (fields.size() != 3)
      throw DataError(fmt::format("{}:{}: {} fields between tabs; expected start, end, label", name,
                                  number, fields.size()));
    const std::string_view label = trim(fields[2]);
    refuse_empty(label, name, number);
    out.segments.push_back({number_in(fields[0], "the start", name, number),
                            number_in(fields[1], "the end", name, number), std::string(label),
                            number});
  });
  return out;
}

RawSegments parse_csv(std::string_view text, std::string_view name, char separator) {
  const std::vector<TableRow> rows = parse_table(text, separator, name);
  RawSegments out;
  if (rows.empty()) return out;
  const CsvColumns columns = find_columns(rows[0], name);
  for (std::size_t i = columns.header ? 1 : 0; i < rows.size(); ++i) {
    const TableRow& row = rows[i];
    if (row.fields.size() <= columns.last())
      throw DataError(fmt::format("{}:{}: {} fields; expected at least {}", name, row.line,
                                  row.fields.size(), columns.last() + 1));
    const std::string label(
        csv_text(trim(row.fields[columns.label])));  // quoted fields keep blanks
    refuse_empty(label, name, row.line);
    out.segments.push_back({number_in(row.fields[columns.start], "the start", name, row.line),
                            number_in(row.fields[columns.end], "the end", name, row.line), label,
                            row.line});
  }
  return out;
}

}  // namespace segfuse::data
