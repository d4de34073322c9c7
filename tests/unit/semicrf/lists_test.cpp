// The n best segmentations and samples: tests 6 and 8 of the design.

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "scopes.h"
#include "segfuse/error.h"
#include "support/slow_build.h"

namespace segfuse::semicrf::testing {
namespace {

#ifdef SEGFUSE_TEST_ON_DEVICE
constexpr double kSumsAgree = 1e-14;
#else
constexpr double kSumsAgree = 0.0;
#endif

/// The segmentations listed for row b.
std::vector<Path> listed(const SegmentationLists& lists, std::int64_t b) {
  std::vector<Path> paths;
  for (std::int64_t i = lists.list_pointer[b]; i < lists.list_pointer[b + 1]; ++i)
    paths.push_back(unpacked(lists.segmentations, i));
  return paths;
}

bool comes_first(const Path& a, const Path& b) {
  for (std::size_t i = 1; i <= std::min(a.size(), b.size()); ++i) {
    const Piece& x = a[a.size() - i];
    const Piece& y = b[b.size() - i];
    if (x.duration != y.duration) return x.duration < y.duration;
    if (x.label != y.label) return x.label < y.label;
  }
  return false;
}

bool has_exact_sums(const Problem<double>& p, const OwnedScope& scope) {
  const auto whole = [](double v) { return v == -kInf || v == std::floor(v); };
  for (int kind = 0; kind < 7; ++kind)
    if (!std::all_of(input(p, kind).begin(), input(p, kind).end(), whole)) return false;
  return std::all_of(scope.tail.begin(), scope.tail.end(), whole);
}

TEST(KBest, Test06IsTheSortedListOfAllSegmentations) {
  for_scopes([](const Problem<double>& p, const OwnedScope& scope, Rng& rng) {
    const Problem<double> wide = wide_problem(p, scope);
    const std::int64_t choices[] = {1, 2, 7, 100000};
    const std::int64_t n = choices[rng.below(4)];
    SegmentationLists best;
    Inference(1).k_best(p.potentials(), scope.scope(), n, best);
    ASSERT_EQ(best.list_pointer.size(), 3u);
    for (std::int64_t b = 0; b < p.B; ++b) {
      const ScopedOracle<double> oracle(wide, b, scope);
      std::vector<std::size_t> order;
      for (std::size_t i = 0; i < oracle.paths.size(); ++i)
        if (oracle.inside[i] > -kInf) order.push_back(i);
      std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) {
        if (oracle.inside[i] != oracle.inside[j]) return oracle.inside[i] > oracle.inside[j];
        return comes_first(oracle.paths[i], oracle.paths[j]);
      });
      const std::vector<Path> found = listed(best, b);
      ASSERT_EQ(found.size(), std::min(order.size(), static_cast<std::size_t>(n)));
      for (std::size_t i = 0; i < found.size(); ++i) {
        const double score = best.score[best.list_pointer[b] + i];
        ASSERT_NEAR(score, oracle.inside[order[i]], rounding(wide));
        ASSERT_NEAR(path_score(wide, b, found[i]), score, rounding(wide));
        ASSERT_TRUE(scope.allows(b, found[i]));
        ASSERT_TRUE(i == 0 || score <= best.score[best.list_pointer[b] + i - 1]);
        for (std::size_t j = 0; j < i; ++j) ASSERT_NE(found[i], found[j]);
        ASSERT_TRUE(!has_exact_sums(p, scope) || found[i] == oracle.paths[order[i]]) << i;
      }
    }
  });
}

TEST(KBest, Test06TheFirstIsViterbisAndOthersAreWorseAtAnySize) {
  for (int round = 0; round < 6; round += scopes_step()) {
    Rng rng(40 + static_cast<std::uint64_t>(round));
    const Draw& draw = round % 2 == 0 ? Draw(gaussian) : Draw(ties);
    auto p = random_problem<double>(3, 120, 15, 12, round == 5, draw, rng);
    p.lengths = {120, 0, 77};
    Segmentations viterbi;
    std::vector<double> score(3);
    Engine(1).viterbi(p.potentials(), viterbi, {score, {}});
    SegmentationLists best;
    Inference(2).k_best(p.potentials(), {}, 200, best);
    EXPECT_EQ(best.list_pointer, (std::vector<std::int64_t>{0, 200, 201, 401}));
    for (std::int64_t b = 0; b < 3; ++b) {
      const std::vector<Path> found = listed(best, b);
      EXPECT_EQ(found[0], unpacked(viterbi, b));
      // A device's passes add up the same scores in different orders.
      EXPECT_LE(relative(best.score[best.list_pointer[b]], score[b]), kSumsAgree);
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_NEAR(path_score(p, b, found[i]), best.score[best.list_pointer[b] + i], 1e-10);
      EXPECT_TRUE(std::is_sorted(best.score.begin() + best.list_pointer[b],
                                 best.score.begin() + best.list_pointer[b + 1], std::greater<>()));
      std::vector<std::vector<std::int64_t>> flat;
      for (const Path& path : found) {
        flat.emplace_back();
        for (const Piece& s : path) flat.back().push_back(s.start * p.C + s.label);
      }
      std::sort(flat.begin(), flat.end());
      EXPECT_EQ(std::unique(flat.begin(), flat.end()), flat.end());
    }
  }
}

