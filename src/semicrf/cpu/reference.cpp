#include "semicrf/cpu/reference.h"

#include <algorithm>
#include <cmath>

namespace segfuse::semicrf {
namespace {

/// Score of a segment without its transition, given the sum of its emissions.
double segment_score(const Model& model, const Row& row, std::int64_t start, std::int64_t duration,
                     std::int64_t c, double content) {
  const std::int64_t stride = model.dims.stride;
  double score = content + model.duration[(duration - 1) * stride + c];
  if (row.start != nullptr) score += row.start[start * stride + c];
  if (row.end != nullptr) score += row.end[(start + duration - 1) * stride + c];
  return score + row.segments(start, duration, c);
}

/// log of the sum over everything before a segment of label c: transitions into it, or initial.
double enter(const Model& model, const Row& row, const ReferenceState& state, std::int64_t start,
             std::int64_t duration, std::int64_t c) {
  const std::int64_t classes = model.dims.classes;
  if (start == 0) return model.initial[c];
  const double* transition = model.transition_slice(duration - 1);
  LogSum sum;
  for (std::int64_t from = 0; from < classes; ++from)
    sum.add(state.forward[start * classes + from] + transition[from * model.dims.stride + c] +
            row.transitions(start, from, c));
  return sum.value();
}

void compute_backward(const Model& model, const Row& row, ReferenceState& state) {
  const auto [classes, stride] = std::pair(model.dims.classes, model.dims.stride);
  state.backward.assign((row.length + 1) * classes, kNegInf);
  for (std::int64_t c = 0; c < classes; ++c)
    state.backward[row.length * classes + c] = model.final[c];
  std::vector<LogSum>& sums = state.sums;
  for (std::int64_t start = row.length - 1; start >= 1; --start) {
    sums.assign(classes, {});
    for (std::int64_t c = 0; c < classes; ++c) {
      double content = 0.0;
      for (std::int64_t k = 1; k <= std::min(model.dims.max_duration, row.length - start); ++k) {
        content += row.emission[(start + k - 1) * stride + c];
        const double rest = segment_score(model, row, start, k, c, content) +
                            state.backward[(start + k) * classes + c];
        const double* transition = model.transition_slice(k - 1);
        for (std::int64_t from = 0; from < classes; ++from)
          sums[from].add(transition[from * stride + c] + row.transitions(start, from, c) + rest);
      }
    }
    for (std::int64_t from = 0; from < classes; ++from)
      state.backward[start * classes + from] = sums[from].value();
  }
}

/// Adds one segment's probability, and those of its transitions, to the counts.
void count_segment(const Model& model, const Row& row, ReferenceState& state, double log_weight,
                   std::int64_t start, std::int64_t duration, std::int64_t c,
                   RowExpectations& out) {
  const auto [classes, stride] = std::pair(model.dims.classes, model.dims.stride);
  double probability = 0.0;
  if (start == 0) {
    probability = std::exp(model.initial[c] + log_weight);
  } else {
    const double* transition = model.transition_slice(duration - 1);
    const std::int64_t slice = model.dims.by_duration ? duration - 1 : 0;
    for (std::int64_t from = 0; from < classes; ++from) {
      const double p =
          std::exp(state.forward[start * classes + from] + transition[from * stride + c] +
                   row.transitions(start, from, c) + log_weight);
      state.changes[from * stride + c] += p;
      if (out.want_transition) out.transition[(slice * classes + from) * stride + c] += p;
      probability += p;
    }
  }
  state.segments[(duration - 1) * stride + c] = probability;
  if (out.want_duration) out.duration[(duration - 1) * stride + c] += probability;
  out.start[start * stride + c] += probability;
  out.end[(start + duration - 1) * stride + c] += probability;
  for (std::int64_t t = start; t < start + duration; ++t) out.label[t * stride + c] += probability;
}

}  // namespace

double reference_forward(const Model& model, const Row& row, ReferenceState& state) {
  const auto [classes, stride] = std::pair(model.dims.classes, model.dims.stride);
  state.forward.assign((row.length + 1) * classes, kNegInf);
  for (std::int64_t t = 1; t <= row.length; ++t) {
    for (std::int64_t c = 0; c < classes; ++c) {
      LogSum sum;
      double content = 0.0;
      for (std::int64_t k = 1; k <= std::min(model.dims.max_duration, t); ++k) {
        content += row.emission[(t - k) * stride + c];
        sum.add(enter(model, row, state, t - k, k, c) +
                segment_score(model, row, t - k, k, c, content));
      }
      state.forward[t * classes + c] = sum.value();
    }
  }
  LogSum sum;
  for (std::int64_t c = 0; c < classes; ++c)
    sum.add(state.forward[row.length * classes + c] + model.final[c]);
  return sum.value();
}

void reference_expectations(const Model& model, const Row& row, double log_partition,
                            ReferenceState& state, RowExpectations& out) {
  const auto [classes, stride] = std::pair(model.dims.classes, model.dims.stride);
  compute_backward(model, row, state);
  for (AlignedDoubles* frames : {&out.label, &out.start, &out.end})
    frames->assign(row.length * stride, 0.0);
  if (out.want_transition) out.transition.assign(model.dims.slices() * classes * stride, 0.0);
  if (out.want_duration) out.duration.assign(model.dims.max_duration * stride, 0.0);
  for (std::int64_t start = 0; start < row.length; ++start) {
    const std::int64_t longest = std::min(model.dims.max_duration, row.length - start);
    state.segments.assign(longest * stride, 0.0);
    state.changes.assign(classes * stride, 0.0);
    for (std::int64_t c = 0; c < classes; ++c) {
      double content = 0.0;
      for (std::int64_t k = 1; k <= longest; ++k) {
        content += row.emission[(start + k - 1) * stride + c];
        const double log_weight = segment_score(model, row, start, k, c, content) +
                                  state.backward[(start + k) * classes + c] - log_partition;
        if (log_weight > kNegInf) count_segment(model, row, state, log_weight, start, k, c, out);
      }
    }
    if (out.tables == nullptr) continue;
    if (out.tables->want_segments) out.tables->segments(start, longest, state.segments.data());
    if (out.tables->want_transitions && start > 0)
      out.tables->transitions(start, state.changes.data());
  }
}

double reference_segment(const Model& model, const Row& row, double log_partition,
                         const ReferenceState& state, std::int64_t start, std::int64_t duration,
                         std::int64_t label) {
  double content = 0.0;
  for (std::int64_t t = start; t < start + duration; ++t)
    content += row.emission[t * model.dims.stride + label];
  return enter(model, row, state, start, duration, label) +
         segment_score(model, row, start, duration, label, content) +
         state.backward[(start + duration) * model.dims.classes + label] - log_partition;
}

}  // namespace segfuse::semicrf
