// Rows, threads, memory layout, long rows: tests 19 and 20 of the design, and the accuracy rules.

#include <gtest/gtest.h>

#include <numeric>

#include "base/thread_pool.h"
#include "problems.h"

namespace segfuse::semicrf::testing {
namespace {

template <class T>
class Batching : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Batching, Types);

TYPED_TEST(Batching, Test19ARaggedRowEqualsTheRowAlone) {
  for (const bool by_duration : {false, true}) {
    Rng rng(1);
    auto p = random_problem<TypeParam>(5, 23, 6, 7, by_duration, gaussian, rng);
    p.lengths = {23, 1, 0, 6, 17};
    const Segmentations gold = random_gold(p, rng);
    std::vector<double> loss(p.B);
    OwnedGradients<TypeParam> all(p);
    LossResult result;
    result.loss = loss;
    Engine engine(3);
    engine.loss(p.potentials(), gold, result, all.views());
    Segmentations best;
    engine.viterbi(p.potentials(), best);
    for (std::int64_t b = 0; b < p.B; ++b) {
      SCOPED_TRACE(b);
      const std::int64_t L = p.lengths[b];
      auto one = p;
      one.B = 1, one.T_ = L, one.lengths.clear();
      const auto cut = [&](const std::vector<TypeParam>& from, std::vector<TypeParam>& into) {
        into.assign(from.begin() + b * p.T_ * p.C, from.begin() + (b * p.T_ + L) * p.C);
      };
      cut(p.emission, one.emission), cut(p.start, one.start), cut(p.end, one.end);
      OwnedGradients<TypeParam> alone(one);
      std::vector<double> loss_alone(1);
      result.loss = loss_alone;
      engine.loss(one.potentials(), packed({unpacked(gold, b)}), result, alone.views());
      EXPECT_EQ(loss_alone[0], loss[b]);
      for (std::int64_t i = 0; i < p.T_ * p.C; ++i) {
        const std::int64_t at = b * p.T_ * p.C + i;
        ASSERT_EQ(all.emission[at], i < L * p.C ? alone.emission[i] : 0) << i;
        ASSERT_EQ(all.start[at], i < L * p.C ? alone.start[i] : 0) << i;
        ASSERT_EQ(all.end[at], i < L * p.C ? alone.end[i] : 0) << i;
      }
      Segmentations best_alone;
      engine.viterbi(one.potentials(), best_alone);
      EXPECT_EQ(unpacked(best_alone, 0), unpacked(best, b));
    }
  }
}

TYPED_TEST(Batching, Test19PaddingNeverMatters) {
  Rng rng(2);
  auto p = random_problem<TypeParam>(3, 19, 5, 9, false, gaussian, rng);
  p.lengths = {19, 0, 11};
  const Segmentations gold = random_gold(p, rng);
  std::vector<std::vector<TypeParam>> found;
  for (const double padding : {0.0, kNaN, 1e30, kInf, -kInf}) {
    auto q = p;
    for (std::int64_t b = 0; b < p.B; ++b)
      for (std::int64_t i = p.lengths[b] * p.C; i < p.T_ * p.C; ++i)
        for (std::vector<TypeParam>* v : {&q.emission, &q.start, &q.end})
          (*v)[b * p.T_ * p.C + i] = static_cast<TypeParam>(padding);
    OwnedGradients<TypeParam> gradients(q);
    std::vector<double> loss(p.B), score(p.B);
    LossResult result;
    result.loss = loss;
    Engine engine(1);
    engine.loss(q.potentials(), gold, result, gradients.views());
    Segmentations best;
    engine.viterbi(q.potentials(), best, {score, {}});
    found.push_back(gradients.flat());
    for (const std::vector<double>& values : {loss, score})
      for (const double v : values) found.back().push_back(static_cast<TypeParam>(v));
    for (const std::int32_t d : best.duration) found.back().push_back(static_cast<TypeParam>(d));
  }
  for (const auto& other : found) EXPECT_EQ(other, found[0]);
}

TYPED_TEST(Batching, RowsWithoutWeightOrPathContributeNothing) {
  Rng rng(3);
  auto p = random_problem<TypeParam>(3, 8, 3, 4, false, gaussian, rng);
  for (std::int64_t i = 0; i < p.C; ++i)  // nothing is allowed at frame 5 of row 1
    p.emission[(p.T_ + 5) * p.C + i] = static_cast<TypeParam>(-kInf);
  const Segmentations gold = random_gold(p, rng);
  std::vector<double> loss(3), weights = {1.0, 1.0, 0.0};
  std::vector<RowStatus> status(3);
  OwnedGradients<TypeParam> gradients(p);
  LossResult result;
  result.loss = loss, result.status = status;
  Engine engine(1);
  engine.loss(p.potentials(), gold, result, gradients.views(), weights);
  EXPECT_EQ(status, (std::vector{RowStatus::kOk, RowStatus::kNoPath, RowStatus::kOk}));
  EXPECT_EQ(loss[1], kInf);
  EXPECT_GT(loss[2], 0.0);
  auto first = p;
  first.B = 1;
  OwnedGradients<TypeParam> alone(first);
  engine.loss(first.potentials(), packed({unpacked(gold, 0)}), {}, alone.views());
  EXPECT_EQ(gradients.transition, alone.transition);
  EXPECT_EQ(gradients.duration, alone.duration);
  EXPECT_EQ(gradients.initial, alone.initial);
  EXPECT_EQ(gradients.final, alone.final);
  for (std::int64_t i = p.T_ * p.C; i < 3 * p.T_ * p.C; ++i) EXPECT_EQ(gradients.emission[i], 0);
}

TYPED_TEST(Batching, SameBitsForAnyNumberOfThreadsAndAnyOrderOfRows) {
  Rng rng(4);
  auto p = random_problem<TypeParam>(21, 31, 7, 10, false, wide, rng);
  for (std::int64_t b = 0; b < p.B; ++b)
    p.lengths.push_back(static_cast<std::int64_t>(rng.below(32)));
  const Segmentations gold = random_gold(p, rng);
  std::vector<std::vector<TypeParam>> found;
  std::vector<double> loss(p.B);
  for (const int threads : {1, 2, 5, 5}) {
    Engine engine(threads);
    OwnedGradients<TypeParam> gradients(p);
    LossResult result;
    result.loss = loss;
    for (int call = 0; call < 2; ++call)  // the second call finds used workspaces
      engine.loss(p.potentials(), gold, result, gradients.views());
    found.push_back(gradients.flat());
  }
  for (const auto& other : found) EXPECT_EQ(other, found[0]);
  auto reversed = p;
  std::vector<Path> golds;
  for (std::int64_t b = 0; b < p.B; ++b) {
    const std::int64_t from = p.B - 1 - b;
    golds.push_back(unpacked(gold, from));
    reversed.lengths[b] = p.lengths[from];
    for (auto [source, target] :
         {std::pair(&p.emission, &reversed.emission), std::pair(&p.start, &reversed.start),
          std::pair(&p.end, &reversed.end)})
      std::copy_n(source->begin() + from * p.T_ * p.C, p.T_ * p.C,
                  target->begin() + b * p.T_ * p.C);
  }
  std::vector<double> loss_reversed(p.B);
  LossResult result;
  result.loss = loss_reversed;
  OwnedGradients<TypeParam> gradients(reversed);
  Engine(2).loss(reversed.potentials(), packed(golds), result, gradients.views());
  std::reverse(loss_reversed.begin(), loss_reversed.end());
  EXPECT_EQ(loss, loss_reversed);
  for (std::int64_t i = 0; i < p.T_ * p.C; ++i)
    ASSERT_EQ(gradients.emission[i], found[0][(p.B - 1) * p.T_ * p.C + i]);
}

TYPED_TEST(Batching, Test24WhatAWorkspaceHeldBeforeNeverShows) {
  // Fresh memory is full of NaN in this program (allocation_counter.cpp); used memory holds other
  // problems, larger and smaller, in and out of the linear domain.
  Rng rng(8);
  std::vector<Problem<TypeParam>> problems;
  for (const bool by_duration : {false, true}) {
    problems.push_back(random_problem<TypeParam>(3, 40, 9, 12, by_duration, gaussian, rng));
    problems.push_back(random_problem<TypeParam>(2, 70, 3, 5, by_duration, wide, rng));
    problems.push_back(random_problem<TypeParam>(4, 11, 20, 17, by_duration, extreme, rng));
    problems.push_back(random_problem<TypeParam>(1, 30, 4, 33, by_duration, holes, rng));
  }
  Engine used(2);
  for (int round = 0; round < 20; ++round) {
    const auto& p = problems[rng.below(problems.size())];
    std::vector<TypeParam> found[2];
    for (int fresh = 0; fresh < 2; ++fresh) {
      OwnedGradients<TypeParam> gradients(p);
      std::vector<double> log_partition(p.B);
      Engine other(1);
      Engine& engine = fresh == 1 ? other : used;
      engine.log_partition(p.potentials(), {log_partition, {}}, gradients.views());
      found[fresh] = gradients.flat();
      for (const double v : log_partition) found[fresh].push_back(static_cast<TypeParam>(v));
      for (const TypeParam v : found[fresh]) ASSERT_FALSE(std::isnan(v)) << round;
    }
    ASSERT_EQ(found[0], found[1]) << round;
  }
}

TYPED_TEST(Batching, Test22EverythingForbidden) {
  Rng rng(9);
  for (const bool by_duration : {false, true}) {
    auto p = random_problem<TypeParam>(2, 12, 4, 3, by_duration, gaussian, rng);
    const auto ruin = [&](std::vector<TypeParam>& scores) {
      const auto saved = scores;
      std::fill(scores.begin(), scores.end(), static_cast<TypeParam>(-kInf));
      std::vector<double> log_partition(2);
      std::vector<RowStatus> status(2);
      OwnedGradients<TypeParam> gradients(p);
      Engine(1).log_partition(p.potentials(), {log_partition, status}, gradients.views());
      EXPECT_EQ(log_partition, (std::vector<double>{-kInf, -kInf}));
      EXPECT_EQ(status[0], RowStatus::kNoPath);
      for (const TypeParam g : gradients.flat()) EXPECT_EQ(g, 0);
      scores = saved;
    };
    for (auto* scores : {&p.emission, &p.duration, &p.initial, &p.final, &p.start, &p.end})
      ruin(*scores);
  }
}

TYPED_TEST(Batching, SameBitsOverTwentyRuns) {
  Rng rng(10);
  for (const bool by_duration : {false, true}) {
    auto p = random_problem<TypeParam>(9, 50, 8, 13, by_duration, gaussian, rng);
    p.lengths = {50, 50, 3, 0, 41, 17, 50, 2, 33};
    const Segmentations gold = random_gold(p, rng);
    std::vector<TypeParam> first;
    for (int run = 0; run < 20; ++run) {
      Engine engine(1 + run % 4);
      OwnedGradients<TypeParam> gradients(p);
      std::vector<double> loss(p.B);
      LossResult result;
      result.loss = loss;
      engine.loss(p.potentials(), gold, result, gradients.views());
      std::vector<TypeParam> found = gradients.flat();
      for (const double v : loss) found.push_back(static_cast<TypeParam>(v));
      if (run == 0) first = found;
      ASSERT_EQ(found, first) << run;
    }
  }
}

/// The same numbers at the given strides, in memory full of NaN.
template <class T, int N>
View<T, N> spread(std::vector<T>& memory, const View<const T, N>& from,
                  const typename View<T, N>::Axes& strides, std::int64_t offset) {
  memory.assign(8000, std::numeric_limits<T>::quiet_NaN());
  const View<T, N> to(memory.data() + offset, from.extents(), strides);
  for (std::int64_t i = 0; i < from.extent(0); ++i) {
    for (std::int64_t j = 0; j < from.extent(1); ++j) {
      if constexpr (N == 2)
        to(i, j) = from(i, j);
      else
        for (std::int64_t k = 0; k < from.extent(2); ++k) to(i, j, k) = from(i, j, k);
    }
  }
  return to;
}

TYPED_TEST(Batching, Test20StridesAndBothKindsOfLengths) {
  Rng rng(5);
  auto p = random_problem<TypeParam>(3, 9, 4, 5, false, gaussian, rng);
  p.lengths = {9, 4, 7};
  const Segmentations gold = random_gold(p, rng);
  const Potentials<TypeParam> plain = p.potentials();
  std::vector<TypeParam> m1, m2, m3, m4, m5;
  Potentials<TypeParam> strided = plain;
  strided.emission = spread(m1, plain.emission, {2, 7, 80}, 3);     // class outermost
  strided.start = spread(m2, plain.start, {150, -11, 2}, 1000);     // time backwards
  strided.end = spread(m3, plain.end, {90, 10, 2}, 0);              // every other element
  strided.transition = spread(m4, plain.transition, {0, 1, 6}, 0);  // transposed
  strided.duration = spread(m5, plain.duration, {-6, 1}, 100);
  const std::vector<std::int32_t> narrow = {9, 4, 7};
  strided.lengths = View<const std::int32_t, 1>(narrow);
  OwnedGradients<TypeParam> a(p), b(p);
  std::vector<double> loss_a(3), loss_b(6, -1.0);
  LossResult result;
  result.loss = loss_a;
  Engine engine(1);
  engine.loss(plain, gold, result, a.views());
  result.loss = View<double, 1>(loss_b.data(), {3}, {2});
  Gradients<TypeParam> views = b.views();
  std::vector<TypeParam> memory(3 * 9 * 5, 777);
  views.emission = {memory.data(), {3, 9, 5}, {1, 3, 27}};
  engine.loss(strided, gold, result, views);
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(loss_b[2 * i], loss_a[i]);
    EXPECT_EQ(loss_b[2 * i + 1], -1.0);
    for (std::int64_t t = 0; t < 9; ++t)
      for (std::int64_t c = 0; c < 5; ++c)
        EXPECT_EQ(views.emission(i, t, c), a.views().emission(i, t, c));
  }
  EXPECT_EQ(a.transition, b.transition);
  EXPECT_EQ(a.duration, b.duration);
  EXPECT_EQ(a.start, b.start);
  Segmentations best_a, best_b;
  engine.viterbi(plain, best_a);
  engine.viterbi(strided, best_b);
  EXPECT_EQ(best_a, best_b);
}

