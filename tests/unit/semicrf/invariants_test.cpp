// What holds at any size: tests 9 to 15 of the design.

#include <gtest/gtest.h>

#include <numeric>

#include "problems.h"

namespace segfuse::semicrf::testing {
namespace {

/// All posteriors of a problem, owned.
template <class T>
struct OwnedPosteriors {
  std::vector<T> label, start, end, boundary, duration;
  std::vector<double> entropy, log_partition;
  std::int64_t B, T_, K, C;
  explicit OwnedPosteriors(const Problem<T>& p) : B(p.B), T_(p.T_), K(p.K), C(p.C) {
    for (std::vector<T>* v : {&label, &start, &end}) v->assign(B * T_ * C, T(777));
    boundary.assign(B * T_, T(777));
    duration.assign(B * K * C, T(777));
    entropy.assign(B, 777);
    log_partition.assign(B, 777);
  }
  OwnedPosteriors(const Problem<T>& p, Engine& engine) : OwnedPosteriors(p) {
    engine.posteriors(p.potentials(), views());
  }
  Posteriors<T> views() {
    Posteriors<T> r;
    r.label = {label.data(), {B, T_, C}};
    r.start = {start.data(), {B, T_, C}};
    r.end = {end.data(), {B, T_, C}};
    r.boundary = {boundary.data(), {B, T_}};
    r.duration = {duration.data(), {B, K, C}};
    r.entropy = entropy;
    r.log_partition = log_partition;
    return r;
  }
};

template <class T>
Problem<T> middling(std::uint64_t seed, bool by_duration, const Draw& draw = gaussian) {
  Rng rng(seed);
  auto p = random_problem<T>(3, 60, 9, 11, by_duration, draw, rng);
  p.lengths = {60, 1, 37};
  return p;
}

template <class T>
class Invariants : public ::testing::Test {
 protected:
  Engine engine{1};
  double tolerance = sizeof(T) == 4 ? 2e-6 : 1e-11;
};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Invariants, Types);

TYPED_TEST(Invariants, Test09LabelPosteriorsSumToOneInsideTheRowAndAreZeroInPadding) {
  std::uint64_t seed = 0;
  for (const bool by_duration : {false, true}) {
    for (const Draw& draw : {Draw(gaussian), Draw(wide), Draw(zero)}) {
      const auto p = middling<TypeParam>(++seed, by_duration, draw);
      const OwnedPosteriors<TypeParam> found(p, this->engine);
      for (std::int64_t b = 0; b < p.B; ++b) {
        for (std::int64_t t = 0; t < p.T_; ++t) {
          const TypeParam* label = &found.label[(b * p.T_ + t) * p.C];
          const double sum = std::accumulate(label, label + p.C, 0.0);
          EXPECT_NEAR(sum, t < p.length(b) ? 1.0 : 0.0, t < p.length(b) ? this->tolerance : 0.0);
          for (std::int64_t c = 0; c < p.C; ++c) EXPECT_GE(label[c], 0.0);
        }
      }
    }
  }
}

TYPED_TEST(Invariants, Test09AForbiddenLabelHasNoPosteriorAtAll) {
  // Exactly 0, not what rounding leaves of the segments before.
  const auto p = middling<TypeParam>(9, false, holes);
  const OwnedPosteriors<TypeParam> found(p, this->engine);
  std::int64_t forbidden = 0;
  for (std::size_t i = 0; i < p.emission.size(); ++i) {
    if (p.emission[i] > -kInf) continue;
    ++forbidden;
    EXPECT_EQ(found.label[i], 0) << i;
  }
  EXPECT_GT(forbidden, 100);
  EXPECT_GT(found.log_partition[0], -kInf);
}

TYPED_TEST(Invariants, Test10BoundariesDurationsAndTransitionsCountTheSameSegments) {
  for (const bool by_duration : {false, true}) {
    auto p = middling<TypeParam>(11, by_duration);
    p.B = 1, p.lengths = {57};
    const OwnedPosteriors<TypeParam> found(p, this->engine);
    OwnedGradients<TypeParam> counts(p);
    this->engine.log_partition(p.potentials(), {}, counts.views());
    EXPECT_NEAR(found.boundary[0], 1.0, this->tolerance);
    const auto total = [](const auto& v) { return std::accumulate(v.begin(), v.end(), 0.0); };
    const double segments = total(found.boundary);
    const double wide_tolerance = 60 * this->tolerance;
    EXPECT_GT(segments, 1.0);
    EXPECT_NEAR(total(found.end), segments, wide_tolerance);
    EXPECT_NEAR(total(found.duration), segments, wide_tolerance);
    EXPECT_NEAR(total(counts.duration), segments, wide_tolerance);
    EXPECT_NEAR(total(counts.transition), segments - 1.0, wide_tolerance);
    EXPECT_NEAR(total(counts.initial), 1.0, this->tolerance);
    EXPECT_NEAR(total(counts.final), 1.0, this->tolerance);
  }
}

TYPED_TEST(Invariants, Test11ExpectedDurationsAddUpToTheLength) {
  const auto p = middling<TypeParam>(21, false);
  const OwnedPosteriors<TypeParam> found(p, this->engine);
  for (std::int64_t b = 0; b < p.B; ++b) {
    double frames = 0.0;
    for (std::int64_t k = 0; k < p.K; ++k)
      for (std::int64_t c = 0; c < p.C; ++c)
        frames += static_cast<double>(k + 1) * found.duration[(b * p.K + k) * p.C + c];
    EXPECT_NEAR(frames, static_cast<double>(p.length(b)), 60 * this->tolerance);
  }
}

TYPED_TEST(Invariants, Test12ThePartitionExceedsViterbiAndGrowsWithK) {
  const auto p = middling<TypeParam>(31, false);
  double last = -kInf;
  for (std::int64_t K = 1; K <= p.K; ++K) {
    auto shorter = p;
    shorter.B = 1, shorter.K = K, shorter.lengths = {60};
    std::vector<double> log_partition(1), best(1);
    Segmentations path;
    this->engine.log_partition(shorter.potentials(), {log_partition, {}});
    this->engine.viterbi(shorter.potentials(), path, {best, {}});
    EXPECT_GT(log_partition[0], best[0]);
    EXPECT_GT(log_partition[0], last);
    last = log_partition[0];
  }
}

TYPED_TEST(Invariants, Test13AConstantPerPositionShiftsThePartitionAlone) {
  // Scores and shifts in small binary fractions, so that their sums are exact in float too.
  const auto cut = [](Rng& rng) { return std::round(rng.normal() * 4096) / 4096; };
  const auto p = middling<TypeParam>(41, false, cut);
  auto shifted = p;
  Rng rng(42);
  std::vector<double> sums(p.B);
  for (std::int64_t b = 0; b < p.B; ++b) {
    for (std::int64_t t = 0; t < p.T_; ++t) {
      const double shift = static_cast<double>(rng.below(512)) / 16.0 - 16.0;
      if (t < p.length(b)) sums[b] += shift;
      for (std::int64_t c = 0; c < p.C; ++c)
        shifted.emission[(b * p.T_ + t) * p.C + c] += static_cast<TypeParam>(shift);
    }
  }
  std::vector<double> before(p.B), after(p.B);
  OwnedGradients<TypeParam> g_before(p), g_after(p);
  this->engine.log_partition(p.potentials(), {before, {}}, g_before.views());
  this->engine.log_partition(shifted.potentials(), {after, {}}, g_after.views());
  for (std::int64_t b = 0; b < p.B; ++b) EXPECT_NEAR(after[b] - before[b], sums[b], 1e-10);
  const auto x = g_before.flat(), y = g_after.flat();
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 10 * this->tolerance);
}

