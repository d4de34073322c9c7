// The linear-domain passes: that ordinary scores stay on them, that windows whose entries drift
// over hundreds of powers of ten are right, and that every vector width agrees.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include "semicrf/cpu/sum/scaled.h"
#include "unit/semicrf/outcome.h"
#include "unit/semicrf/problems.h"

namespace segfuse::semicrf::testing {
namespace {

/// Whether the linear domain holds row 0 of a problem, through both passes.
bool fits_linear_domain(const Problem<double>& p) {
  const Potentials<double> potentials = p.potentials();
  const Dims dims = check_potentials(potentials);
  Model model;
  ScaledTables tables;
  RowBuffers buffers;
  ScaledState state;
  RowExpectations out;
  load_model(potentials, dims, model);
  make_scaled_tables(model, tables);
  ScaledRow row{.model = &model,
                .tables = &tables,
                .row = load_row(potentials, dims, 0, buffers),
                .state = &state,
                .out = &out,
                .part = {.end = p.T_, .total = p.T_}};
  ScaledRow* const one = &row;
  scaled_forward(&one, 1);
  if (row.ok) scaled_expectations(&one, 1);
  return row.ok;
}

TEST(Scaled, OrdinaryScoresStayInTheLinearDomain) {
  for (const double scale : {0.0, 1.0, 10.0}) {
    Rng rng(1);
    const Draw draw = [scale](Rng& r) { return scale * r.normal(); };
    auto p = random_problem<double>(1, 2000, 100, 20, false, draw, rng);
    EXPECT_TRUE(fits_linear_domain(p)) << scale;
    for (double& v : p.emission) v -= 3000.0;  // far from zero, but alike
    EXPECT_TRUE(fits_linear_domain(p)) << scale;
    for (double& v : p.emission) v = rng.uniform() < 0.25 ? -kInf : v;  // constraints
    EXPECT_TRUE(fits_linear_domain(p)) << scale;
  }
}

TEST(Scaled, ScoresBeyondTheBoundsAreNoticed) {
  Rng rng(2);
  const auto p = random_problem<double>(1, 300, 20, 5, false, gaussian, rng);
  ASSERT_TRUE(fits_linear_domain(p));
  for (std::vector<double> Problem<double>::* input :
       {&Problem<double>::emission, &Problem<double>::start, &Problem<double>::end,
        &Problem<double>::transition, &Problem<double>::duration, &Problem<double>::initial,
        &Problem<double>::final}) {
    for (const double score : {1e4, -1e4}) {
      auto q = p;
      (q.*input)[1] = score;
      EXPECT_FALSE(fits_linear_domain(q));
    }
  }
  // Bounds that only the recursion can break: a label that must last long among ever better ones.
  auto q = random_problem<double>(1, 300, 80, 5, false, wide, rng);
  for (std::int64_t k = 0; k < 60; ++k) q.duration[k * 5] = -kInf;
  for (std::int64_t t = 0; t < 300; ++t) q.emission[t * 5] -= 100.0;
  EXPECT_FALSE(fits_linear_domain(q));
}

TEST(Scaled, LongWindowsOfDriftingScores) {
  // References are reset many times inside one window.
  for (const double scale : {1.0, 10.0, 25.0}) {
    SCOPED_TRACE(scale);
    Rng rng(3);
    const Draw draw = [scale](Rng& r) { return scale * r.normal(); };
    auto p = random_problem<double>(2, 260, 70, 9, false, gaussian, rng);
    fill(p.emission, 2 * 260 * 9, draw, rng);
    p.lengths = {260, 149};
    const Segmentations gold = random_gold(p, rng);
    expect_same(p, gold, 1e-9);
    p.with_start = p.with_end = false;
    expect_same(p, gold, 1e-9);
    // Some labels forbidden here and there; every label possible somewhere.
    for (double& v : p.emission) v = rng.uniform() < 0.05 ? -kInf : v;
    expect_same(p, gold, 1e-9);
  }
}

TEST(Scaled, DurationsWithHolesAndLimits) {
  for (int kind = 0; kind < 4; ++kind) {
    for (const Draw& draw : {Draw(gaussian), Draw(wide)}) {
      SCOPED_TRACE(kind);
      Rng rng(4);
      auto p = random_problem<double>(1, 240, 60, 6, false, gaussian, rng);
      fill(p.emission, 240 * 6, draw, rng);
      for (std::int64_t k = 0; k < 60; ++k) {
        for (std::int64_t c = 0; c < 6; ++c) {
          const bool allowed[] = {k >= 50, k < 5 * (c + 1), k % 7 == c % 7, c != 2 || k > 30};
          if (!allowed[kind]) p.duration[k * 6 + c] = -kInf;
        }
      }
      expect_same(p, random_gold(p, rng), 1e-9);
    }
  }
}

TEST(Scaled, OneLabelFallsFarBehindAndReturns) {
  // A label is bad for 40 frames and then the only good one: what its window forgot would show.
  Rng rng(5);
  for (const double depth : {3.0, 8.0, 20.0, 60.0}) {
    SCOPED_TRACE(depth);
    auto p = random_problem<double>(1, 200, 90, 4, false, gaussian, rng);
    for (std::int64_t t = 0; t < 200; ++t)
      p.emission[t * 4 + 1] += (t / 40) % 2 == 0 ? -depth : depth;
    expect_same(p, random_gold(p, rng), 1e-9);
  }
}

TEST(Scaled, TransitionsByDuration) {
  // Tiles of 4 and 32 boundaries, rows shorter than one, windows shorter and longer than one,
  // forbidden frames in every place of a tile, references that are reset often.
  Rng sizes(7);
  for (int round = 0; round < 24; ++round) {
    Rng rng(100 + static_cast<std::uint64_t>(round));
    const auto pick = [&](std::uint64_t limit) {
      return static_cast<std::int64_t>(1 + sizes.below(limit));
    };
    const std::int64_t frames = pick(120), K = pick(40), C = pick(19);
    SCOPED_TRACE(fmt::format("round {} T {} K {} C {}", round, frames, K, C));
    auto p = random_problem<double>(2, frames, K, C, true, gaussian, rng);
    const double scale = round % 3 == 0 ? 1.0 : (round % 3 == 1 ? 10.0 : 25.0);
    for (double& v : p.emission) v = scale * rng.normal();
    if (round % 4 == 1)
      for (double& v : p.emission) v = rng.uniform() < 0.1 ? -kInf : v;
    if (round % 4 == 2)
      for (double& v : p.transition) v = rng.uniform() < 0.2 ? -kInf : v;
    p.with_start = round % 2 == 0, p.with_end = round % 5 != 0;
    p.lengths = {frames, pick(static_cast<std::uint64_t>(frames))};
    expect_same(p, random_gold(p, rng), 1e-9);
  }
}

TEST(Scaled, OrdinaryTransitionsByDurationStayInTheLinearDomain) {
  for (const double scale : {1.0, 10.0}) {
    Rng rng(8);
    auto p = random_problem<double>(1, 500, 20, 9, true, gaussian, rng);
    for (double& v : p.emission) v = scale * rng.normal();
    EXPECT_TRUE(fits_linear_domain(p)) << scale;
    p.with_start = p.with_end = false;
    for (std::int64_t pair = 0; pair < 81; ++pair)
      for (std::int64_t k = 0; pair % 5 == 1 && k < 20; ++k) p.transition[k * 81 + pair] = -kInf;
    EXPECT_TRUE(fits_linear_domain(p)) << scale;
    p.transition[5] = 500.0;
    EXPECT_FALSE(fits_linear_domain(p));
  }
}

TEST(Scaled, EveryVectorWidthAgrees) {
  Rng rng(6);
  auto p = random_problem<double>(3, 90, 17, 21, false, gaussian, rng);
  p.lengths = {90, 41, 90};
  const Segmentations gold = random_gold(p, rng);
  const Outcome<double> wanted(p, gold, Algorithm::kReference);
  const std::int64_t supported = hwy::SupportedTargets();
  for (const std::int64_t target :
       {std::int64_t{HWY_AVX3}, std::int64_t{HWY_AVX2}, std::int64_t{HWY_SSE4}, std::int64_t{0}}) {
    if ((target & ~supported) != 0) continue;
    hwy::GetChosenTarget().Update(target);
    const Outcome<double> found(p, gold, Algorithm::kFast);
    for (std::int64_t b = 0; b < 3; ++b) EXPECT_NEAR(found.loss[b], wanted.loss[b], 1e-9);
    const auto x = found.gradients.flat(), y = wanted.gradients.flat();
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 1e-10) << i;
  }
  hwy::GetChosenTarget().Update(supported);
}

}  // namespace
}  // namespace segfuse::semicrf::testing
