// Tables with a header line: CSV and TSV of several programs, and Raven's selection tables.

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <unordered_map>

#include "base/mutex.h"
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

/// "; it has NAME, NAME".
std::string columns_text(const TableRow& header) {
  constexpr std::size_t kShown = 8;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(kShown, header.fields.size()); ++i)
    names.push_back(shown(header.fields[i]));
  return fmt::format("; it has {}{}", fmt::join(names, ", "),
                     header.fields.size() > kShown ? " and more" : "");
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
  if (!first.fields.empty() && is_number(first.fields[0])) return columns;
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
      throw DataError(fmt::format("{}:{}: no column \"{}\" in the header; expected {}, {} and {}{}",
                                  name, first.line, wanted, names.start, names.end, names.label,
                                  columns_text(first)));
  return columns;
}

void check_fields(const TableRow& row, std::size_t least, std::string_view name) {
  if (row.fields.size() < least)
    throw DataError(fmt::format("{}:{}: {} fields; expected at least {}", name, row.line,
                                row.fields.size(), least));
}

/// Decimal points where a comma may stand for them: in tables of spreadsheets that separate fields
/// by ';'. One table has one kind.
class Decimals {
 public:
  explicit Decimals(char separator) : may_be_comma_(separator == ';') {}

  std::string with_point(const std::string& field, std::string_view name, std::int64_t line) {
    const std::size_t at = field.find_first_of(".,");
    if (!may_be_comma_ || at == std::string::npos || !parse_double(trim(with(field, at))))
      return field;
    if (mark_ != '\0' && mark_ != field[at])
      throw DataError(
          fmt::format("{}:{}: {} has a '{}' before its decimals, and numbers above have a '{}'; "
                      "expected one of them",
                      name, line, shown(field), field[at], mark_));
    mark_ = field[at];
    return with(field, at);
  }

 private:
  static std::string with(std::string field, std::size_t at) {
    field[at] = '.';
    return field;
  }

  bool may_be_comma_;
  char mark_ = '\0';
};

/// Column names of a program, or numbers in a table without a header.
bool is_label_row(const TableRow& row, std::string_view name) {
  if (row.fields.size() < 3) return false;
  if (is_number(row.fields[0])) return is_number(row.fields[1]);
  try {
    return find_columns(row, name).header;
  } catch (const DataError&) {
    return false;
  }
}

/// All labels of a table, with times as they are in it.
struct CsvLabels {
  std::vector<std::string> names;                   ///< of recordings; empty where it has none
  std::vector<std::vector<LabelSegment>> segments;  ///< those of each name, or all
  bool in_samples = false;
  std::int64_t last_line = 1;
};

CsvLabels parse_csv(const LabelText& file) {
  const char separator = find_separator(
      file.bytes, file.name, [&](const TableRow& row) { return is_label_row(row, file.name); });
  const std::vector<TableRow> rows = parse_table(file.bytes, separator, file.name);
  CsvLabels out;
  if (rows.empty()) return out;
  const Columns columns = find_columns(rows[0], file.name);
  out.in_samples = columns.in_samples;
  out.last_line = rows.back().line;
  if (!columns.recording) out.segments.emplace_back();
  std::unordered_map<std::string, std::size_t> places;
  const auto place_of = [&](const TableRow& row) {
    if (!columns.recording) return std::size_t{0};
    const std::string name(trim(row.fields[*columns.recording]));
    const auto [at, fresh] = places.emplace(name, out.names.size());
    if (fresh) {
      out.names.push_back(name);
      out.segments.emplace_back();
    }
    return at->second;
  };
  Decimals decimals(separator);
  const auto number = [&](const TableRow& row, std::size_t column, std::string_view what) {
    return number_in(decimals.with_point(row.fields[column], file.name, row.line), what, file.name,
                     row.line);
  };
  for (std::size_t i = columns.header ? 1 : 0; i < rows.size(); ++i) {
    const TableRow& row = rows[i];
    check_fields(row, columns.last() + 1, file.name);
    const std::string& first = row.fields[columns.start];
    if (columns.declares && (trim(first).empty() || lower(trim(first)) == "nan")) continue;
    // Quoted fields keep blanks.
    std::string label = label_in(csv_text(trim(row.fields[columns.label])), file.name, row.line);
    const double start = number(row, columns.start, "the start");
    const double end = number(row, columns.end, "the end");
    out.segments[place_of(row)].push_back({start, end, std::move(label), row.line});
  }
  return out;
}

/// A table of many recordings is read for each of them, so the last such table is kept.
class KeptTable {
 public:
  std::shared_ptr<const CsvLabels> of(const LabelText& file) {
    {
      const MutexLock lock(mutex_);
      if (labels_ && name_ == file.name && text_ == file.bytes) return labels_;
    }
    auto labels = std::make_shared<const CsvLabels>(parse_csv(file));
    if (labels->names.size() < 2) return labels;
    const MutexLock lock(mutex_);
    name_ = file.name;
    text_ = file.bytes;
    labels_ = labels;
    return labels;
  }

 private:
  Mutex mutex_;
  std::string name_ SEGFUSE_GUARDED_BY(mutex_), text_ SEGFUSE_GUARDED_BY(mutex_);
  std::shared_ptr<const CsvLabels> labels_ SEGFUSE_GUARDED_BY(mutex_);
};

}  // namespace

RawLabels read_csv(const LabelText& file) {
  static KeptTable kept;
  const std::shared_ptr<const CsvLabels> labels = kept.of(file);
  RawLabels out{RawSegments{}};
  const double rate = labels->in_samples ? rate_of(file) : 1;
  const auto take = [&](std::size_t place) {
    for (const LabelSegment& s : labels->segments[place])
      out.tiers[0].raw.segments.push_back({s.start / rate, s.end / rate, s.label, s.line});
  };
  bool found = labels->names.empty() && !labels->segments.empty();
  if (found) take(0);
  if (!found && !file.inspect && !file.options.recording.empty())
    if (const std::optional<std::size_t> place = find_recording(labels->names, file)) {
      take(*place);
      found = true;
    }
  if (!found) {  // all, or what is wrong with their names
    Recordings recordings(file);
    for (std::size_t i = 0; i < labels->names.size(); ++i)
      if (recordings.wants(labels->names[i])) take(i);
    out.recordings = recordings.finish(labels->last_line);
  }
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
