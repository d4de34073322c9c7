// Tables with a header line: CSV and TSV of several programs, and Raven's selection tables.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/text.h"
#include "learn/data/labels/fields.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

/// How a program names its columns.
struct Naming {
  std::string_view start, end, label;
  bool in_samples = false;
};

constexpr std::array kNamings = {
    Naming{"start", "end", "label"},
    Naming{"onset_s", "offset_s", "label"},
    Naming{"start_seconds", "stop_seconds", "name"},  // DAS
    Naming{"onset", "offset", "cluster"},
    Naming{"onset_sample", "offset_sample", "label", true},
    Naming{"onset_ind", "offset_ind", "label", true},
};

constexpr std::size_t kDasTable = 2;

std::optional<std::size_t> find_column(const TableRow& header, std::string_view name,
                                       std::size_t from = 0) {
  for (std::size_t i = from; i < header.fields.size(); ++i)
    if (lower(header.fields[i]) == name) return i;
  return std::nullopt;
}

/// " with ';' between its fields" of a header that is one field because of it.
std::string other_separator(const TableRow& header) {
  if (header.fields.size() != 1) return "";
  if (header.fields[0].find(';') != std::string::npos) return " with ';' between its fields";
  return header.fields[0].find('\t') != std::string::npos ? " with tabs between its fields" : "";
}

struct Columns {
  std::size_t start = 0, end = 1, label = 2;
  bool header = false;
  bool in_samples = false;
  bool declares = false;                 ///< a row without a start names a label and no segment
  std::optional<std::size_t> recording;  ///< the file that the labels are of
  std::size_t last() const { return std::max({start, end, label, recording.value_or(0)}); }
};

Columns find_columns(const TableRow& first, std::string_view name) {
  Columns columns;
  if (!first.fields.empty() && parse_double(first.fields[0])) return columns;
  columns.header = true;
  std::size_t nearest = 0;
  int most = -1;
  for (std::size_t i = 0; i < kNamings.size(); ++i) {
    const Naming& names = kNamings[i];
    const std::array found = {find_column(first, names.start), find_column(first, names.end),
                              find_column(first, names.label)};
    const int count = static_cast<int>(
        std::ranges::count_if(found, [](const auto& column) { return column.has_value(); }));
    if (count == 3) {
      for (const std::string_view wanted : {names.start, names.end, names.label})
        if (find_column(first, wanted, *find_column(first, wanted) + 1))
          throw DataError(fmt::format("{}:{}: two columns \"{}\" in the header; expected one", name,
                                      first.line, wanted));
      columns.start = *found[0];
      columns.end = *found[1];
      columns.label = *found[2];
      columns.in_samples = names.in_samples;
      columns.declares = i == kDasTable;
      columns.recording = find_column(first, "notated_path");
      if (!columns.recording) columns.recording = find_column(first, "audio_path");
      return columns;
    }
    if (count > most) nearest = i;
    most = std::max(most, count);
  }
  const Naming& names = kNamings[nearest];
  for (const std::string_view wanted : {names.start, names.end, names.label})
    if (!find_column(first, wanted))
      throw DataError(fmt::format("{}:{}: no column \"{}\" in the header{}; expected {}, {} and {}",
                                  name, first.line, wanted, other_separator(first), names.start,
                                  names.end, names.label));
  return columns;
}

void check_fields(const TableRow& row, std::size_t least, std::string_view name) {
  if (row.fields.size() < least)
    throw DataError(fmt::format("{}:{}: {} fields; expected at least {}", name, row.line,
                                row.fields.size(), least));
}

char separator_of(std::string_view name) { return extension_of(name) == ".tsv" ? '\t' : ','; }

}  // namespace

RawLabels read_csv(const LabelText& file) {
  const std::vector<TableRow> rows = parse_table(file.bytes, separator_of(file.name), file.name);
  RawLabels out{RawSegments{}};
  if (rows.empty()) return out;
  const Columns columns = find_columns(rows[0], file.name);
  const double rate = columns.in_samples ? rate_of(file) : 1;
  Recordings recordings(file);
  for (std::size_t i = columns.header ? 1 : 0; i < rows.size(); ++i) {
    const TableRow& row = rows[i];
    check_fields(row, columns.last() + 1, file.name);
    const std::string& first = row.fields[columns.start];
    if (columns.declares && (trim(first).empty() || lower(trim(first)) == "nan")) continue;
    // Quoted fields keep blanks.
    std::string label = label_in(csv_text(trim(row.fields[columns.label])), file.name, row.line);
    const double start = number_in(first, "the start", file.name, row.line);
    const double end = number_in(row.fields[columns.end], "the end", file.name, row.line);
    if (columns.recording && !recordings.wants(trim(row.fields[*columns.recording]))) continue;
    out.tiers[0].raw.segments.push_back({start / rate, end / rate, std::move(label), row.line});
  }
  out.recordings = recordings.finish(rows.back().line);
  sort_by_start(out.tiers[0].raw);
  return out;
}

