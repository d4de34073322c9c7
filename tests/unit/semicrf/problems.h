#pragma once
// Random and adversarial problems, and an oracle that lists every segmentation: it shares nothing
// with the library but the definition of a score.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "segfuse/error.h"
#include "segfuse/semicrf.h"
#ifdef SEGFUSE_TEST_ON_DEVICE
#include "unit/gpu/device_engine.h"  // an Engine of this namespace
#endif

namespace segfuse::semicrf::testing {

// What lies in a device's memory can only be checked there: a DataError, and later.
#ifdef SEGFUSE_TEST_ON_DEVICE
using WrongValue = DataError;
#else
using WrongValue = UsageError;
#endif

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// A batch of inputs that owns its numbers (contiguous).
template <class T>
struct Problem {
  std::int64_t B = 1, T_ = 1, K = 1, C = 1;
  bool by_duration = false;
  bool with_initial = true, with_final = true, with_start = true, with_end = true;
  std::vector<T> emission, transition, duration, initial, final, start, end;
  std::vector<std::int64_t> lengths;

  std::int64_t slices() const { return by_duration ? K : 1; }
  Potentials<T> potentials() const {
    Potentials<T> p;
    p.emission = {emission.data(), {B, T_, C}};
    p.transition = {transition.data(), {slices(), C, C}};
    p.duration = {duration.data(), {K, C}};
    if (with_initial) p.initial = initial;
    if (with_final) p.final = final;
    if (with_start) p.start = {start.data(), {B, T_, C}};
    if (with_end) p.end = {end.data(), {B, T_, C}};
    if (!lengths.empty()) p.lengths = View<const std::int64_t, 1>(lengths);
    return p;
  }
  std::int64_t length(std::int64_t b) const { return lengths.empty() ? T_ : lengths[b]; }
  template <class U>
  Problem<U> to() const {
    Problem<U> other;
    other.B = B, other.T_ = T_, other.K = K, other.C = C;
    other.by_duration = by_duration;
    other.with_initial = with_initial, other.with_final = with_final;
    other.with_start = with_start, other.with_end = with_end;
    other.lengths = lengths;
    const auto copy = [](const std::vector<T>& from, std::vector<U>& into) {
      for (const T x : from) into.push_back(static_cast<U>(x));
    };
    copy(emission, other.emission), copy(transition, other.transition);
    copy(duration, other.duration), copy(initial, other.initial), copy(final, other.final);
    copy(start, other.start), copy(end, other.end);
    return other;
  }
};

/// Draws one score.
using Draw = std::function<double(Rng&)>;

inline double gaussian(Rng& rng) { return rng.normal(); }
inline double wide(Rng& rng) { return 10.0 * rng.normal(); }
/// Ordinary scores among forbidden ones.
inline double holes(Rng& rng) { return rng.uniform() < 0.25 ? -kInf : rng.normal(); }
/// Up to 1e4 in size, some forbidden.
inline double extreme(Rng& rng) {
  const double u = rng.uniform();
  if (u < 0.1) return -kInf;
  return u < 0.5 ? (u < 0.3 ? 1e4 : -1e4) : rng.normal();
}
/// Small integers: sums are exact and ties are everywhere.
inline double ties(Rng& rng) { return static_cast<double>(rng.below(3)) - 1.0; }
inline double zero(Rng&) { return 0.0; }

inline std::vector<Draw> all_draws() { return {gaussian, wide, holes, extreme, ties, zero}; }

template <class T>
void fill(std::vector<T>& values, std::int64_t n, const Draw& draw, Rng& rng) {
  values.resize(static_cast<std::size_t>(n));
  for (T& v : values) v = static_cast<T>(draw(rng));
}

template <class T>
Problem<T> random_problem(std::int64_t B, std::int64_t frames, std::int64_t K, std::int64_t C,
                          bool by_duration, const Draw& draw, Rng& rng) {
  Problem<T> p;
  p.B = B, p.T_ = frames, p.K = K, p.C = C;
  p.by_duration = by_duration;
  fill(p.emission, B * frames * C, draw, rng);
  fill(p.start, B * frames * C, draw, rng);
  fill(p.end, B * frames * C, draw, rng);
  fill(p.transition, p.slices() * C * C, draw, rng);
  fill(p.duration, K * C, draw, rng);
  fill(p.initial, C, draw, rng);
  fill(p.final, C, draw, rng);
  return p;
}

/// Owned gradients in the shapes of a problem, poisoned.
template <class T>
struct OwnedGradients {
  std::vector<T> emission, transition, duration, initial, final, start, end;
  std::int64_t B, T_, K, C, slices;
  explicit OwnedGradients(const Problem<T>& p)
      : B(p.B), T_(p.T_), K(p.K), C(p.C), slices(p.slices()) {
    for (std::vector<T>* v : {&emission, &start, &end}) v->assign(B * T_ * C, T(777));
    transition.assign(slices * C * C, T(777));
    duration.assign(K * C, T(777));
    initial.assign(C, T(777));
    final.assign(C, T(777));
  }
  Gradients<T> views() {
    Gradients<T> g;
    g.emission = {emission.data(), {B, T_, C}};
    g.start = {start.data(), {B, T_, C}};
    g.end = {end.data(), {B, T_, C}};
    g.transition = {transition.data(), {slices, C, C}};
    g.duration = {duration.data(), {K, C}};
    g.initial = initial;
    g.final = final;
    return g;
  }
  std::vector<T> flat() const {
    std::vector<T> all;
    for (const std::vector<T>* v :
         {&emission, &transition, &duration, &initial, &final, &start, &end})
      all.insert(all.end(), v->begin(), v->end());
    return all;
  }
};

template <class T>
const std::vector<T>& input(const Problem<T>& p, int kind) {
  const std::vector<T>* all[] = {&p.emission, &p.transition, &p.duration, &p.initial,
                                 &p.final,    &p.start,      &p.end};
  return *all[kind];
}

/// What the rounding of sums of this problem's scores may amount to: the scores that one path uses,
/// at their largest, times a few units in the last place of a double; and that of the oracle, which
/// adds up thousands of paths.
template <class T>
double rounding(const Problem<T>& p) {
  double largest = 1.0;
  for (int kind = 0; kind < 7; ++kind)
    for (const T v : input(p, kind))
      if (v > -kInf) largest = std::max(largest, std::abs(static_cast<double>(v)));
  return 1e-12 + 4e-15 * largest * static_cast<double>(5 * p.T_ + 5);
}

// --- the oracle ---

struct Piece {
  std::int64_t start, duration, label;
  bool operator==(const Piece&) const = default;
};
using Path = std::vector<Piece>;

/// Every segmentation of [0, length).
inline void list_paths(std::int64_t length, std::int64_t K, std::int64_t C, Path& prefix,
                       std::vector<Path>& out) {
  const std::int64_t at = prefix.empty() ? 0 : prefix.back().start + prefix.back().duration;
  if (at == length) {
    out.push_back(prefix);
    return;
  }
  for (std::int64_t d = 1; d <= std::min(K, length - at); ++d) {
    for (std::int64_t c = 0; c < C; ++c) {
      prefix.push_back({at, d, c});
      list_paths(length, K, C, prefix, out);
      prefix.pop_back();
    }
  }
}

inline std::vector<Path> all_paths(std::int64_t length, std::int64_t K, std::int64_t C) {
  std::vector<Path> out;
  Path prefix;
  list_paths(length, K, C, prefix, out);
  return out;
}

/// Calls visit(kind of input as an index in OwnedGradients::flat order, flat index) for each score
/// that a path uses, as often as it uses it.
template <class T>
void for_features(const Problem<T>& p, std::int64_t b, const Path& path,
                  const std::function<void(int, std::int64_t)>& visit) {
  const auto frame = [&](std::int64_t t, std::int64_t c) { return (b * p.T_ + t) * p.C + c; };
  for (std::size_t i = 0; i < path.size(); ++i) {
    const auto [s, d, c] = path[i];
    for (std::int64_t t = s; t < s + d; ++t) visit(0, frame(t, c));
    if (i > 0) visit(1, ((p.by_duration ? d - 1 : 0) * p.C + path[i - 1].label) * p.C + c);
    visit(2, (d - 1) * p.C + c);
    if (i == 0 && p.with_initial) visit(3, c);
    if (i + 1 == path.size() && p.with_final) visit(4, c);
    if (p.with_start) visit(5, frame(s, c));
    if (p.with_end) visit(6, frame(s + d - 1, c));
  }
}

template <class T>
double path_score(const Problem<T>& p, std::int64_t b, const Path& path) {
  double score = 0.0;
  for_features<T>(p, b, path, [&](int kind, std::int64_t i) {
    score += static_cast<double>(input(p, kind)[static_cast<std::size_t>(i)]);
  });
  return score;
}

inline double log_sum(const std::vector<double>& terms) {
  double max = -kInf;
  for (const double t : terms) max = std::max(max, t);
  if (max == -kInf) return max;
  double sum = 0.0;
  for (const double t : terms) sum += std::exp(t - max);
  return max + std::log(sum);
}

/// Everything about one row by enumeration.
template <class T>
struct Oracle {
  std::vector<Path> paths;
  std::vector<double> scores;
  double log_partition = 0.0;

