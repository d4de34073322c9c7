#pragma once
// Problems with segment_scores and transition_scores, and their meaning by enumeration.

#include <string>

#include "../problems.h"

namespace segfuse::semicrf::testing {

struct TableSize {
  std::int64_t frames, K, C;
};

enum class Changes { kNone, kShared, kByRow };

/// A problem with tables that own their numbers. What no segmentation reads is NaN.
template <class T>
struct TableProblem {
  Problem<T> base;
  bool with_segments = true;
  Changes changes = Changes::kByRow;
  std::vector<T> segments;  ///< (B, T, K, C)
  std::vector<T> pairs;     ///< (B or 1, T, C, C)

  std::int64_t pair_rows() const { return changes == Changes::kShared ? 1 : base.B; }
  Potentials<T> potentials() const {
    Potentials<T> p = base.potentials();
    if (with_segments) p.segment_scores = {segments.data(), {base.B, base.T_, base.K, base.C}};
    if (changes != Changes::kNone)
      p.transition_scores = {pairs.data(), {pair_rows(), base.T_, base.C, base.C}};
    return p;
  }
  std::size_t segment_at(std::int64_t b, std::int64_t s, std::int64_t d, std::int64_t c) const {
    return static_cast<std::size_t>(((b * base.T_ + s) * base.K + d - 1) * base.C + c);
  }
  std::size_t pair_at(std::int64_t b, std::int64_t s, std::int64_t i, std::int64_t c) const {
    const std::int64_t row = changes == Changes::kShared ? 0 : b;
    return static_cast<std::size_t>(((row * base.T_ + s) * base.C + i) * base.C + c);
  }
  double score(std::int64_t b, const Path& path) const {
    double sum = path_score(base, b, path);
    for (std::size_t i = 0; i < path.size(); ++i) {
      const auto [s, d, c] = path[i];
      if (with_segments) sum += static_cast<double>(segments[segment_at(b, s, d, c)]);
      if (changes != Changes::kNone && i > 0)
        sum += static_cast<double>(pairs[pair_at(b, s, path[i - 1].label, c)]);
    }
    return sum;
  }
};

template <class T>
TableProblem<T> random_tables(Problem<T> base, bool with_segments, Changes changes,
                              const Draw& draw, Rng& rng) {
  TableProblem<T> p{std::move(base), with_segments, changes, {}, {}};
  const Problem<T>& q = p.base;
  p.segments.assign(static_cast<std::size_t>(q.B * q.T_ * q.K * q.C), static_cast<T>(kNaN));
  p.pairs.assign(static_cast<std::size_t>(p.pair_rows() * q.T_ * q.C * q.C), static_cast<T>(kNaN));
  for (std::int64_t b = 0; b < q.B; ++b) {
    for (std::int64_t s = 0; s < q.length(b); ++s) {
      for (std::int64_t c = 0; c < q.C; ++c) {
        for (std::int64_t d = 1; d <= std::min(q.K, q.length(b) - s); ++d)
          p.segments[p.segment_at(b, s, d, c)] = static_cast<T>(draw(rng));
        for (std::int64_t i = 0; s > 0 && i < q.C; ++i)
          p.pairs[p.pair_at(b, s, i, c)] = static_cast<T>(draw(rng));
      }
    }
  }
  return p;
}

/// Small random problems with tables, all scores finite.
template <class T = double>
TableProblem<T> some_tables(std::int64_t B, std::int64_t frames, std::int64_t K, std::int64_t C,
                            bool by_duration, Changes changes, std::uint64_t seed) {
  Rng rng(seed);
  auto base = random_problem<T>(B, frames, K, C, by_duration, gaussian, rng);
  for (std::int64_t b = 0; b < B; ++b)
    base.lengths.push_back(b == 0 ? frames : static_cast<std::int64_t>(rng.below(frames + 1)));
  return random_tables<T>(base, true, changes, gaussian, rng);
}

/// What the rounding of sums may amount to, tables included.
template <class T>
double rounding(const TableProblem<T>& p) {
  Problem<T> all = p.base;  // with the largest of all scores among its own
  for (const std::vector<T>* table : {&p.segments, &p.pairs})
    for (const T x : *table)
      if (std::isfinite(static_cast<double>(x))) all.emission.push_back(x);
  return 1.5 * rounding(all);
}

/// All segmentations of a row with their scores.
template <class T>
struct TableOracle {
  std::vector<Path> paths;
  std::vector<double> scores;
  double log_partition;
  TableOracle(const TableProblem<T>& p, std::int64_t b)
      : paths(all_paths(p.base.length(b), p.base.K, p.base.C)) {
    for (const Path& path : paths) scores.push_back(p.score(b, path));
    log_partition = log_sum(scores);
  }
  double probability(std::size_t i) const {
    return scores[i] == -kInf ? 0.0 : std::exp(scores[i] - log_partition);
  }
};

/// Gradients of a problem with tables, poisoned.
template <class T>
struct TableGradientsOwned {
  OwnedGradients<T> base;
  std::vector<T> segments, pairs;
  explicit TableGradientsOwned(const TableProblem<T>& p) : base(p.base) {
    segments.assign(p.with_segments ? p.segments.size() : 0, T(777));
    pairs.assign(p.changes != Changes::kNone ? p.pairs.size() : 0, T(777));
  }
  Gradients<T> views(const TableProblem<T>& p) {
    Gradients<T> g = base.views();
    const Problem<T>& q = p.base;
    if (!segments.empty()) g.segment_scores = {segments.data(), {q.B, q.T_, q.K, q.C}};
    if (!pairs.empty()) g.transition_scores = {pairs.data(), {p.pair_rows(), q.T_, q.C, q.C}};
    return g;
  }
  /// All parts, each with its name.
  std::vector<std::pair<std::string, std::vector<T>>> parts() const {
    return {{"base", base.flat()}, {"segment_scores", segments}, {"transition_scores", pairs}};
  }
};

/// Weighted expected counts, less the gold's when given, in the order of parts().
template <class T>
std::vector<std::vector<double>> expected_parts(const TableProblem<T>& p,
                                                const std::vector<double>& weights,
                                                const Segmentations* gold) {
  std::vector<std::vector<double>> kinds;
  for (int kind = 0; kind < 7; ++kind) kinds.emplace_back(input(p.base, kind).size(), 0.0);
  std::vector<double> segments(p.with_segments ? p.segments.size() : 0, 0.0);
  std::vector<double> pairs(p.changes != Changes::kNone ? p.pairs.size() : 0, 0.0);
  auto all = p.base;
  all.with_initial = all.with_final = all.with_start = all.with_end = true;
  for (std::int64_t b = 0; b < p.base.B; ++b) {
    const TableOracle<T> oracle(p, b);
    if (oracle.log_partition == -kInf) continue;
    if (gold && p.score(b, unpacked(*gold, b)) == -kInf) continue;
    const auto add = [&](const Path& path, double amount) {
      for_features<T>(all, b, path, [&](int kind, std::int64_t i) {
        kinds[static_cast<std::size_t>(kind)][static_cast<std::size_t>(i)] += amount;
      });
      for (std::size_t i = 0; i < path.size(); ++i) {
        const auto [s, d, c] = path[i];
        if (!segments.empty()) segments[p.segment_at(b, s, d, c)] += amount;
        if (!pairs.empty() && i > 0) pairs[p.pair_at(b, s, path[i - 1].label, c)] += amount;
      }
    };
    for (std::size_t i = 0; i < oracle.paths.size(); ++i)
      if (oracle.probability(i) > 0.0) add(oracle.paths[i], weights[b] * oracle.probability(i));
    if (gold) add(unpacked(*gold, b), -weights[b]);
  }
  std::vector<double> flat;
  for (const auto& kind : kinds) flat.insert(flat.end(), kind.begin(), kind.end());
  return {flat, segments, pairs};
}

}  // namespace segfuse::semicrf::testing
