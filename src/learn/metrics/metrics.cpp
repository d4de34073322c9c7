#include "segfuse/metrics.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "learn/metrics/alignment.h"
#include "learn/metrics/fields.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

using metrics::TimedLabel;

constexpr double kNanoseconds = 1e9;
constexpr std::int64_t kSlack = 1;  // nanosecond

std::int64_t to_nanoseconds(double seconds) {
  if (!(std::abs(seconds) <= 1e9))
    throw UsageError(fmt::format("a time of {} s; metrics take times up to 1e9 s", seconds));
  return std::llround(seconds * kNanoseconds);
}

double quotient(std::int64_t above, std::int64_t below, double when_empty) {
  return below == 0 ? when_empty : static_cast<double>(above) / static_cast<double>(below);
}

/// For messages: the line of its file, if it is from one.
std::string place_of(const Annotation& annotation, const LabelSegment& segment) {
  if (annotation.source.empty()) return "the labels";
  return fmt::format("{}:{}", annotation.source, segment.line);
}

std::vector<TimedLabel> to_timed(const Annotation& annotation) {
  std::vector<TimedLabel> out;
  for (const LabelSegment& segment : annotation.segments) {
    TimedLabel timed{segment.label, to_nanoseconds(segment.start), to_nanoseconds(segment.end)};
    if (timed.end <= timed.start || (!out.empty() && timed.start != out.back().end))
      throw DataError(
          fmt::format("{}: segments must follow each other without gap and have a length; found "
                      "{} s to {} s",
                      place_of(annotation, segment), segment.start, segment.end));
    out.push_back(std::move(timed));
  }
  return out;
}

/// Folds labels; deleted ones become empty.
std::vector<TimedLabel> folded(std::vector<TimedLabel> segments, const FoldingMap& map) {
  for (TimedLabel& segment : segments) segment.label = map.fold(segment.label).value_or("");
  return segments;
}

std::vector<TimedLabel> without_deleted(const std::vector<TimedLabel>& segments) {
  std::vector<TimedLabel> out;
  std::copy_if(segments.begin(), segments.end(), std::back_inserter(out),
               [](const TimedLabel& segment) { return !segment.label.empty(); });
  return out;
}

/// The folded segments that are left; with `merge`, neighbours that folding made equal are one:
/// those of different labels, and those with deleted ones between them.
std::vector<TimedLabel> label_sequence(const std::vector<TimedLabel>& given,
                                       const std::vector<TimedLabel>& folded, bool merge) {
  std::vector<TimedLabel> out;
  std::size_t former = 0;
  for (std::size_t i = 0; i < folded.size(); ++i) {
    if (folded[i].label.empty()) continue;
    const bool by_folding =
        !out.empty() && (i != former + 1 || given[i].label != given[former].label);
    if (merge && by_folding && out.back().label == folded[i].label)
      out.back().end = folded[i].end;
    else
      out.push_back(folded[i]);
    former = i;
  }
  return out;
}

std::vector<std::int64_t> internal_boundaries(const std::vector<TimedLabel>& segments) {
  std::vector<std::int64_t> out;
  for (std::size_t i = 1; i < segments.size(); ++i) out.push_back(segments[i].start);
  return out;
}

/// Nanoseconds, whole where they are but for rounding. 44100 frames a second are not, and a second
/// of rounded ones would be 44100.7.
double frame_of(const MetricsConfig& config) {
  const double exact = config.frame_seconds * kNanoseconds;
  const double whole = std::round(exact);
  return std::abs(exact - whole) < 1e-5 ? whole : exact;
}

std::vector<TimedLabel> in_frames(std::vector<TimedLabel> segments, double frame) {
  const auto nearest = [frame](std::int64_t time) {
    return static_cast<std::int64_t>(std::floor(static_cast<double>(time) / frame + 0.5));
  };
  for (TimedLabel& segment : segments) {
    segment.start = nearest(segment.start);
    segment.end = nearest(segment.end);
  }
  return segments;
}

}  // namespace

void LabelErrors::add(const LabelErrors& other) {
  gold += other.gold;
  substitutions += other.substitutions;
  insertions += other.insertions;
  deletions += other.deletions;
}

double LabelErrors::rate() const {
  const std::int64_t errors = substitutions + insertions + deletions;
  return quotient(errors, std::max<std::int64_t>(gold, 1), 0);
}

double MetricCounts::frame_accuracy() const { return quotient(correct_frames, frames, 1); }

void MetricCounts::add(const MetricCounts& other) {
  SEGFUSE_CHECK(
      boundaries.size() == other.boundaries.size() && segments.size() == other.segments.size(),
      "added counts have the same tolerances");
  frames += other.frames;
  correct_frames += other.correct_frames;
  labels.add(other.labels);
  exact_segments.add(other.exact_segments);
  for (std::size_t i = 0; i < boundaries.size(); ++i) {
    boundaries[i].add(other.boundaries[i]);
    segments[i].add(other.segments[i]);
  }
  foreground.add(other.foreground);
  chunks.add(other.chunks);
  edges.add(other.edges);
  for (const auto& [label, counted] : other.by_label) by_label[label].add(counted);
  has_fields = has_fields && other.has_fields;
}