  Oracle(const Problem<T>& p, std::int64_t b) : paths(all_paths(p.length(b), p.K, p.C)) {
    for (const Path& path : paths) scores.push_back(path_score(p, b, path));
    log_partition = log_sum(scores);
  }
  double probability(std::size_t i) const {
    return scores[i] == -kInf ? 0.0 : std::exp(scores[i] - log_partition);
  }
  double best() const { return *std::max_element(scores.begin(), scores.end()); }
};

inline Segmentations packed(const std::vector<Path>& rows) {
  Segmentations out;
  for (const Path& row : rows) {
    for (const Piece& s : row) out.append(s.start, s.duration, s.label);
    out.end_row();
  }
  return out;
}

inline Path unpacked(const Segmentations& y, std::int64_t b) {
  Path path;
  for (std::int64_t i = y.row_pointer[b]; i < y.row_pointer[b + 1]; ++i)
    path.push_back({y.start[i], y.duration[i], y.label[i]});
  return path;
}

/// A random segmentation of every row.
template <class T>
Segmentations random_gold(const Problem<T>& p, Rng& rng) {
  Segmentations out;
  for (std::int64_t b = 0; b < p.B; ++b) {
    for (std::int64_t t = 0; t < p.length(b);) {
      const auto limit = static_cast<std::uint64_t>(std::min(p.K, p.length(b) - t));
      const auto d = static_cast<std::int64_t>(1 + rng.below(limit));
      out.append(t, d, static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(p.C))));
      t += d;
    }
    out.end_row();
  }
  return out;
}

/// |a - b| relative to the larger of them and 1; 0 for equal infinities.
inline double relative(double a, double b) {
  if (a == b) return 0.0;
  return std::abs(a - b) / std::max({1.0, std::abs(a), std::abs(b)});
}

}  // namespace segfuse::semicrf::testing
