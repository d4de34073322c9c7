#pragma once
// Random constraints and tails, and their meaning by enumeration.

#include <optional>
#include <tuple>

#include "problems.h"
#include "segfuse/semicrf_tools.h"
#ifdef SEGFUSE_TEST_ON_DEVICE
#include "unit/gpu/device_inference.h"  // an Inference of this namespace
#endif

namespace segfuse::semicrf::testing {

/// Constraints and a tail that own their numbers; an empty vector is an absent member.
struct OwnedScope {
  std::int64_t B = 0, T_ = 0, C = 0;
  std::vector<std::uint8_t> allowed, transition;
  std::vector<std::int32_t> min_duration, max_duration, label;
  std::vector<std::int8_t> boundary;
  std::vector<double> tail;

  Scope scope() const {
    Scope s;
    Constraints& x = s.constraints;
    if (!allowed.empty()) x.allowed = {allowed.data(), {B, T_, C}};
    if (!transition.empty()) x.transition = {transition.data(), {C, C}};
    if (!min_duration.empty()) x.min_duration = min_duration;
    if (!max_duration.empty()) x.max_duration = max_duration;
    if (!label.empty()) x.label = {label.data(), {B, T_}};
    if (!boundary.empty()) x.boundary = {boundary.data(), {B, T_}};
    if (!tail.empty()) s.tail = tail;
    return s;
  }
  /// Whether a segmentation of row b fulfils the constraints.
  bool allows(std::int64_t b, const Path& path) const {
    for (std::size_t i = 0; i < path.size(); ++i) {
      const auto [s, d, c] = path[i];
      if (!min_duration.empty() && d < min_duration[c]) return false;
      if (!max_duration.empty() && d > max_duration[c]) return false;
      if (!transition.empty() && i > 0 && !transition[path[i - 1].label * C + c]) return false;
      for (std::int64_t t = s; t < s + d; ++t) {
        if (!allowed.empty() && !allowed[(b * T_ + t) * C + c]) return false;
        if (!label.empty() && label[b * T_ + t] >= 0 && label[b * T_ + t] != c) return false;
        const int known = boundary.empty() ? -1 : boundary[b * T_ + t];
        if (known >= 0 && known != (t == s ? 1 : 0)) return false;
      }
    }
    return true;
  }
};

template <class T>
OwnedScope random_scope(const Problem<T>& p, Rng& rng, bool forced = true) {
  OwnedScope x;
  x.B = p.B, x.T_ = p.T_, x.C = p.C;
  const auto chance = [&](double probability) { return rng.uniform() < probability; };
  const std::int64_t frames = p.B * p.T_;
  if (chance(0.3))
    for (std::int64_t i = 0; i < frames * p.C; ++i) x.allowed.push_back(chance(0.85));
  if (chance(0.3))
    for (std::int64_t i = 0; i < p.C * p.C; ++i) x.transition.push_back(chance(0.7));
  if (chance(0.3))
    for (std::int64_t c = 0; c < p.C; ++c)
      x.min_duration.push_back(static_cast<std::int32_t>(1 + rng.below(2)));
  for (std::int32_t& d : x.min_duration) d = std::min(d, static_cast<std::int32_t>(p.K));
  if (chance(0.3))
    for (std::int64_t c = 0; c < p.C; ++c)
      x.max_duration.push_back(static_cast<std::int32_t>(1 + rng.below(p.K)));
  if (chance(0.3))
    for (std::int64_t i = 0; i < frames; ++i)
      x.label.push_back(chance(0.7) ? -1 : static_cast<std::int32_t>(rng.below(p.C)));
  if (chance(0.5)) {
    for (std::int64_t i = 0; i < frames; ++i) {
      const double u = rng.uniform();
      const bool first = i % p.T_ == 0;
      x.boundary.push_back(u < 0.7 ? -1 : (u < 0.85 && forced) || first ? (forced ? 1 : -1) : 0);
    }
  }
  return x;
}

/// The same model with every duration up to its frames in the table: what a tail stands for.
template <class T>
Problem<T> widened(const Problem<T>& p, const std::vector<double>& tail) {
  Problem<T> q = p;
  q.K = std::max(p.K, p.T_);
  for (std::int64_t d = p.K + 1; d <= q.K; ++d) {
    for (std::int64_t c = 0; c < p.C; ++c) {
      const double score = static_cast<double>(p.duration[(p.K - 1) * p.C + c]);
      q.duration.push_back(static_cast<T>(score + static_cast<double>(d - p.K) * tail[c]));
    }
    if (!p.by_duration) continue;
    for (std::int64_t i = 0; i < p.C * p.C; ++i)
      q.transition.push_back(p.transition[(p.K - 1) * p.C * p.C + i]);
  }
  return q;
}

/// One row of a problem within a scope, by enumeration. Scores outside the scope are -inf.
template <class T>
struct ScopedOracle : Oracle<T> {
  std::vector<double> inside;
  double constrained;
  ScopedOracle(const Problem<T>& wide, std::int64_t b, const OwnedScope& scope)
      : Oracle<T>(wide, b) {
    for (std::size_t i = 0; i < this->paths.size(); ++i)
      inside.push_back(scope.allows(b, this->paths[i]) ? this->scores[i] : -kInf);
    constrained = log_sum(inside);
  }
  double probability_inside(std::size_t i) const {
    return inside[i] == -kInf ? 0.0 : std::exp(inside[i] - constrained);
  }
};

struct ToolCase {
  std::int64_t frames, K, C;
};

/// Of for_scopes' problems, each how many are taken: all, but few where the device is emulated.
inline int scopes_step() {
#ifdef SEGFUSE_TEST_ON_DEVICE
  if (test_gpu().device->name() == "emulator") return 5;
#endif
  return 1;
}

/// Runs body(problem in double, scope, rng): all draws and options, with a tail in half of them.
template <class Body>
void for_scopes(const Body& body) {
  const ToolCase sizes[] = {{1, 1, 1}, {2, 3, 2}, {4, 2, 3}, {6, 3, 2}, {6, 1, 2}, {7, 2, 1}};
  std::uint64_t seed = 9000;
  for (const Draw& draw : all_draws()) {
    for (const ToolCase& size : sizes) {
      for (int option = 0; option < 8; ++option) {
        Rng rng(++seed);
        if (seed % static_cast<std::uint64_t>(scopes_step()) != 0) continue;
        auto p = random_problem<double>(2, size.frames, size.K, size.C, option % 2 == 1, draw, rng);
        const std::uint64_t mask = option < 2 ? 15 : rng.below(16);
        p.with_initial = mask & 1, p.with_final = mask & 2;
        p.with_start = mask & 4, p.with_end = mask & 8;
        if (option >= 4)
          p.lengths = {size.frames, static_cast<std::int64_t>(rng.below(size.frames + 1))};
        OwnedScope scope = random_scope(p, rng);
        if (option % 4 >= 2) fill(scope.tail, p.C, draw, rng);
        SCOPED_TRACE(::testing::Message() << "seed " << seed << " T " << size.frames << " K "
                                          << size.K << " C " << size.C << " option " << option);
        body(p, scope, rng);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

/// The problem as the oracle sees it.
inline Problem<double> wide_problem(const Problem<double>& p, const OwnedScope& scope) {
  return scope.tail.empty() ? p : widened(p, scope.tail);
}

/// sum_i amount_i * counts of path i, in the order of OwnedGradients::flat, then the tail's.
inline std::vector<double> counts_of(
    const Problem<double>& p, const Problem<double>& wide,
    const std::vector<std::tuple<std::int64_t, Path, double>>& paths) {
  std::vector<std::vector<double>> parts;
  for (int kind = 0; kind < 7; ++kind) parts.emplace_back(input(p, kind).size(), 0.0);
  std::vector<double> tail(p.C, 0.0);
  auto all = wide;
  all.with_initial = all.with_final = all.with_start = all.with_end = true;
  const std::int64_t square = p.C * p.C;
  for (const auto& [b, path, amount] : paths) {
    for_features<double>(all, b, path, [&](int kind, std::int64_t i) {
      if (kind == 1 && p.by_duration) i = std::min(i / square, p.K - 1) * square + i % square;
      if (kind == 2) i = std::min(i / p.C, p.K - 1) * p.C + i % p.C;
      parts[kind][i] += amount;
    });
    for (const Piece& piece : path)
      tail[piece.label] +=
          amount * static_cast<double>(std::max<std::int64_t>(0, piece.duration - p.K));
  }
  std::vector<double> flat;
  for (const auto& part : parts) flat.insert(flat.end(), part.begin(), part.end());
  flat.insert(flat.end(), tail.begin(), tail.end());
  return flat;
}

}  // namespace segfuse::semicrf::testing
