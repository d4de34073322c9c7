// Labels in MAT-files: evsonganaly's .not.mat (onsets and offsets in milliseconds, one character a
// syllable) and SongAnnotationGUI's file with a cell for every recording.

#include <fmt/core.h>

#include <cmath>

#include "base/console/printable.h"
#include "base/text.h"
#include "learn/data/labels/fields.h"
#include "learn/data/labels/mat.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

using Kind = MatValue::Kind;

const MatValue& variable(const std::vector<MatVariable>& all, std::string_view wanted,
                         std::string_view file) {
  for (const MatVariable& found : all)
    if (found.name == wanted) return found.value;
  std::vector<std::string> names;
  for (const MatVariable& found : all) names.push_back(found.name);
  throw DataError(fmt::format("{}: no variable '{}'; the file has {}", file, wanted,
                              shown(quoted_list(names))));
}

const std::vector<double>& numbers_of(const MatValue& value, std::string_view what,
                                      std::string_view file) {
  if (value.kind != Kind::kNumbers)
    throw DataError(fmt::format("{}: {} is not an array of numbers", file, what));
  return value.numbers;
}

/// A whole text; those of several rows are one after another.
std::u32string text_of(const MatValue& value, std::string_view what, std::string_view file) {
  if (value.kind == Kind::kNumbers && value.numbers.empty()) return {};
  if (value.kind != Kind::kText) throw DataError(fmt::format("{}: {} is not text", file, what));
  std::u32string out;
  for (const std::u32string& row : value.rows) out += row;
  return out;
}

std::string number_label(double value) { return fmt::format("{:.15g}", value); }

/// Numbers, texts or characters: a label for every segment.
std::vector<std::string> labels_of(const MatValue& value, std::string_view what,
                                   std::string_view file) {
  std::vector<std::string> out;
  if (value.kind == Kind::kNumbers) {
    for (const double number : value.numbers) out.push_back(number_label(number));
  } else if (value.kind == Kind::kCells) {
    for (const MatValue& cell : value.cells)
      out.push_back(cell.kind == Kind::kNumbers && cell.numbers.size() == 1
                        ? number_label(cell.numbers[0])
                        : utf8_of(text_of(cell, what, file)));
  } else {
    for (const char32_t c : text_of(value, what, file)) out.push_back(utf8_of({&c, 1}));
  }
  return out;
}

RawSegments segments_of(const MatValue& starts, const MatValue& ends,
                        const std::vector<std::string>& labels, double unit,
                        std::string_view file) {
  const std::vector<double>& from = numbers_of(starts, "the onsets", file);
  const std::vector<double>& to = numbers_of(ends, "the offsets", file);
  if (from.size() != to.size() || from.size() != labels.size())
    throw DataError(fmt::format("{}: {} onsets, {} offsets and {} labels; expected as many of each",
                                file, from.size(), to.size(), labels.size()));
  RawSegments out;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto number = static_cast<std::int64_t>(i) + 1;
    if (!std::isfinite(from[i]) || !std::isfinite(to[i]))
      throw DataError(fmt::format("{}:{}: the times of segment {} are {} and {}; expected numbers",
                                  file, number, number, from[i], to[i]));
    out.segments.push_back(
        {from[i] / unit, to[i] / unit, label_in(labels[i], file, number), number});
  }
  sort_by_start(out);
  return out;
}

const MatValue& field(const MatValue& record, const char* name, std::string_view file) {
  const MatValue* found =
      record.kind == Kind::kStructs && record.size() == 1 ? record.field(0, name) : nullptr;
  if (found == nullptr)
    throw DataError(fmt::format("{}: an element has no field '{}'", file, name));
  return *found;
}

}  // namespace

RawLabels read_notmat(const LabelText& file) {
  const std::vector<MatVariable> all = parse_mat(file.bytes, file.name);
  const std::vector<std::string> labels =
      labels_of(variable(all, "labels", file.name), "labels", file.name);
  return segments_of(variable(all, "onsets", file.name), variable(all, "offsets", file.name),
                     labels, 1000, file.name);
}

RawLabels read_yarden(const LabelText& file) {
  const std::vector<MatVariable> all = parse_mat(file.bytes, file.name);
  const MatValue& keys = variable(all, "keys", file.name);
  const MatValue& elements = variable(all, "elements", file.name);
  if (keys.kind != Kind::kCells || elements.kind != Kind::kCells ||
      keys.cells.size() != elements.cells.size())
    throw DataError(fmt::format(
        "{}: 'keys' and 'elements' are not two lists of cells of one length", file.name));
  RawLabels out{RawSegments{}};
  Recordings recordings(file);
  for (std::size_t i = 0; i < keys.cells.size(); ++i) {
    const std::string key = utf8_of(text_of(keys.cells[i], "a key", file.name));
    if (!recordings.wants(key)) continue;
    const MatValue& element = elements.cells[i];
    const RawSegments found = segments_of(
        field(element, "segFileStartTimes", file.name),
        field(element, "segFileEndTimes", file.name),
        labels_of(field(element, "segType", file.name), "segType", file.name), 1, file.name);
    std::vector<LabelSegment>& segments = out.tiers[0].raw.segments;
    segments.insert(segments.end(), found.segments.begin(), found.segments.end());
  }
  out.recordings = recordings.finish(1);
  sort_by_start(out.tiers[0].raw);
  return out;
}

std::string write_notmat(const Annotation& annotation, const LabelOutput& output) {
  std::vector<double> onsets, offsets;
  std::u16string labels;
  for (const LabelSegment& segment : annotation.segments) {
    onsets.push_back(segment.start * 1000);
    offsets.push_back(segment.end * 1000);
    const std::size_t length = segment.label.empty() ? 0 : utf8_length(segment.label, 0);
    if (length != segment.label.size() || length > 1)
      throw UsageError(
          fmt::format("label {} cannot stand in a .not.mat file, whose labels are one character "
                      "each; rename it "
                      "with a folding map, or write a CSV file",
                      shown(segment.label)));
    labels.push_back(static_cast<unsigned char>(segment.label[0]));
  }
  MatWriter mat;
  if (output.sample_rate > 0) mat.add("Fs", std::vector<double>{output.sample_rate});
  mat.add("onsets", onsets);
  mat.add("offsets", offsets);
  mat.add("labels", labels);
  return mat.finish();
}

}  // namespace segfuse::data