TEST(BatchingLong, FloatStorageKeepsItsAccuracyOverLongRows) {
  // Stored as float, against the same numbers as double through the reference recursion.
  for (const double scale : {1.0, 10.0}) {
    Rng rng(6);
    auto p = random_problem<float>(
        1, 3000, 20, 4, false, [scale](Rng& r) { return scale * r.normal(); }, rng);
    // Far from zero, as an encoder's output may be: 10 a frame.
    for (float& v : p.emission) v += 10.0F;
    const auto exact = p.to<double>();
    OwnedGradients<float> found(p);
    OwnedGradients<double> wanted(exact);
    std::vector<double> a(1), b(1);
    Engine(1).log_partition(p.potentials(), {a, {}}, found.views());
    Engine(1, {Algorithm::kReference}).log_partition(exact.potentials(), {b, {}}, wanted.views());
    EXPECT_LT(relative(a[0], b[0]), 1e-12);
    for (std::size_t i = 0; i < wanted.emission.size(); ++i)
      ASSERT_NEAR(found.emission[i], wanted.emission[i], 1e-6) << i;
    for (std::size_t i = 0; i < wanted.transition.size(); ++i)
      EXPECT_LT(relative(found.transition[i], wanted.transition[i]), 1e-6);
    for (std::size_t i = 0; i < wanted.duration.size(); ++i)
      EXPECT_LT(relative(found.duration[i], wanted.duration[i]), 1e-6);
  }
}

TEST(BatchingLong, PosteriorsStillSumToOneAfterAHundredThousandFrames) {
  Rng rng(7);
  const std::int64_t frames = 100000, K = 100, C = 8;
  auto p = random_problem<float>(1, frames, K, C, false, gaussian, rng);
  for (float& v : p.emission) v -= 10.0F;
  p.with_start = p.with_end = false;
  std::vector<float> label(frames * C);
  std::vector<double> log_partition(1);
  Posteriors<float> result;
  result.label = {label.data(), {1, frames, C}};
  result.log_partition = log_partition;
  Engine(1).posteriors(p.potentials(), result);
  EXPECT_LT(log_partition[0], -5e5);
  double worst = 0.0;
  for (std::int64_t t = 0; t < frames; ++t) {
    const float* row = &label[t * C];
    worst = std::max(worst, std::abs(std::accumulate(row, row + C, 0.0) - 1.0));
  }
  EXPECT_LT(worst, 1e-6);
}

}  // namespace
}  // namespace segfuse::semicrf::testing