TEST(KBest, LongRowsWithATail) {
  // A path of many states: nothing recurses by frame, and a long tail is found.
  Rng rng(3);
  auto p = random_problem<double>(1, 30000, 5, 2, false, gaussian, rng);
  for (std::int64_t t = 5000; t < 15000; ++t) p.emission[t * 2] += 20.0;
  for (std::int64_t t = 0; t < p.T_; ++t) p.start[t * 2] -= 30.0;
  const std::vector<double> tail = {-0.1, -0.1};
  SegmentationLists best;
  Inference(1).k_best(p.potentials(), {{}, tail}, 20, best);
  ASSERT_EQ(best.score.size(), 20u);
  const auto longest =
      *std::max_element(best.segmentations.duration.begin(), best.segmentations.duration.end());
  EXPECT_GT(longest, 9000);
  EXPECT_THROW(Inference(1).k_best(p.potentials(), {}, 0, best), UsageError);
}

TEST(Sample, Test08FrequenciesAreTheProbabilities) {
  const std::int64_t draws = 20000;
  int compared = 0;
  for_scopes([&](const Problem<double>& p, const OwnedScope& scope, Rng& rng) {
    if (rng.below(SEGFUSE_SLOW_BUILD ? 24 : 6) != 0) return;
    const Problem<double> wide = wide_problem(p, scope);
    SegmentationLists drawn;
    Inference(1).sample(p.potentials(), scope.scope(), draws, rng.below(1000), drawn);
    for (std::int64_t b = 0; b < p.B; ++b) {
      const ScopedOracle<double> oracle(wide, b, scope);
      const std::vector<Path> found = listed(drawn, b);
      if (oracle.constrained == -kInf) {
        EXPECT_TRUE(found.empty());
        continue;
      }
      ASSERT_EQ(found.size(), static_cast<std::size_t>(draws));
      std::map<std::vector<std::int64_t>, double> counts;
      const auto key = [](const Path& path) {
        std::vector<std::int64_t> flat;
        for (const Piece& s : path) flat.insert(flat.end(), {s.duration, s.label});
        return flat;
      };
      for (const Path& path : found) counts[key(path)] += 1.0;
      for (std::size_t i = 0; i < 20; ++i)
        EXPECT_NEAR(drawn.score[drawn.list_pointer[b] + i], path_score(wide, b, found[i]),
                    rounding(wide));
      double statistic = 0.0, rare = 0.0, rare_found = 0.0, bins = 0.0;
      const auto add = [&](double expected, double count) {
        statistic += (count - expected) * (count - expected) / expected;
        bins += 1.0;
      };
      for (std::size_t i = 0; i < oracle.paths.size(); ++i) {
        const double expected = draws * oracle.probability_inside(i);
        const double count = counts[key(oracle.paths[i])];
        if (oracle.inside[i] == -kInf) {
          ASSERT_EQ(count, 0.0);
        } else if (expected < 5.0) {
          rare += expected, rare_found += count;
        } else {
          add(expected, count);
        }
      }
      if (rare >= 5.0) add(rare, rare_found);
      EXPECT_LT(statistic, bins + 4.5 * std::sqrt(2.0 * bins) + 8.0) << bins << " bins";
      ++compared;
    }
  });
  EXPECT_GT(compared, (SEGFUSE_SLOW_BUILD ? 8 : 30) / scopes_step());
}

TEST(Sample, ADrawDependsOnItsRowAndNumberAlone) {
  Rng rng(17);
  auto p = random_problem<float>(4, 60, 7, 5, false, gaussian, rng);
  p.lengths = {60, 5, 0, 44};
  SegmentationLists many, few, shared, other;
  Inference inference(1);
  inference.sample(p.potentials(), {}, 9, 5, many);
  inference.sample(p.potentials(), {}, 4, 5, few);
  Inference(4).sample(p.potentials(), {}, 9, 5, shared);
  inference.sample(p.potentials(), {}, 9, 6, other);
  EXPECT_EQ(many.segmentations, shared.segmentations);
  EXPECT_NE(many.segmentations, other.segmentations);
  for (std::int64_t b = 0; b < 4; ++b) {
    std::vector<Path> all = listed(many, b);
    all.resize(4);
    EXPECT_EQ(all, listed(few, b));
  }
  auto last = p;
  last.B = 1, last.lengths = {44};
  last.emission.erase(last.emission.begin(), last.emission.begin() + 3 * 60 * 5);
  last.start.erase(last.start.begin(), last.start.begin() + 3 * 60 * 5);
  last.end.erase(last.end.begin(), last.end.begin() + 3 * 60 * 5);
  SegmentationLists alone;
  inference.sample(last.potentials(), {}, 9, 5, alone, 3);
  EXPECT_EQ(listed(alone, 0), listed(many, 3));
}

TEST(Sample, MeansOfManyDrawsAreThePosteriors) {
  Rng rng(23);
  auto p = random_problem<double>(1, 40, 6, 4, false, gaussian, rng);
  const std::int64_t draws = 20000;
  SegmentationLists drawn;
  Inference(1).sample(p.potentials(), {}, draws, 1, drawn);
  std::vector<double> boundary(40), mean(40);
  Posteriors<double> result;
  result.boundary = {boundary.data(), {1, 40}};
  Engine(1).posteriors(p.potentials(), result);
  for (const std::int32_t s : drawn.segmentations.start) mean[s] += 1.0 / draws;
  for (int t = 0; t < 40; ++t) {
    const double deviation = std::sqrt(boundary[t] * (1.0 - boundary[t] + 1e-9) / draws);
    EXPECT_NEAR(mean[t], boundary[t], 4.5 * deviation + 1e-9) << t;
  }
}

}  // namespace
}  // namespace segfuse::semicrf::testing
