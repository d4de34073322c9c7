#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "segfuse/error.h"
#include "segfuse/semicrf.h"

namespace segfuse::semicrf {
namespace {

/// Frames of a row: its length, or the frames before the first `ignore`.
template <class Int>
std::int64_t labelled_frames(const View<const Int, 2>& labels, const Lengths& lengths,
                             std::int64_t row, std::int64_t ignore) {
  const std::int64_t frames = labels.extent(1);
  if (!lengths.empty()) {
    if (lengths[row] < 0 || lengths[row] > frames)
      throw UsageError(
          fmt::format("semicrf: length {} of batch {} is not in [0, {}], the frames of the labels",
                      lengths[row], row, frames));
    return lengths[row];
  }
  std::int64_t length = 0;
  while (length < frames && labels(row, length) != ignore) ++length;
  for (std::int64_t t = length; t < frames; ++t) {
    if (labels(row, t) != ignore)
      throw DataError(
          fmt::format("semicrf: batch {}, time {}: label {} after ignored frames from {} on", row,
                      t, labels(row, t), length));
  }
  return length;
}

/// Appends a run as one segment, or as several when it is too long and may be split.
void append_run(std::int64_t row, std::int64_t begin, std::int64_t end, std::int64_t label,
                const LabelRules& rules, Segmentations& out) {
  const std::int64_t frames = end - begin;
  const std::int64_t pieces = (frames - 1) / rules.max_duration + 1;
  if (pieces > 1 && rules.long_runs == LongRuns::kError)
    throw DataError(fmt::format(
        "semicrf: batch {}, time {}: label {} runs for {} frames, the longest segment has {}; "
        "raise K or split long runs",
        row, begin, label, frames, rules.max_duration));
  for (std::int64_t i = 0; i < pieces; ++i) {
    const std::int64_t piece = frames / pieces + (i < frames % pieces ? 1 : 0);
    out.append(begin, piece, label);
    begin += piece;
  }
}

/// softmax of n scores, `step` apart, as weights; all 0 when every score is -inf.
std::vector<double> weights_of(const double* scores, std::int64_t n, std::int64_t step) {
  double max = -std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < n; ++i) {
    if (!(scores[i * step] < std::numeric_limits<double>::infinity()))
      throw UsageError(fmt::format("semicrf: a score of the prior is {}; scores are finite or -inf",
                                   scores[i * step]));
    max = std::max(max, scores[i * step]);
  }
  std::vector<double> weights(static_cast<std::size_t>(n), 0.0);
  if (!std::isfinite(max)) return weights;
  for (std::int64_t i = 0; i < n; ++i) weights[i] = std::exp(scores[i * step] - max);
  return weights;
}

std::int64_t draw(const std::vector<double>& weights, const char* what, std::int64_t label,
                  Rng& rng) {
  if (std::all_of(weights.begin(), weights.end(), [](double w) { return w == 0.0; }))
    throw UsageError(fmt::format("semicrf: the prior gives label {} no {}", label, what));
  return static_cast<std::int64_t>(rng.categorical(weights));
}

}  // namespace

void Segmentations::append(std::int64_t first_frame, std::int64_t frames,
                           std::int64_t segment_label) {
  for (const std::int64_t number : {first_frame, frames, segment_label})
    if (number != static_cast<std::int32_t>(number))
      throw UsageError(fmt::format(
          "semicrf: a segment of {} frames and label {} at frame {} does not fit 32 bits; cut the "
          "row",
          frames, segment_label, first_frame));
  start.push_back(static_cast<std::int32_t>(first_frame));
  duration.push_back(static_cast<std::int32_t>(frames));
  label.push_back(static_cast<std::int32_t>(segment_label));
}

void Segmentations::end_row() {
  if (row_pointer.empty()) row_pointer.push_back(0);  // moved from
  row_pointer.push_back(segments());
}

void Segmentations::clear() {
  row_pointer.assign(1, 0);
  start.clear();
  duration.clear();
  label.clear();
}

