#include <fmt/format.h>

#include <cmath>

#include "learn/data/labels/parsers.h"
#include "learn/data/text.h"
#include "segfuse/data.h"
#include "segfuse/error.h"

namespace segfuse {
namespace data {
namespace {

/// Formats whose fields end at white space cannot hold it inside a label.
const std::string& plain_label(const LabelSegment& segment, std::string_view separators) {
  if (segment.label.empty() || segment.label.find_first_of(separators) != std::string::npos)
    throw UsageError(fmt::format(
        "label {} cannot stand in this label format; write a TextGrid or a CSV file instead",
        shown(segment.label)));
  return segment.label;
}

std::string format_integers(const Annotation& annotation, double unit) {
  std::string out;
  for (const LabelSegment& segment : annotation.segments)
    out += fmt::format("{} {} {}\n", std::llround(segment.start * unit),
                       std::llround(segment.end * unit), plain_label(segment, " \t\r\n"));
  return out;
}

std::string format_festvox(const Annotation& annotation) {
  std::string out = "#\n";
  for (const LabelSegment& segment : annotation.segments)
    out +=
        fmt::format("{} 125 {}\n", format_seconds(segment.end), plain_label(segment, " \t\r\n;"));
  return out;
}

std::string format_audacity(const Annotation& annotation) {
  std::string out;
  for (const LabelSegment& segment : annotation.segments)
    out += fmt::format("{}\t{}\t{}\n", format_seconds(segment.start), format_seconds(segment.end),
                       plain_label(segment, "\t\r\n"));
  return out;
}

std::string format_csv(const Annotation& annotation, const std::vector<SegmentColumn>& columns) {
  std::string out = "start,end,label";
  for (const SegmentColumn& column : columns) out += "," + csv_field(column.name);
  out += "\n";
  for (std::size_t i = 0; i < annotation.segments.size(); ++i) {
    const LabelSegment& segment = annotation.segments[i];
    out += fmt::format("{},{},{}", format_seconds(segment.start), format_seconds(segment.end),
                       csv_field(segment.label));
    for (const SegmentColumn& column : columns) out += fmt::format(",{:.6g}", column.values[i]);
    out += "\n";
  }
  return out;
}

}  // namespace
}  // namespace data

std::string format_labels(const Annotation& annotation, const LabelOutput& output) {
  for (const SegmentColumn& column : output.columns)
    if (column.values.size() != annotation.segments.size())
      throw UsageError(fmt::format("column {} has {} values for {} segments",
                                   data::shown(column.name), column.values.size(),
                                   annotation.segments.size()));
  switch (output.format) {
    case LabelFormat::kPhn:
      if (!(output.sample_rate > 0))
        throw UsageError("a .phn file counts samples; the sample rate is needed to write it");
      return data::format_integers(annotation, output.sample_rate);
    case LabelFormat::kHtk: return data::format_integers(annotation, 1e7);
    case LabelFormat::kFestvox: return data::format_festvox(annotation);
    case LabelFormat::kAudacity: return data::format_audacity(annotation);
    case LabelFormat::kTextGrid: return data::format_textgrid(annotation, output);
    case LabelFormat::kCsv: return data::format_csv(annotation, output.columns);
    default: throw UsageError("no label format was chosen");
  }
}

}  // namespace segfuse