TYPED_TEST(Invariants, SumsThatOverflowAreRefused) {
  if constexpr (std::is_same_v<TypeParam, double>) {
    // By duration such rows still have no path.
    auto p = middling<double>(43, false, [](Rng& rng) { return rng.normal(); });
    Rng rng(44);
    const Segmentations gold = random_gold(p, rng);
    std::fill(p.emission.begin(), p.emission.end(), 1.7e308);
    std::vector<double> out(p.B);
    const View<double, 1> numbers = out;
    LossResult result;
    result.loss = numbers;
    Posteriors<double> posteriors;
    posteriors.log_partition = numbers;
    std::vector<double> each(gold.start.size());
    Segmentations best;
    auto& own = this->engine;
    EXPECT_THROW(own.log_partition(p.potentials(), {numbers, {}}), DataError);
    EXPECT_THROW(own.loss(p.potentials(), gold, result), DataError);
    EXPECT_THROW(own.score(p.potentials(), gold.view(), numbers), DataError);
    EXPECT_THROW(own.posteriors(p.potentials(), posteriors), DataError);
    EXPECT_THROW(own.segment_posteriors(p.potentials(), gold.view(), each), DataError);
    ViterbiResult of_best;
    of_best.score = numbers;
    EXPECT_THROW(own.viterbi(p.potentials(), best, of_best), DataError);
  }
}