void MatchCounts::add(const MatchCounts& other) {
  gold += other.gold;
  predicted += other.predicted;
  hits += other.hits;
}

double MatchCounts::precision() const { return quotient(hits, predicted, 1); }
double MatchCounts::recall() const { return quotient(hits, gold, 1); }
double MatchCounts::f1() const { return quotient(2 * hits, gold + predicted, 1); }

double BoundaryCounts::over_segmentation() const {
  if (gold == 0 && predicted == 0) return 0;
  return static_cast<double>(predicted) / static_cast<double>(std::max<std::int64_t>(gold, 1)) - 1;
}

double BoundaryCounts::r_value() const {
  if (gold == 0 && predicted == 0) return 1;
  const double hit_rate = recall();
  const double over = over_segmentation();
  const double r1 = std::sqrt((1 - hit_rate) * (1 - hit_rate) + over * over);
  const double r2 = (hit_rate - 1 - over) / std::sqrt(2.0);
  return 1 - (r1 + std::abs(r2)) / 2;
}

/// One recording, as the measures need it.
struct Metrics::Prepared {
  std::vector<TimedLabel> gold, predicted;                // as given
  std::vector<TimedLabel> gold_folded, predicted_folded;  // deleted labels are ""
};

Metrics::Metrics(MetricsConfig config) : config_(std::move(config)) {
  if (!(config_.frame_seconds >= 1e-8 && config_.frame_seconds <= 1e6))
    throw UsageError(
        fmt::format("frames of {} s; metrics need 1e-8 to 1e6", config_.frame_seconds));
  for (const double tolerance : config_.tolerances)
    if (!(tolerance >= 0))
      throw UsageError(fmt::format("a tolerance of {} s; expected at least 0", tolerance));
  if (!(config_.edge_tolerance >= 0 && config_.edge_tolerance <= 1))
    throw UsageError(
        fmt::format("an edge tolerance of {} s; expected 0 to 1", config_.edge_tolerance));
  counts_.boundaries.resize(config_.tolerances.size());
  counts_.segments.resize(config_.tolerances.size());
}

void Metrics::add(const Annotation& gold, const Annotation& predicted) {
  Prepared prepared{to_timed(gold), to_timed(predicted), {}, {}};
  if (!prepared.gold.empty() && !prepared.predicted.empty() &&
      std::abs(prepared.gold[0].start - prepared.predicted[0].start) > kSlack)
    throw DataError(fmt::format("{}: the gold segments start at {} s, the predicted ones at {} s",
                                gold.source, gold.segments[0].start, predicted.segments[0].start));
  prepared.gold_folded = folded(prepared.gold, config_.folding);
  prepared.predicted_folded = folded(prepared.predicted, config_.folding);
  ++recordings_;
  add_frames(prepared);
  add_sequences(prepared);
  add_boundaries(prepared);
  add_segments(prepared);
}

void Metrics::add_frames(const Prepared& prepared) {
  const double frame = frame_of(config_);
  std::size_t j = 0;
  const std::vector<TimedLabel>& predicted = prepared.predicted_folded;
  const std::int64_t start = prepared.gold.empty() ? 0 : prepared.gold[0].start;
  std::int64_t t = 0;
  const auto middle_of = [&](std::int64_t index) {
    return start +
           static_cast<std::int64_t>(std::floor((static_cast<double>(index) + 0.5) * frame));
  };
  for (const TimedLabel& segment : prepared.gold_folded) {
    for (std::int64_t middle; (middle = middle_of(t)) < segment.end; ++t) {
      if (segment.label.empty()) continue;
      while (j < predicted.size() && predicted[j].end <= middle) ++j;
      ++counts_.frames;
      if (j < predicted.size() && predicted[j].label == segment.label) ++counts_.correct_frames;
    }
  }
  // Predicted frames behind the end of the gold are wrong.
  const std::int64_t end = predicted.empty() ? 0 : predicted.back().end;
  for (; middle_of(t) < end; ++t) ++counts_.frames;
}

