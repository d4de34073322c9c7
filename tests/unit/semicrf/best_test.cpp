// The best segmentation of long rows: the same path however a row is cut in time, and that of a
// plain recursion with pointers back.

#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "outcome.h"
#include "problems.h"
#include "semicrf/cpu/best/viterbi.h"

namespace segfuse::semicrf::testing {
namespace {

struct Found {
  std::vector<std::array<std::int64_t, 3>> path;  ///< start, duration, label
  bool possible = false;
  bool exact = false;
  int redone = 0;
};

/// Row 0 of a problem, cut as told.
Found best_of(const Problem<float>& p, const BestCut& cut, int threads = 2) {
  const Potentials<float> potentials = p.potentials();
  const Dims dims = check_potentials(potentials);
  Model model;
  load_model(potentials, dims, model);
  RowBuffers buffers;
  const Row row = load_row(potentials, dims, 0, buffers);
  ThreadPool pool(threads);
  ViterbiState state;
  std::vector<Segment> path;
  Found found;
  found.possible = viterbi_row(model, row, cut, state, pool, path);
  for (const Segment& s : path) found.path.push_back({s.start, s.duration, s.label});
  found.exact = state.grid.exact;
  found.redone = state.redone;
  return found;
}

/// The recursion as it is written, with pointers back; exact where all sums are.
struct Plain {
  std::vector<std::array<std::int64_t, 3>> path;
  long double score = -kInf;

  explicit Plain(const Problem<float>& p) {
    const std::int64_t L = p.T_, C = p.C, K = p.K;
    const auto size = static_cast<std::size_t>((L + 1) * C);
    std::vector<long double> value(size, -kInf), source(size, -kInf);
    std::vector<std::int64_t> duration(size, 0), before(size, 0);
    for (std::int64_t c = 0; c < C; ++c) source[c] = p.with_initial ? p.initial[c] : 0.0F;
    for (std::int64_t t = 1; t <= L; ++t) {
      for (std::int64_t c = 0; c < C; ++c) {
        long double content = p.with_end ? p.end[(t - 1) * C + c] : 0.0F;
        for (std::int64_t k = 1; k <= std::min(K, t); ++k) {
          const std::int64_t s = t - k;
          content += p.emission[s * C + c];
          long double x = source[s * C + c] + content + p.duration[(k - 1) * C + c];
          if (p.with_start) x += p.start[s * C + c];
          if (!(x > value[t * C + c])) continue;
          value[t * C + c] = x;
          duration[t * C + c] = k;
        }
      }
      for (std::int64_t c = 0; c < C; ++c) {
        const std::int64_t from = best_at(t, C, value, duration, &p.transition[c], C);
        before[t * C + c] = from;
        source[t * C + c] = value[t * C + from] + p.transition[from * C + c];
      }
    }
    const std::vector<float> nothing(static_cast<std::size_t>(C), 0.0F);
    const float* final = p.with_final ? p.final.data() : nothing.data();
    std::int64_t c = best_at(L, C, value, duration, final, 1);
    score = value[L * C + c] + final[c];
    for (std::int64_t t = L; t > 0 && score > -kInf;) {
      const std::int64_t d = duration[t * C + c];
      t -= d;
      path.insert(path.begin(), {t, d, c});
      c = before[t * C + c];
    }
  }