TYPED_TEST(Invariants, Test14LabelsMayBePermuted) {
  for (const bool by_duration : {false, true}) {
    const auto p = middling<TypeParam>(51, by_duration);
    std::vector<std::int64_t> to(p.C);
    std::iota(to.begin(), to.end(), 0);
    Rng(52).shuffle(to);
    auto q = p;
    const auto permute = [&](const auto& from, auto& into) {
      for (std::size_t i = 0; i < from.size(); ++i) into[i / p.C * p.C + to[i % p.C]] = from[i];
    };
    permute(p.emission, q.emission), permute(p.start, q.start), permute(p.end, q.end);
    permute(p.duration, q.duration), permute(p.initial, q.initial), permute(p.final, q.final);
    for (std::int64_t k = 0; k < p.slices(); ++k)
      for (std::int64_t i = 0; i < p.C; ++i)
        for (std::int64_t j = 0; j < p.C; ++j)
          q.transition[(k * p.C + to[i]) * p.C + to[j]] = p.transition[(k * p.C + i) * p.C + j];
    const OwnedPosteriors<TypeParam> a(p, this->engine), b(q, this->engine);
    for (std::int64_t row = 0; row < p.B; ++row)
      EXPECT_LT(relative(a.log_partition[row], b.log_partition[row]), 1e-13);
    for (std::size_t i = 0; i < a.label.size(); ++i)
      ASSERT_NEAR(a.label[i], b.label[i / p.C * p.C + to[i % p.C]], this->tolerance);
    Segmentations x, y;
    this->engine.viterbi(p.potentials(), x);
    this->engine.viterbi(q.potentials(), y);
    ASSERT_EQ(x.duration, y.duration);
    for (std::size_t i = 0; i < x.label.size(); ++i) EXPECT_EQ(to[x.label[i]], y.label[i]);
  }
}

TYPED_TEST(Invariants, Test14TimeMayBeReversed) {
  auto p = middling<TypeParam>(61, false);
  p.lengths.clear();
  auto q = p;
  std::swap(q.initial, q.final);
  for (std::int64_t b = 0; b < p.B; ++b) {
    for (std::int64_t t = 0; t < p.T_; ++t) {
      for (std::int64_t c = 0; c < p.C; ++c) {
        const std::int64_t from = (b * p.T_ + p.T_ - 1 - t) * p.C + c;
        const std::int64_t into = (b * p.T_ + t) * p.C + c;
        q.emission[into] = p.emission[from];
        q.start[into] = p.end[from];
        q.end[into] = p.start[from];
      }
    }
  }
  for (std::int64_t i = 0; i < p.C; ++i)
    for (std::int64_t j = 0; j < p.C; ++j) q.transition[i * p.C + j] = p.transition[j * p.C + i];
  const OwnedPosteriors<TypeParam> a(p, this->engine), b(q, this->engine);
  for (std::int64_t row = 0; row < p.B; ++row) {
    EXPECT_LT(relative(a.log_partition[row], b.log_partition[row]), 1e-13);
    EXPECT_NEAR(a.entropy[row], b.entropy[row], 1e-9);
    for (std::int64_t t = 0; t < p.T_; ++t)
      for (std::int64_t c = 0; c < p.C; ++c)
        ASSERT_NEAR(a.start[(row * p.T_ + t) * p.C + c],
                    b.end[(row * p.T_ + p.T_ - 1 - t) * p.C + c], this->tolerance);
  }
  for (std::size_t i = 0; i < a.duration.size(); ++i)
    ASSERT_NEAR(a.duration[i], b.duration[i], 60 * this->tolerance);
}