namespace {

/// A selection table with its columns found.
class RavenReader {
 public:
  explicit RavenReader(const LabelText& file)
      : file_(file), rows_(parse_table(file.bytes, '\t', file.name)) {
    if (rows_.empty()) throw DataError(fmt::format("{}:1: no header line", file.name));
    begin_ = needed("begin time (s)");
    end_ = needed("end time (s)");
    selection_ = find_column(rows_[0], "selection");
    view_ = find_column(rows_[0], "view");
    recording_ = find_column(rows_[0], "begin file");
    if (!recording_) recording_ = find_column(rows_[0], "begin path");
    offset_ = find_column(rows_[0], "file offset (s)");
    find_texts();
  }

  RawLabels read() const {
    RawLabels out;
    for (const std::size_t column : texts_) out.tiers.push_back({rows_[0].fields[column], {}});
    Recordings recordings(file_);
    std::string view;
    for (std::size_t i = 1; i < rows_.size(); ++i) {
      const TableRow& row = rows_[i];
      check_fields(row, rows_[0].fields.size(), file_.name);
      // The same selections stand once for every view.
      if (view_ && i == 1) view = row.fields[*view_];
      if (view_ && selection_ && row.fields[*view_] != view) continue;
      if (recording_ && !recordings.wants(row.fields[*recording_])) continue;
      add(row, out);
    }
    out.recordings = recordings.finish(rows_.back().line);
    for (RawTier& tier : out.tiers) sort_by_start(tier.raw);
    return out;
  }

 private:
  std::size_t needed(std::string_view name) const {
    const std::optional<std::size_t> column = find_column(rows_[0], name);
    if (!column)
      throw DataError(
          fmt::format("{}:{}: no column \"{}\" in the header; is this a selection table of Raven?",
                      file_.name, rows_[0].line, name));
    return *column;
  }

  /// What Raven itself fills in has a unit, or one of these names.
  static bool is_measure(std::string_view column) {
    constexpr std::array kOwn = {"selection",  "view",       "channel",
                                 "begin file", "end file",   "begin path",
                                 "end path",   "begin date", "begin clock time"};
    const std::string name = lower(column);
    return name.empty() || name.ends_with(')') || std::ranges::find(kOwn, name) != kOwn.end();
  }

  void find_texts() {
    const std::vector<std::string>& header = rows_[0].fields;
    std::vector<std::size_t> first, rest;
    for (std::size_t i = 0; i < header.size(); ++i) {
      if (is_measure(header[i])) continue;
      const std::string name = lower(header[i]);
      const bool usual = name == "annotation" || name == "label" || name == "species";
      (usual ? first : rest).push_back(i);
    }
    texts_ = first;
    texts_.insert(texts_.end(), rest.begin(), rest.end());
    if (texts_.empty())
      throw DataError(
          fmt::format("{}:{}: no column with labels in the header, such as \"Annotation\"",
                      file_.name, rows_[0].line));
  }

  void add(const TableRow& row, RawLabels& out) const {
    double begin = number_in(row.fields[begin_], "the begin time", file_.name, row.line);
    double end = number_in(row.fields[end_], "the end time", file_.name, row.line);
    if (recording_ && offset_) {  // else the times are those of one file
      const double offset =
          number_in(row.fields[*offset_], "the file offset", file_.name, row.line);
      end = offset + (end - begin);
      begin = offset;
    }
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      const std::string_view label = trim(row.fields[texts_[i]]);
      out.tiers[i].raw.segments.push_back({begin, end, std::string(label), row.line});
    }
  }

  const LabelText& file_;
  std::vector<TableRow> rows_;
  std::size_t begin_ = 0, end_ = 0;
  std::optional<std::size_t> selection_, view_, recording_, offset_;
  std::vector<std::size_t> texts_;  // candidates for labels, the most probable first
};

}  // namespace

RawLabels read_raven(const LabelText& file) { return RavenReader(file).read(); }

}  // namespace segfuse::data
