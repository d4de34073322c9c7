// The line-based formats and tables.

#include <fmt/format.h>

#include <cmath>

#include "learn/data/labels/fields.h"

namespace segfuse::data {
namespace {

std::string integer_lines(const Annotation& annotation, double unit) {
  std::string out;
  for (const LabelSegment& segment : annotation.segments)
    out += fmt::format("{} {} {}\n", std::llround(segment.start * unit),
                       std::llround(segment.end * unit), plain_label(segment, " \t\r\n"));
  return out;
}

/// Rows of a CSV file that has the three columns in some order and others behind them.
template <class Row>
std::string csv_table(const Annotation& annotation, std::string_view header, Row row) {
  std::string out(header);
  out += "\n";
  for (std::size_t i = 0; i < annotation.segments.size(); ++i)
    out += row(annotation.segments[i], i) + "\n";
  return out;
}

/// With a decimal point: crowsetta refuses columns of times that are all whole numbers.
std::string with_decimals(double number) {
  std::string out = format_seconds(number);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

std::string file_name(const LabelOutput& output) {
  return std::filesystem::path(output.recording).filename().string();
}

}  // namespace

std::string write_phn(const Annotation& annotation, const LabelOutput& output) {
  return integer_lines(annotation, rate_of(output, ".phn"));
}

std::string write_htk(const Annotation& annotation, const LabelOutput&) {
  return integer_lines(annotation, 1e7);
}

std::string write_festvox(const Annotation& annotation, const LabelOutput&) {
  std::string out = "#\n";
  for (const LabelSegment& segment : annotation.segments)
    out +=
        fmt::format("{} 125 {}\n", format_seconds(segment.end), plain_label(segment, " \t\r\n;"));
  return out;
}

std::string write_audacity(const Annotation& annotation, const LabelOutput&) {
  std::string out;
  for (const LabelSegment& segment : annotation.segments)
    out += fmt::format("{}\t{}\t{}\n", with_decimals(segment.start), with_decimals(segment.end),
                       plain_label(segment, "\t\r\n"));
  return out;
}

std::string write_ctm(const Annotation& annotation, const LabelOutput& output) {
  const std::string name = plain_name(output, "recording", " \t\r\n\v\f");
  if (name.starts_with(";;")) refuse_name(name);  // a comment
  std::string out;
  for (const LabelSegment& segment : annotation.segments)
    out +=
        fmt::format("{} 1 {} {} {}\n", name, format_seconds(segment.start),
                    format_seconds(segment.end - segment.start), plain_label(segment, " \t\r\n"));
  return out;
}

std::string write_csv(const Annotation& annotation, const LabelOutput& output) {
  std::string header = "start,end,label";
  for (const SegmentColumn& column : output.columns) header += "," + csv_field(column.name);
  return csv_table(annotation, header, [&](const LabelSegment& segment, std::size_t i) {
    std::string row = fmt::format("{},{},{}", format_seconds(segment.start),
                                  format_seconds(segment.end), csv_field(segment.label));
    for (const SegmentColumn& column : output.columns)
      row += fmt::format(",{:.6g}", column.values[i]);
    return row;
  });
}

std::string write_simple_seq(const Annotation& annotation, const LabelOutput&) {
  return csv_table(annotation, "onset_s,offset_s,label", [](const LabelSegment& s, std::size_t) {
    return fmt::format("{},{},{}", with_decimals(s.start), with_decimals(s.end),
                       csv_field(s.label));
  });
}

std::string write_generic_seq(const Annotation& annotation, const LabelOutput& output) {
  const std::string name = csv_field(file_name(output));
  return csv_table(annotation, "label,onset_s,offset_s,notated_path,annot_path,sequence,annotation",
                   [&](const LabelSegment& s, std::size_t) {
                     return fmt::format("{},{},{},{},{},0,0", csv_field(s.label),
                                        with_decimals(s.start), with_decimals(s.end), name, name);
                   });
}

std::string write_das(const Annotation& annotation, const LabelOutput&) {
  return csv_table(annotation, "name,start_seconds,stop_seconds",
                   [](const LabelSegment& s, std::size_t) {
                     return fmt::format("{},{},{}", csv_field(s.label), format_seconds(s.start),
                                        format_seconds(s.end));
                   });
}

std::string write_whisperseg(const Annotation& annotation, const LabelOutput&) {
  return csv_table(annotation, "onset,offset,cluster", [](const LabelSegment& s, std::size_t) {
    return fmt::format("{},{},{}", format_seconds(s.start), format_seconds(s.end),
                       csv_field(s.label));
  });
}

std::string write_raven(const Annotation& annotation, const LabelOutput& output) {
  std::string out =
      "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)\t"
      "Annotation\n";
  for (std::size_t i = 0; i < annotation.segments.size(); ++i) {
    const LabelSegment& segment = annotation.segments[i];
    out += fmt::format("{}\tSpectrogram 1\t1\t{}\t{}\t0.0\t{}\t{}\n", i + 1,
                       with_decimals(segment.start), with_decimals(segment.end),
                       with_decimals(output.sample_rate / 2), plain_label(segment, "\t\r\n"));
  }
  return out;
}

}  // namespace segfuse::data