TYPED_TEST(Invariants, Test15OneLabelCountsCompositions) {
  // All scores 0: the number of compositions of L into parts of at most K; then weighted parts.
  for (const bool weighted : {false, true}) {
    Rng rng(71);
    const std::int64_t L = 80, K = 5;
    auto p = random_problem<TypeParam>(1, L, K, 1, false, zero, rng);
    if (weighted) fill(p.duration, K, gaussian, rng);
    std::vector<double> log_partition(1);
    this->engine.log_partition(p.potentials(), {log_partition, {}});
    std::vector<double> ways(L + 1, 0.0);
    ways[0] = 1.0;
    for (std::int64_t n = 1; n <= L; ++n)
      for (std::int64_t k = 1; k <= std::min(K, n); ++k)
        ways[n] += ways[n - k] * std::exp(static_cast<double>(p.duration[k - 1]));
    EXPECT_LT(relative(log_partition[0], std::log(ways[L])), 1e-13);
  }
}

/// Forbids scores of one kind, some of the others left in every frame, row of a table and so on.
template <class T>
void forbid(std::vector<T>& scores, std::int64_t classes, double mask) {
  for (std::size_t i = 0; i < scores.size(); ++i)
    if (i % static_cast<std::size_t>(classes) != 0 && i % 3 == 1) scores[i] = static_cast<T>(mask);
}

TYPED_TEST(Invariants, FiniteMasksAreAsGoodAsForbiddenScores) {
  using Scores = std::vector<TypeParam> Problem<TypeParam>::*;
  using P = Problem<TypeParam>;
  for (const Scores kind :
       {&P::emission, &P::transition, &P::duration, &P::initial, &P::final, &P::start, &P::end}) {
    for (const std::int64_t frames : {14, 400}) {
      Rng rng(static_cast<std::uint64_t>(frames));
      const auto base = random_problem<TypeParam>(2, frames, 9, 5, false, gaussian, rng);
      P expected = base;
      forbid(expected.*kind, 5, -kInf);
      OwnedPosteriors<TypeParam> want(expected, this->engine);
      for (const double mask : {-1e5, -1e9, -1e20, -1e30, -3.4e38}) {
        SCOPED_TRACE(::testing::Message() << frames << " frames, mask " << mask);
        P p = base;
        forbid(p.*kind, 5, mask);
        OwnedPosteriors<TypeParam> found(p, this->engine);
        for (std::int64_t b = 0; b < p.B; ++b) {
          EXPECT_NEAR(found.log_partition[b], want.log_partition[b], 1e-10);
          EXPECT_NEAR(found.entropy[b], want.entropy[b], 1e-7 * want.entropy[b]);
        }
        const auto near = [&](const std::vector<TypeParam>& x, const std::vector<TypeParam>& y) {
          for (std::size_t i = 0; i < x.size(); ++i)
            ASSERT_NEAR(x[i], y[i], this->tolerance * (1 + std::abs(y[i]))) << i;
        };
        near(found.label, want.label), near(found.start, want.start), near(found.end, want.end);
        near(found.duration, want.duration);
        if (this->HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace segfuse::semicrf::testing