template <class Int>
Segmentations segmentations_from_labels(const View<const Int, 2>& labels, const Lengths& lengths,
                                        const LabelRules& rules) {
  if (rules.max_duration < 1 || rules.classes < 1)
    throw UsageError(
        fmt::format("semicrf: label rules need max_duration and classes of at least 1, not {}, {}",
                    rules.max_duration, rules.classes));
  if (!lengths.empty() && lengths.size() != labels.extent(0))
    throw UsageError(
        fmt::format("semicrf: {} lengths for {} rows of labels", lengths.size(), labels.extent(0)));
  Segmentations out;
  for (std::int64_t b = 0; b < labels.extent(0); ++b) {
    const std::int64_t length = labelled_frames(labels, lengths, b, rules.ignore);
    std::int64_t begin = 0;
    for (std::int64_t t = 0; t < length; ++t) {
      const std::int64_t label = labels(b, t);
      if (label < 0 || label >= rules.classes)
        throw DataError(fmt::format("semicrf: batch {}, time {}: label {} is not in [0, {})", b, t,
                                    label, rules.classes));
      if (t + 1 < length && labels(b, t + 1) == label) continue;
      append_run(b, begin, t + 1, label, rules, out);
      begin = t + 1;
    }
    out.end_row();
  }
  return out;
}

template <class Int>
void labels_from_segmentations(const SegmentationsView& y, const View<Int, 2>& labels,
                               std::type_identity_t<Int> ignore) {
  if (y.row_pointer.extent(0) != labels.extent(0) + 1)
    throw UsageError(fmt::format("semicrf: segmentations of {} rows for {} rows of labels",
                                 y.row_pointer.extent(0) - 1, labels.extent(0)));
  const std::int64_t n = y.start.extent(0);
  for (std::int64_t b = 0; b < labels.extent(0); ++b)
    if (y.row_pointer(b) < 0 || y.row_pointer(b) > y.row_pointer(b + 1) ||
        y.row_pointer(b + 1) > n || y.duration.extent(0) != n || y.label.extent(0) != n)
      throw UsageError(fmt::format(
          "semicrf: batch {} has the segments [{}, {}) of {} starts, {} durations and {} labels", b,
          y.row_pointer(b), y.row_pointer(b + 1), n, y.duration.extent(0), y.label.extent(0)));
  for (std::int64_t b = 0; b < labels.extent(0); ++b) {
    for (std::int64_t t = 0; t < labels.extent(1); ++t) labels(b, t) = ignore;
    for (std::int64_t i = y.row_pointer(b); i < y.row_pointer(b + 1); ++i) {
      const std::int64_t end = std::int64_t{y.start(i)} + y.duration(i);
      if (y.start(i) < 0 || y.duration(i) < 1 || end > labels.extent(1))
        throw UsageError(
            fmt::format("semicrf: a segment of batch {} covers frames {} to {}, outside [0, {})", b,
                        y.start(i), end, labels.extent(1)));
      for (std::int64_t t = y.start(i); t < end; ++t) labels(b, t) = static_cast<Int>(y.label(i));
    }
  }
}

void sample_prior(const Prior& prior, std::int64_t min_frames, std::uint64_t seed,
                  std::uint64_t stream, Segmentations& out) {
  const std::int64_t classes = prior.duration.extent(1);
  const std::int64_t longest = prior.duration.extent(0);
  if (classes < 1 || longest < 1 || prior.transition.extent(0) != classes ||
      prior.transition.extent(1) != classes ||
      (!prior.initial.empty() && prior.initial.extent(0) != classes))
    throw UsageError(
        fmt::format("semicrf: the prior's tables disagree: duration ({}, {}), transition ({}, {})",
                    longest, classes, prior.transition.extent(0), prior.transition.extent(1)));
  Rng rng(seed, stream);
  const std::vector<double> first =
      prior.initial.empty() ? std::vector<double>(static_cast<std::size_t>(classes), 1.0)
                            : weights_of(prior.initial.data(), classes, prior.initial.stride(0));
  std::int64_t frames = 0;
  std::int64_t label = -1;
  while (frames < min_frames) {
    if (label < 0) {
      label = draw(first, "probability as the first: none has any", 0, rng);
    } else {
      label = draw(weights_of(&prior.transition(label, 0), classes, prior.transition.stride(1)),
                   "successor", label, rng);
    }
    const auto weights = weights_of(&prior.duration(0, label), longest, prior.duration.stride(0));
    const std::int64_t duration = 1 + draw(weights, "duration", label, rng);
    out.append(frames, duration, label);
    frames += duration;
  }
  out.end_row();
}

template Segmentations segmentations_from_labels(const View<const std::int32_t, 2>&, const Lengths&,
                                                 const LabelRules&);
template Segmentations segmentations_from_labels(const View<const std::int64_t, 2>&, const Lengths&,
                                                 const LabelRules&);
template void labels_from_segmentations(const SegmentationsView&, const View<std::int32_t, 2>&,
                                        std::int32_t);
template void labels_from_segmentations(const SegmentationsView&, const View<std::int64_t, 2>&,
                                        std::int64_t);

}  // namespace segfuse::semicrf
