#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "base/console/printable.h"
#include "base/os/file.h"
#include "learn/data/labels/fields.h"
#include "learn/data/labels/parsers.h"
#include "learn/data/text.h"
#include "segfuse/error.h"

namespace segfuse {
namespace data {
namespace {

constexpr double kRounding = 1e-6;  // seconds
constexpr double kLongest = 1e9;    // seconds; more is a broken file, and keeps sums exact

bool is_utf8(std::string_view text) {
  std::size_t length = 0;
  for (std::size_t at = 0; at < text.size(); at += length)
    if ((length = utf8_length(text, at)) == 0) return false;
  return true;
}

/// Text is converted; a reader then gets views that live as long as `converted`.
RawLabels read(const LabelFormatRow& row, std::string_view bytes, std::string_view name,
               const LabelOptions& options, bool inspect) {
  if (row.binary) return row.read({bytes, name, options, inspect});
  const std::string text = to_utf8(bytes, name);
  return row.read({text, name, options, inspect});
}

const LabelFormatRow& row_of(LabelFormat format, std::string_view bytes, std::string_view name) {
  return format == LabelFormat::kAuto ? recognise(name, bytes) : format_row(format);
}

/// The segments of all tiers, by their starts.
RawSegments joined(std::vector<RawTier> tiers) {
  RawSegments out;
  for (RawTier& tier : tiers)
    out.segments.insert(out.segments.end(), std::make_move_iterator(tier.raw.segments.begin()),
                        std::make_move_iterator(tier.raw.segments.end()));
  std::ranges::stable_sort(out.segments, {}, &LabelSegment::start);
  return out;
}

RawSegments choose_tier(RawLabels labels, const std::string& tier, std::string_view name) {
  if (tier.empty() && labels.tiers_are_one) return joined(std::move(labels.tiers));
  std::vector<std::string> seen;
  for (RawTier& found : labels.tiers) {
    if (tier.empty() ? found.intervals : found.name == tier) {
      const auto is_twin = [&](const RawTier& other) {
        return other.name == found.name && other.intervals == found.intervals;
      };
      if (std::ranges::count_if(labels.tiers, is_twin) > 1)
        throw DataError(fmt::format("{}: two tiers are called {}; rename one of them", name,
                                    shown(found.name)));
      if (!found.intervals)
        throw DataError(
            fmt::format("{}: tier {} holds points; an interval tier is needed", name, shown(tier)));
      return std::move(found.raw);
    }
    seen.push_back(shown(found.name));
  }
  if (tier.empty())
    throw DataError(fmt::format("{}: no interval tier among {} tiers", name, labels.tiers.size()));
  throw DataError(fmt::format("{}: no tier {}; the file has {}", name, shown(tier),
                              seen.empty() ? "none" : fmt::format("{}", fmt::join(seen, ", "))));
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
    if (segment.label.find('\0') != std::string::npos)
      throw DataError(fmt::format("{}:{}: the label {} holds a NUL character", name, line,
                                  shown(segment.label)));
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

}  // namespace data

Annotation parse_labels(std::string_view bytes, std::string_view name,
                        const LabelOptions& options) {
  const data::LabelFormatRow& row = data::row_of(options.format, bytes, name);
  data::RawLabels labels = data::read(row, bytes, name, options, false);
  const bool has_tiers = !row.info.tiers.empty() && !row.info.endings_are_tiers;
  const std::string tier = has_tiers ? options.tier : "";
  return data::make_contiguous(data::choose_tier(std::move(labels), tier, name), name,
                               options.fill_label);
}

Annotation read_labels(const std::filesystem::path& path, const LabelOptions& options) {
  return parse_labels(read_file(path), path.string(), options);
}

LabelContents inspect_label_text(std::string_view bytes, std::string_view name,
                                 const LabelOptions& options) {
  const data::LabelFormatRow& row = data::row_of(options.format, bytes, name);
  data::RawLabels labels = data::read(row, bytes, name, options, true);
  LabelContents out{row.info.format, {}, labels.tiers_are_one, std::move(labels.recordings)};
  for (const data::RawTier& raw : labels.tiers) {
    LabelTier tier{raw.name, raw.intervals, raw.all_looked_at,       0,
                   0,        raw.raw.begin, raw.raw.end.value_or(0), {}};
    for (const LabelSegment& segment : raw.raw.segments) {
      if (segment.label.empty()) continue;
      const bool first = tier.segments++ == 0;
      if (!raw.raw.end) {
        tier.begin = first ? segment.start : std::min(tier.begin, segment.start);
        tier.end = std::max(tier.end, segment.end);
      }
      tier.labelled_seconds += segment.end - segment.start;
      ++tier.labels[segment.label];
    }
    out.tiers.push_back(std::move(tier));
  }
  return out;
}

LabelContents inspect_labels(const std::filesystem::path& path, const LabelOptions& options) {
  return inspect_label_text(read_file(path), path.string(), options);
}

std::string format_labels(const Annotation& annotation, const LabelOutput& output) {
  for (const SegmentColumn& column : output.columns)
    if (column.values.size() != annotation.segments.size())
      throw UsageError(fmt::format("column {} has {} values for {} segments",
                                   data::shown(column.name), column.values.size(),
                                   annotation.segments.size()));
  if (output.format == LabelFormat::kAuto) throw UsageError("no label format was chosen");
  const data::LabelFormatRow& row = data::format_row(output.format);
  if (row.write == nullptr)
    throw UsageError(fmt::format("the format {} can be read only; write {}", row.info.name,
                                 written_label_formats()));
  std::string text = row.write(annotation, output);
  const std::string& name = output.recording;
  if (!row.binary && !data::is_utf8(name) && !data::is_utf8(text)) data::refuse_name(name);
  return text;
}

void write_labels(const std::filesystem::path& path, const Annotation& annotation,
                  const LabelOutput& output) {
  LabelOutput chosen = output;
  if (chosen.format == LabelFormat::kAuto)
    chosen.format = data::recognise(path.string(), "").info.format;
  write_file_atomically(path, format_labels(annotation, chosen));
}

}  // namespace segfuse