void Metrics::add_sequences(const Prepared& prepared) {
  const std::vector<TimedLabel> gold =
      label_sequence(prepared.gold, prepared.gold_folded, config_.merge_folded);
  const std::vector<TimedLabel> predicted =
      label_sequence(prepared.predicted, prepared.predicted_folded, config_.merge_folded);
  const auto count = [&](const TimedLabel& segment, std::int64_t Sums::* number,
                         std::int64_t Sums::* sum) {
    Sums& sums = durations_[segment.label];
    sums.*number += 1;
    sums.*sum += segment.end - segment.start;
  };
  for (const TimedLabel& segment : gold) count(segment, &Sums::gold, &Sums::gold_ns);
  for (const TimedLabel& segment : predicted) count(segment, &Sums::predicted, &Sums::predicted_ns);
  LabelErrors errors;
  errors.gold = std::ssize(gold);
  for (const metrics::AlignedPair& pair : metrics::align_labels(gold, predicted)) {
    const TimedLabel* first = pair.gold < 0 ? nullptr : &gold[static_cast<std::size_t>(pair.gold)];
    const TimedLabel* second =
        pair.predicted < 0 ? nullptr : &predicted[static_cast<std::size_t>(pair.predicted)];
    ++confusions_[{first ? first->label : "", second ? second->label : ""}];
    if (first == nullptr) {
      ++errors.insertions;
    } else if (second == nullptr) {
      ++errors.deletions;
    } else if (first->label != second->label) {
      ++errors.substitutions;
    } else {
      Sums& sums = durations_[first->label];
      ++sums.matched;
      sums.error_ns += std::abs((first->end - first->start) - (second->end - second->start));
    }
  }
  counts_.labels.add(errors);
  metrics::count_foreground(gold, predicted, config_.background, errors, counts_.foreground);
}

void Metrics::add_boundaries(const Prepared& prepared) {
  const std::vector<std::int64_t> gold = internal_boundaries(prepared.gold);
  const std::vector<std::int64_t> predicted = internal_boundaries(prepared.predicted);
  for (std::size_t i = 0; i < counts_.boundaries.size(); ++i) {
    const std::int64_t tolerance = to_nanoseconds(config_.tolerances[i]) + kSlack;
    metrics::count_matches(counts_.boundaries[i], gold.size(), predicted.size(),
                           metrics::match_times(gold, predicted, tolerance));
  }
}

void Metrics::add_segments(const Prepared& prepared) {
  const std::vector<TimedLabel> gold = without_deleted(prepared.gold_folded);
  const std::vector<TimedLabel> predicted = without_deleted(prepared.predicted_folded);
  const double frame = frame_of(config_);
  const std::vector<TimedLabel> gold_frames = in_frames(prepared.gold_folded, frame);
  const std::vector<TimedLabel> predicted_frames = in_frames(prepared.predicted_folded, frame);
  metrics::count_labels({prepared.gold_folded, prepared.predicted_folded},
                        {gold_frames, predicted_frames}, config_.background,
                        to_nanoseconds(config_.edge_tolerance) + kSlack, counts_);
  metrics::count_matches(
      counts_.exact_segments, gold.size(), predicted.size(),
      metrics::match_segments(in_frames(gold, frame), in_frames(predicted, frame), 0));
  for (std::size_t i = 0; i < counts_.segments.size(); ++i) {
    const std::int64_t tolerance = to_nanoseconds(config_.tolerances[i]) + kSlack;
    metrics::count_matches(counts_.segments[i], gold.size(), predicted.size(),
                           metrics::match_segments(gold, predicted, tolerance));
  }
}

void Metrics::merge(const Metrics& other) {
  SEGFUSE_CHECK(config_.tolerances == other.config_.tolerances &&
                    config_.frame_seconds == other.config_.frame_seconds &&
                    config_.edge_tolerance == other.config_.edge_tolerance &&
                    config_.background == other.config_.background,
                "merged metrics have one configuration");
  recordings_ += other.recordings_;
  counts_.add(other.counts_);
  for (const auto& [pair, number] : other.confusions_) confusions_[pair] += number;
  for (const auto& [label, sums] : other.durations_) {
    Sums& mine = durations_[label];
    mine.gold += sums.gold;
    mine.predicted += sums.predicted;
    mine.matched += sums.matched;
    mine.gold_ns += sums.gold_ns;
    mine.predicted_ns += sums.predicted_ns;
    mine.error_ns += sums.error_ns;
  }
}

std::map<std::string, LabelDurations> Metrics::durations() const {
  std::map<std::string, LabelDurations> out;
  for (const auto& [label, sums] : durations_) {
    LabelDurations& item = out[label];
    item.gold = sums.gold;
    item.predicted = sums.predicted;
    item.matched = sums.matched;
    item.gold_seconds = static_cast<double>(sums.gold_ns) / kNanoseconds;
    item.predicted_seconds = static_cast<double>(sums.predicted_ns) / kNanoseconds;
    item.mean_absolute_error = quotient(sums.error_ns, sums.matched, 0) / kNanoseconds;
    if (sums.gold > 0 && sums.predicted > 0)
      item.relative_bias =
          quotient(sums.predicted_ns, sums.predicted, 0) / quotient(sums.gold_ns, sums.gold, 0) - 1;
  }
  return out;
}

}  // namespace segfuse
