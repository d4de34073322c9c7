#include <fmt/core.h>

#include <cmath>

#include "base/os/file.h"
#include "base/text.h"
#include "learn/data/labels/parsers.h"
#include "learn/data/text.h"
#include "segfuse/data.h"
#include "segfuse/error.h"

namespace segfuse {
namespace data {
namespace {

constexpr double kRounding = 1e-6;  // seconds
constexpr double kLongest = 1e9;    // seconds; more is a broken file, and keeps sums exact

bool has_hash_line(std::string_view text) {
  for (const std::string_view line : split_lines(text))
    if (trim(line) == "#") return true;
  return false;
}

LabelFormat format_of(std::string_view name) {
  const std::string extension = extension_of(name);
  if (extension == ".phn" || extension == ".wrd") return LabelFormat::kPhn;
  if (extension == ".lab") return LabelFormat::kFestvox;
  if (extension == ".textgrid") return LabelFormat::kTextGrid;
  if (extension == ".csv" || extension == ".tsv") return LabelFormat::kCsv;
  if (extension == ".txt") return LabelFormat::kAudacity;
  throw UsageError(fmt::format(
      "{}: the extension does not say which label format this is; known are .phn .wrd .lab "
      ".TextGrid .csv .tsv .txt",
      name));
}

RawSegments parse(std::string_view text, std::string_view name, const LabelOptions& options) {
  LabelFormat format = options.format;
  if (format == LabelFormat::kAuto) {
    format = format_of(name);
    if (extension_of(name) == ".lab" && !has_hash_line(text)) format = LabelFormat::kHtk;
  }
  switch (format) {
    case LabelFormat::kPhn: return parse_phn(text, name, options.sample_rate);
    case LabelFormat::kFestvox: return parse_festvox(text, name);
    case LabelFormat::kHtk: return parse_htk(text, name);
    case LabelFormat::kAudacity: return parse_audacity(text, name);
    case LabelFormat::kTextGrid: return parse_textgrid(text, name, options.tier);
    default: return parse_csv(text, name, extension_of(name) == ".tsv" ? '\t' : ',');
  }
}

/// Puts the fill label over [start, end) or refuses the gap.
void fill_gap(std::vector<LabelSegment>& out, double start, double end, std::int64_t line,
              std::string_view name, const std::optional<std::string>& fill_label) {
  if (!fill_label)
    throw DataError(fmt::format(
        "{}:{}: no label between {} s and {} s; segments must follow each other without gap, or "
        "name a label to fill gaps with",
        name, line, format_seconds(start), format_seconds(end)));
  out.push_back({start, end, *fill_label, line});
}

}  // namespace

Annotation make_contiguous(RawSegments raw, std::string_view name,
                           const std::optional<std::string>& fill_label) {
  Annotation out;
  out.source = name;
  double at = raw.begin;
  std::int64_t line = 1;
  if (raw.begin < 0 || raw.end.value_or(0) > kLongest)
    throw DataError(fmt::format("{}: times from {} s to {} s; they must lie between 0 and {} s",
                                name, raw.begin, raw.end.value_or(0), kLongest));
  for (LabelSegment& segment : raw.segments) {
    line = segment.line;
    if (segment.start < -kRounding || segment.end > kLongest)
      throw DataError(
          fmt::format("{}:{}: segment from {} s to {} s; times must lie between 0 and {} s", name,
                      line, segment.start, segment.end, kLongest));
    if (segment.end <= segment.start)
      throw DataError(fmt::format("{}:{}: segment {} ends at {} s, not after its start at {} s",
                                  name, line, shown(segment.label), format_seconds(segment.end),
                                  format_seconds(segment.start)));
    if (segment.start < at - kRounding)
      throw DataError(fmt::format(
          "{}:{}: segment {} starts at {} s, before the one above it ends at {} s", name, line,
          shown(segment.label), format_seconds(segment.start), format_seconds(at)));
    if (segment.label.empty()) continue;  // becomes a gap
    if (segment.start > at + kRounding)
      fill_gap(out.segments, at, segment.start, line, name, fill_label);
    else
      segment.start = at;
    if (segment.end <= segment.start)
      throw DataError(fmt::format("{}:{}: segment {} is shorter than a microsecond", name, line,
                                  shown(segment.label)));
    at = segment.end;
    out.segments.push_back(std::move(segment));
  }
  if (raw.end && *raw.end > at + kRounding) {
    fill_gap(out.segments, at, *raw.end, line, name, fill_label);
    at = *raw.end;
  }
  if (out.segments.empty())
    throw DataError(fmt::format("{}:{}: no segments found; expected at least one", name, line));
  out.duration = at;
  return out;
}

std::vector<std::string> label_tiers(const std::filesystem::path& path) {
  if (extension_of(path.string()) != ".textgrid") return {};
  return textgrid_tiers(to_utf8(read_file(path), path.string()), path.string());
}

}  // namespace data

Annotation parse_labels(std::string_view bytes, std::string_view name,
                        const LabelOptions& options) {
  const std::string text = data::to_utf8(bytes, name);
  return data::make_contiguous(data::parse(text, name, options), name, options.fill_label);
}

Annotation read_labels(const std::filesystem::path& path, const LabelOptions& options) {
  return parse_labels(read_file(path), path.string(), options);
}

void write_labels(const std::filesystem::path& path, const Annotation& annotation,
                  const LabelOutput& output) {
  LabelOutput chosen = output;
  if (chosen.format == LabelFormat::kAuto) chosen.format = data::format_of(path.string());
  write_file_atomically(path, format_labels(annotation, chosen));
}

}  // namespace segfuse
