#include "semicrf/cpu/viterbi.h"

#include <algorithm>
#include <cmath>

#include "semicrf/cpu/viterbi_kernels.h"

namespace segfuse::semicrf {
namespace {

struct Search {
  const Model& model;
  const Row& row;
  ViterbiState& state;
  std::int64_t stride = model.dims.stride;
  std::int64_t classes = model.dims.classes;
  std::int64_t longest = model.dims.max_duration;
};

/// The better of two labels at boundary t with equal scores: shorter last segment, then label.
bool wins_tie(const Search& x, std::int64_t t, std::int64_t a, std::int64_t b) {
  return x.state.duration[t * x.stride + a] < x.state.duration[t * x.stride + b];
}

void set_source(const Search& x, std::int64_t t, std::int64_t c, double score) {
  if (x.row.start != nullptr) score += x.row.start[t * x.stride + c];
  x.state.source[t * x.stride + c] = score - x.state.origin[c];
}

/// Adds the emission of frame t to the window by moving its origin, which is kept small.
void absorb_frame(const Search& x, std::int64_t t) {
  constexpr double kFar = 0x1p20;
  const std::int64_t first = std::max<std::int64_t>(0, t + 1 - x.longest);
  for (std::int64_t c = 0; c < x.classes; ++c) {
    const double score = x.row.emission[t * x.stride + c];
    double& origin = x.state.origin[c];
    if (score == kNegInf) {
      for (std::int64_t s = first; s <= t; ++s) x.state.source[s * x.stride + c] = kNegInf;
      continue;
    }
    origin += score;
    if (std::abs(origin) < kFar) continue;
    const double shift = std::nearbyint(origin);
    origin -= shift;
    for (std::int64_t s = first; s <= t; ++s) x.state.source[s * x.stride + c] += shift;
  }
}

/// value[t] and its durations from the window.
void close_segments(const Search& x, std::int64_t t) {
  const double* best = x.state.best.data();
  best_over_durations(x.state.source.data() + (t - 1) * x.stride, x.model.duration.data(),
                      std::min(x.longest, t), x.stride, x.state.best.data(), x.state.best_k.data());
  for (std::int64_t c = 0; c < x.classes; ++c) {
    double score = best[c] + x.state.origin[c];
    if (x.row.end != nullptr) score += x.row.end[(t - 1) * x.stride + c];
    x.state.value[t * x.stride + c] = score;
    x.state.duration[t * x.stride + c] = static_cast<std::int32_t>(x.state.best_k[c]);
  }
}

/// Takes an integer off value[t] and the origins, so that neither grows with t.
void rebase(const Search& x, std::int64_t t) {
  double* value = x.state.value.data() + t * x.stride;
  const double max = *std::max_element(value, value + x.classes);
  const double shift = max == kNegInf ? 0.0 : std::nearbyint(max);
  x.state.base[t] = x.state.base[t - 1] + shift;
  for (std::int64_t c = 0; c < x.classes; ++c) {
    value[c] -= shift;
    x.state.origin[c] -= shift;
  }
}

/// Sources at boundary t from value[t], right after close_segments(t).
void link(const Search& x, std::int64_t t) {
  best_over_labels(x.state.value.data() + t * x.stride, x.state.best_k.data(),
                   x.model.transition.data(), x.classes, x.stride, x.state.best.data(),
                   x.state.best_from.data());
  for (std::int64_t c = 0; c < x.classes; ++c) {
    x.state.previous[t * x.stride + c] = static_cast<std::int32_t>(x.state.best_from[c]);
    set_source(x, t, c, x.state.best[c]);
  }
}

void search_static(const Search& x) {
  for (std::int64_t c = 0; c < x.classes; ++c) set_source(x, 0, c, x.model.initial[c]);
  for (std::int64_t t = 1; t <= x.row.length; ++t) {
    absorb_frame(x, t - 1);
    close_segments(x, t);
    rebase(x, t);
    if (t < x.row.length) link(x, t);
  }
}

/// The best label before a segment of label c that starts at s with duration k, and its score.
std::pair<double, std::int64_t> best_entry(const Search& x, std::int64_t s, std::int64_t k,
                                           std::int64_t c) {
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

void search_by_duration(const Search& x) {
  for (std::int64_t t = 1; t <= x.row.length; ++t) {
    for (std::int64_t c = 0; c < x.classes; ++c) {
      const std::int64_t at = t * x.stride + c;
      x.state.value[at] = kNegInf;
      x.state.duration[at] = 1;
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
        x.state.duration[at] = static_cast<std::int32_t>(k);
        x.state.previous[at] = static_cast<std::int32_t>(from);
      }
      if (x.row.end != nullptr) x.state.value[at] += x.row.end[(t - 1) * x.stride + c];
    }
    rebase(x, t);
  }
}

bool trace_back(const Search& x, std::vector<Segment>& path) {
  const std::int64_t length = x.row.length;
  double best = kNegInf;
  std::int64_t label = 0;
  for (std::int64_t c = 0; c < x.classes; ++c) {
    const double score = x.state.value[length * x.stride + c] + x.model.final[c];
    if (score > best || (score == best && wins_tie(x, length, c, label))) {
      best = score;
      label = c;
    }
  }
  if (best == kNegInf) return false;
  for (std::int64_t t = length; t > 0;) {
    const std::int32_t duration = x.state.duration[t * x.stride + label];
    const std::int64_t s = t - duration;
    path.push_back({static_cast<std::int32_t>(s), duration, static_cast<std::int32_t>(label)});
    label = x.state.previous[(x.model.dims.by_duration ? t : s) * x.stride + label];
    t = s;
  }
  std::reverse(path.begin(), path.end());
  return true;
}

}  // namespace

bool viterbi_row(const Model& model, const Row& row, ViterbiState& state,
                 std::vector<Segment>& path) {
  const Search x{model, row, state};
  const std::int64_t size = (row.length + 1) * x.stride;
  state.value.assign(size, kNegInf);
  state.source.assign(size, kNegInf);
  state.origin.assign(x.stride, 0.0);
  state.best.resize(x.stride);
  state.best_k.resize(x.stride);
  state.best_from.resize(x.stride);
  state.base.assign(static_cast<std::size_t>(row.length) + 1, 0.0);
  state.duration.assign(static_cast<std::size_t>(size), 0);
  state.previous.assign(static_cast<std::size_t>(size), 0);
  path.clear();
  if (model.dims.by_duration) {
    search_by_duration(x);
  } else {
    search_static(x);
  }
  return trace_back(x, path);
}

}  // namespace segfuse::semicrf