 private:
  static std::int64_t best_at(std::int64_t t, std::int64_t C, const std::vector<long double>& value,
                              const std::vector<std::int64_t>& duration, const float* following,
                              std::int64_t hop) {
    std::int64_t best = 0;
    for (std::int64_t c = 1; c < C; ++c) {
      const long double x = value[t * C + c] + following[c * hop];
      const long double y = value[t * C + best] + following[best * hop];
      if (x > y || (x == y && duration[t * C + c] < duration[t * C + best])) best = c;
    }
    return best;
  }
};

long double score_of(const Problem<float>& p, const std::vector<std::array<std::int64_t, 3>>& y) {
  long double score = 0.0L;
  std::int64_t previous = -1;
  for (const auto& [s, d, c] : y) {
    for (std::int64_t t = s; t < s + d; ++t) score += p.emission[t * p.C + c];
    score += p.duration[(d - 1) * p.C + c];
    if (p.with_start) score += p.start[s * p.C + c];
    if (p.with_end) score += p.end[(s + d - 1) * p.C + c];
    if (previous >= 0)
      score += p.transition[previous * p.C + c];
    else if (p.with_initial)
      score += p.initial[c];
    previous = c;
  }
  if (p.with_final && previous >= 0) score += p.final[previous];
  return score;
}

/// Cut in several ways, with short and long warm-ups: the same path. Returns how many parts were
/// done again.
int expect_same_however_cut(const Problem<float>& p) {
  const Found whole = best_of(p, {});
  int redone = 0;
  for (const BestCut& cut :
       {BestCut{2, p.K}, BestCut{7, p.K}, BestCut{7, 8 * p.K}, BestCut{13, 3 * p.K}}) {
    SCOPED_TRACE(cut.parts);
    const Found parts = best_of(p, cut);
    EXPECT_EQ(parts.path, whole.path);
    EXPECT_EQ(parts.possible, whole.possible);
    redone += parts.redone;
  }
  return redone;
}

TEST(Best, CutRowsGiveTheSamePath) {
  Rng rng(1);
  for (const Draw& draw : {Draw(gaussian), Draw(wide), Draw(holes)}) {
    for (int i = 0; i < 4; ++i) {
      auto p = random_problem<float>(1, 1500, 1 + i * 7, 2 + 3 * i, false, draw, rng);
      if (i == 3) p.with_start = p.with_end = p.with_initial = p.with_final = false;
      expect_same_however_cut(p);
      const Found found = best_of(p, {5, 4 * p.K});
      const Plain plain(p);
      EXPECT_EQ(found.possible, plain.score > -kInf);
      if (!found.possible) continue;
      EXPECT_LT(std::abs(static_cast<double>(score_of(p, found.path) - plain.score)), 1e-7);
      EXPECT_TRUE(found.exact);
    }
  }
}

TEST(Best, TiesFallAsInThePlainRecursionHoweverCut) {
  Rng rng(2);
  for (int i = 0; i < 12; ++i) {
    auto p = random_problem<float>(1, 700, 1 + i, 1 + i % 5, false, i % 3 == 0 ? zero : ties, rng);
    expect_same_however_cut(p);
    EXPECT_EQ(best_of(p, {}).path, Plain(p).path);
  }
}

TEST(Best, SlowlyMixingModels) {
  // Sticky transitions between weak labels: where a part begins is forgotten late.
  Rng rng(3);
  auto p =
      random_problem<float>(1, 4000, 40, 6, false, [](Rng& r) { return 0.1 * r.normal(); }, rng);
  for (std::int64_t i = 0; i < 6; ++i)
    for (std::int64_t j = 0; j < 6; ++j) p.transition[i * 6 + j] -= i == j ? 0.0F : 10.0F;
  EXPECT_GT(expect_same_however_cut(p), 0);
  EXPECT_LT(std::abs(static_cast<double>(score_of(p, best_of(p, {6, 40}).path) - Plain(p).score)),
            1e-7);
  // Every segment has 7 frames: it is never forgotten.
  for (const Draw& draw : {Draw(gaussian), Draw(ties)}) {
    auto q = random_problem<float>(1, 7 * 300, 7, 3, false, draw, rng);
    for (std::int64_t k = 0; k < 6; ++k)
      for (std::int64_t c = 0; c < 3; ++c) q.duration[k * 3 + c] = static_cast<float>(-kInf);
    EXPECT_GT(expect_same_however_cut(q), 0);
    EXPECT_LT(std::abs(static_cast<double>(score_of(q, best_of(q, {6, 7}).path) - Plain(q).score)),
              1e-7);
    q.T_ -= 1;  // no segmentation fits
    q.emission.resize(q.T_ * 3), q.start.resize(q.T_ * 3), q.end.resize(q.T_ * 3);
    EXPECT_FALSE(best_of(q, {6, 7}).possible);
    expect_same_however_cut(q);
  }
}

TEST(Best, ModelsThatMixFastAreNotDoneAgain) {
  Rng rng(4);
  const auto p = random_problem<float>(1, 20000, 20, 9, false, gaussian, rng);
  EXPECT_EQ(best_of(p, {9, 80}).redone, 0);
}

TEST(Best, ScoresOfAnySize) {
  Rng rng(5);
  for (const double size : {1e-30, 1e-12, 1e-3, 100.0, 1e4, 1e12, 1e30}) {
    SCOPED_TRACE(size);
    auto p = random_problem<float>(
        1, 900, 6, 4, false, [size](Rng& r) { return size * r.normal(); }, rng);
    const Found found = best_of(p, {4, 24});
    EXPECT_EQ(found.exact, size <= 1e4);
    EXPECT_EQ(found.path, best_of(p, {}).path);
    EXPECT_EQ(found.path, Plain(p).path);
  }
  auto p = random_problem<float>(1, 900, 6, 4, false, extreme, rng);
  EXPECT_TRUE(best_of(p, {4, 24}).exact);
  EXPECT_EQ(best_of(p, {4, 24}).path, Plain(p).path);
}

TEST(Best, LabelsThatDriftApartAreDoneInOnePiece) {
  // Two labels that never follow each other; the one that must win is far behind all the way.
  Rng rng(6);
  auto p = random_problem<float>(1, 6000, 3, 2, false, gaussian, rng);
  p.transition[1] = p.transition[2] = static_cast<float>(-kInf);
  p.final[0] = static_cast<float>(-kInf);
  for (std::int64_t t = 0; t < p.T_; ++t) p.emission[t * 2 + 1] -= 8.0F;
  const Found found = best_of(p, {5, 12});
  EXPECT_FALSE(found.exact);
  EXPECT_EQ(found.path, best_of(p, {}).path);
  EXPECT_EQ(found.path, Plain(p).path);
}

TEST(Best, AnEnginesPathDoesNotDependOnThreads) {
  Rng rng(7);
  auto p = random_problem<float>(3, 9000, 20, 9, false, ties, rng);
  p.lengths = {9000, 100, 8500};
  std::vector<Segmentations> found(3);
  std::vector<std::vector<double>> scores(3, std::vector<double>(3));
  const int threads[3] = {1, 2, 7};
  for (std::size_t i = 0; i < 3; ++i)
    Engine(threads[i]).viterbi(p.potentials(), found[i], {scores[i], {}});
  for (std::size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(found[i].row_pointer, found[0].row_pointer);
    EXPECT_EQ(found[i].start, found[0].start);
    EXPECT_EQ(found[i].duration, found[0].duration);
    EXPECT_EQ(found[i].label, found[0].label);
    EXPECT_EQ(scores[i], scores[0]);
  }
}

}  // namespace
}  // namespace segfuse::semicrf::testing
