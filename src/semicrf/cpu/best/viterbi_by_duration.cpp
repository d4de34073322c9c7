#include <algorithm>
#include <cmath>
#include <utility>

#include "semicrf/cpu/best/viterbi.h"

namespace segfuse::semicrf {
namespace {

struct SearchByDuration {
  const Model& model;
  const Row& row;
  ViterbiState& state;
  std::int64_t stride = model.dims.stride;
  std::int64_t classes = model.dims.classes;
  std::int64_t longest = model.dims.max_duration;
};

/// The better of two labels at boundary t with equal scores: shorter last segment, then label.
bool wins_tie(const SearchByDuration& x, std::int64_t t, std::int64_t a, std::int64_t b) {
  return x.state.last[t * x.stride + a] < x.state.last[t * x.stride + b];
}

/// Takes an integer off value[t], so that it does not grow with t.
void rebase(const SearchByDuration& x, std::int64_t t) {
  double* value = x.state.value.data() + t * x.stride;
  const double max = *std::max_element(value, value + x.classes);
  const double shift = max == kNegInf ? 0.0 : std::nearbyint(max);
  x.state.base[t] = x.state.base[t - 1] + shift;
  for (std::int64_t c = 0; c < x.classes; ++c) value[c] -= shift;
}

/// The best label before a segment of label c that starts at s with duration k, and its score.
std::pair<double, std::int64_t> best_entry(const SearchByDuration& x, std::int64_t s,
                                           std::int64_t k, std::int64_t c) {
  if (s == 0) return {x.model.initial[c], 0};
  const double* transition = x.model.transition_slice(k - 1);
  std::pair<double, std::int64_t> best{kNegInf, 0};
  for (std::int64_t from = 0; from < x.classes; ++from) {
    const double candidate = x.state.value[s * x.stride + from] + transition[from * x.stride + c];
    if (candidate > best.first || (candidate == best.first && wins_tie(x, s, from, best.second)))
      best = {candidate, from};
  }
  return best;
}

/// The best segment of label c that ends at t.
void close_segment(const SearchByDuration& x, std::int64_t t, std::int64_t c) {
  const std::int64_t at = t * x.stride + c;
  x.state.value[at] = kNegInf;
  x.state.last[at] = 1;
  x.state.previous[at] = 0;
  double content = 0.0;
  for (std::int64_t k = 1; k <= std::min(x.longest, t); ++k) {
    const std::int64_t s = t - k;
    content += x.row.emission[s * x.stride + c];
    if (content == kNegInf) break;
    const auto [entry, from] = best_entry(x, s, k, c);
    double score = entry + (x.state.base[s] - x.state.base[t - 1]) + content +
                   x.model.duration[(k - 1) * x.stride + c];
    if (x.row.start != nullptr) score += x.row.start[s * x.stride + c];
    if (score <= x.state.value[at]) continue;
    x.state.value[at] = score;
    x.state.last[at] = static_cast<std::int32_t>(k);
    x.state.previous[at] = static_cast<std::int32_t>(from);
  }
  if (x.row.end != nullptr) x.state.value[at] += x.row.end[(t - 1) * x.stride + c];
}

}  // namespace

bool viterbi_by_duration(const Model& model, const Row& row, ViterbiState& state,
                         std::vector<Segment>& path) {
  const SearchByDuration x{model, row, state};
  const std::int64_t size = (row.length + 1) * x.stride;
  state.value.assign(size, kNegInf);
  state.base.assign(row.length + 1, 0.0);
  state.last.assign(static_cast<std::size_t>(size), 0);
  state.previous.assign(static_cast<std::size_t>(size), 0);
  path.clear();
  for (std::int64_t t = 1; t <= row.length; ++t) {
    for (std::int64_t c = 0; c < x.classes; ++c) close_segment(x, t, c);
    rebase(x, t);
  }
  double best = kNegInf;
  std::int64_t label = 0;
  for (std::int64_t c = 0; c < x.classes; ++c) {
    const double score = state.value[row.length * x.stride + c] + model.final[c];
    if (score > best || (score == best && wins_tie(x, row.length, c, label))) {
      best = score;
      label = c;
    }
  }
  if (best == kNegInf) return false;
  for (std::int64_t t = row.length; t > 0;) {
    const std::int32_t duration = state.last[t * x.stride + label];
    path.push_back(
        {static_cast<std::int32_t>(t - duration), duration, static_cast<std::int32_t>(label)});
    label = state.previous[t * x.stride + label];
    t -= duration;
  }
  std::reverse(path.begin(), path.end());
  return true;
}

}  // namespace segfuse::semicrf
