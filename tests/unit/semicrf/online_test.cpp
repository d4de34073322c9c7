// Decoding in pieces: test 23 of the design. Objects that were moved from.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "scopes.h"
#include "segfuse/error.h"

namespace segfuse::semicrf::testing {
namespace {

/// What a decoder said while a row came in pieces.
struct Decoding {
  Segmentations path;
  double log_partition = 0.0, score = 0.0;
  RowStatus status = RowStatus::kOk;
  std::vector<std::int64_t> decided;  ///< after each piece
};

template <class T>
void feed(OnlineDecoder& decoder, const Problem<T>& p, std::int64_t from, std::int64_t to,
          Segmentations& path) {
  const auto frames = [&](const std::vector<T>& all, bool given) {
    return given ? View<const T, 2>(all.data() + from * p.C, {to - from, p.C}) : View<const T, 2>();
  };
  decoder.push(frames(p.emission, true), path, frames(p.start, p.with_start),
               frames(p.end, p.with_end));
}

template <class T>
Decoding run(OnlineDecoder& decoder, const Problem<T>& p, std::int64_t piece) {
  Decoding r;
  for (std::int64_t from = 0; from < p.T_; from += piece) {
    feed(decoder, p, from, std::min(from + piece, p.T_), r.path);
    r.decided.push_back(decoder.decided_frames());
  }
  r.log_partition = decoder.log_partition();
  r.score = decoder.best_score();
  r.status = decoder.finish(r.path);
  return r;
}

struct OnlineCase {
  std::int64_t frames, K, C;
  bool tail;
};

TEST(Online, Test23AnyPiecesGiveTheOneShotResult) {
  std::uint64_t seed = 0;
  std::vector<OnlineCase> sizes = {{300, 9, 5, false}, {300, 9, 5, true}, {150, 1, 4, false},
                                   {97, 40, 3, false}, {97, 30, 2, true}, {5, 8, 2, true}};
  if (scopes_step() > 1) sizes = {{14, 3, 2, true}, {9, 5, 2, false}, {5, 8, 2, true}};
  for (const OnlineCase& size : sizes) {
    for (const Draw& draw : all_draws()) {
      Rng rng(++seed);
      auto p = random_problem<double>(1, size.frames, size.K, size.C, false, draw, rng);
      p.with_start = rng.below(2) == 0, p.with_end = rng.below(2) == 0;
      std::vector<double> tail;
      if (size.tail) fill(tail, size.C, draw, rng);
      const Scope scope = {{}, size.tail ? View<const double, 1>(tail) : View<const double, 1>()};
      std::vector<double> z(1);
      Inference(1).log_partition(p.potentials(), scope, {z, {}});
      SegmentationLists best;
      Inference(1).k_best(p.potentials(), scope, 1, best);
      if (best.score.empty()) best.segmentations.end_row();
      OnlineDecoder decoder(p.potentials(), {}, scope.tail);
      const Decoding whole = run(decoder, p, size.frames);
      SCOPED_TRACE(::testing::Message() << "seed " << seed);
      EXPECT_LT(relative(whole.log_partition, z[0]), 1e-13);
      // A row that turns out to have no path may have been decided in part. Sums of 1e4 and 1 have
      // near-ties that fall either way.
      const bool is_extreme = seed % all_draws().size() == 4;
      EXPECT_TRUE(z[0] == -kInf || is_extreme || whole.path == best.segmentations)
          << ::testing::PrintToString(whole.path.duration) << " and "
          << ::testing::PrintToString(best.segmentations.duration);
      if (!best.score.empty()) {
        EXPECT_NEAR(whole.score, best.score[0], 10 * rounding(p));
      }
      EXPECT_EQ(whole.status, z[0] == -kInf ? RowStatus::kNoPath : RowStatus::kOk);
      for (const std::int64_t piece :
           {std::int64_t{1}, std::int64_t{7}, size.K - 1, size.K, size.K + 1, std::int64_t{4096}}) {
        if (piece < 1) continue;
        const Decoding cut = run(decoder, p, piece);
        EXPECT_EQ(cut.path, whole.path);
        EXPECT_EQ(cut.log_partition, whole.log_partition);
        EXPECT_EQ(cut.score, whole.score);
        EXPECT_EQ(cut.decided.back(), whole.decided.back());
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(Online, Test23TiesFallAsInViterbi) {
  for (std::uint64_t seed = 0; seed < 300; seed += scopes_step()) {
    Rng rng(seed);
    const auto pick = [&](std::uint64_t limit) {
      return static_cast<std::int64_t>(1 + rng.below(limit));
    };
    const std::int64_t frames = pick(12), K = pick(5), C = pick(3);
    const auto p = random_problem<double>(1, frames, K, C, false, ties, rng);
    Segmentations viterbi;
    Engine(1).viterbi(p.potentials(), viterbi);
    OnlineDecoder decoder(p.potentials());
    ASSERT_EQ(run(decoder, p, pick(4)).path, viterbi) << seed;
  }
}

TEST(Online, FloatRowsEqualTheEngineAndDecideWithinAFewSegments) {
  Rng rng(7);
  const auto p = random_problem<float>(1, 3000, 20, 10, false, gaussian, rng);
  Segmentations viterbi;
  std::vector<double> z(1);
  Engine engine(1);
  engine.viterbi(p.potentials(), viterbi);
  engine.log_partition(p.potentials(), {z, {}});
  OnlineDecoder decoder(p.potentials());
  const Decoding r = run(decoder, p, 1);
  EXPECT_EQ(r.path, viterbi);
  EXPECT_NEAR(r.log_partition, z[0], 1e-8);
  // Paths of random scores meet within a few segments.
  double delay = 0.0;
  for (std::size_t t = 0; t < r.decided.size(); ++t)
    delay += static_cast<double>(t + 1) - static_cast<double>(r.decided[t]);
  EXPECT_LT(delay / 3000.0, 60.0);
}

TEST(Online, WhatIsDecidedHoldsWhateverFollows) {
  // The same beginning, and sharp scores after it that pull it every way.
  Rng rng(8);
  const auto p = random_problem<double>(1, 120, 8, 4, false, gaussian, rng);
  std::int64_t decided = -1;
  for (int round = 0; round < 30; ++round) {
    auto q = p;
    for (std::size_t i = 60 * 4; i < q.emission.size(); ++i) q.emission[i] = 40.0 * rng.normal();
    Segmentations viterbi, path;
    Engine(1).viterbi(q.potentials(), viterbi);
    OnlineDecoder decoder(q.potentials());
    feed(decoder, q, 0, 60, path);
    EXPECT_TRUE(decided < 0 || decoder.decided_frames() == decided);
    decided = decoder.decided_frames();
    for (std::int64_t i = 0; i < path.segments(); ++i) {
      EXPECT_EQ(path.start[i], viterbi.start[i]);
      EXPECT_EQ(path.duration[i], viterbi.duration[i]);
      EXPECT_EQ(path.label[i], viterbi.label[i]);
    }
  }
  EXPECT_GT(decided, 20);
}

TEST(Online, ABoundedDelayDecidesInTimeAndIsAPathOfItsScore) {
  int worse = 0;
  for (int round = 0; round < 12; ++round) {
    Rng rng(50 + static_cast<std::uint64_t>(round));
    const std::int64_t K = 6, C = 4;
    auto p = random_problem<double>(1, 400, K, C, false, gaussian, rng);
    for (double& v : p.emission) v *= 0.2;  // weak frames and sticky labels: late agreement
    for (std::int64_t c = 0; c < C; ++c)
      for (std::int64_t d = 0; d < C; ++d) p.transition[c * C + d] = c == d ? 0.0 : -6.0;
    std::vector<double> tail;
    if (round % 2 == 1) tail.assign(C, -0.3);
    const View<const double, 1> tail_view = tail.empty() ? View<const double, 1>() : tail;
    SegmentationLists best;
    Inference(1).k_best(p.potentials(), {{}, tail_view}, 1, best);
    for (const std::int64_t delay : {K, 2 * K, std::int64_t{10000}}) {
      OnlineDecoder decoder(p.potentials(), {delay}, tail_view);
      const Decoding slow = run(decoder, p, 1);
      const Decoding quick = run(decoder, p, 37);
      EXPECT_EQ(slow.path, quick.path);
      ASSERT_EQ(slow.status, RowStatus::kOk);
      const Path path = unpacked(slow.path, 0);
      std::int64_t covered = 0;
      double score = 0.0;
      for (std::size_t i = 0; i < path.size(); ++i) {
        const auto [s, d, c] = path[i];
        ASSERT_EQ(s, covered);
        covered += d;
        const std::int64_t k = std::min(d, K) - 1;
        score += p.duration[k * C + c] + p.start[s * C + c] + p.end[(covered - 1) * C + c] +
                 (i == 0 ? p.initial[c] : p.transition[path[i - 1].label * C + c]);
        if (d > K) score += static_cast<double>(d - K) * tail.at(c);
        for (std::int64_t t = s; t < covered; ++t) score += p.emission[t * C + c];
      }
      ASSERT_EQ(covered, 400);
      score += p.final[path.back().label];
      EXPECT_NEAR(score, slow.score, 1e-10);
      if (delay == 10000) {
        EXPECT_EQ(slow.path, best.segmentations);
      } else {
        EXPECT_LE(score, best.score[0] + 1e-10);
        worse += score < best.score[0] - 1e-9 ? 1 : 0;
        for (std::size_t t = 0; t < slow.decided.size(); ++t)
          for (const Piece& piece : path)
            ASSERT_TRUE(piece.start > static_cast<std::int64_t>(t + 1) - delay ||
                        piece.start <= slow.decided[t]);
      }
    }
  }
  EXPECT_GT(worse, 0);  // otherwise nothing was forced
}

TEST(Online, ADecoderIsUsedAgainAndEmptyRowsAreEmpty) {
  Rng rng(9);
  const auto p = random_problem<double>(1, 50, 5, 3, false, gaussian, rng);
  const auto q = random_problem<double>(1, 31, 5, 3, false, gaussian, rng);
  OnlineDecoder decoder(p.potentials());
  const Decoding first = run(decoder, p, 10);
  Segmentations empty;
  EXPECT_EQ(decoder.finish(empty), RowStatus::kOk);
  EXPECT_EQ(empty.row_pointer, (std::vector<std::int64_t>{0, 0}));
  EXPECT_EQ(decoder.log_partition(), 0.0);
  auto other = p;
  other.T_ = 31, other.emission = q.emission, other.start = q.start, other.end = q.end;
  const Decoding between = run(decoder, other, 10);
  Segmentations viterbi;
  Engine(1).viterbi(other.potentials(), viterbi);
  EXPECT_EQ(between.path, viterbi);
  EXPECT_EQ(run(decoder, p, 3).path, first.path);
}

TEST(Online, WrongInputIsRefused) {
  Rng rng(10);
  const auto p = random_problem<double>(1, 4, 3, 2, false, gaussian, rng);
  const auto by_duration = random_problem<double>(1, 4, 3, 2, true, gaussian, rng);
  EXPECT_THROW(OnlineDecoder(by_duration.potentials()), UsageError);
  EXPECT_THROW(OnlineDecoder(p.potentials(), {2}), UsageError);
  OnlineDecoder decoder(p.potentials());
  std::vector<double> frames = {0.0, 0.0, 1.0, kNaN};
  Segmentations path;
  EXPECT_THROW(decoder.push(View<const double, 2>(frames.data(), {1, 4}), path), UsageError);
  try {
    decoder.push(View<const double, 2>(frames.data(), {2, 2}), path);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("time 1, class 1 is "), std::string::npos);
  }
#ifndef SEGFUSE_TEST_ON_DEVICE  // a device looks at scores when the piece has been taken
  EXPECT_EQ(decoder.frames(), 0);
#endif
}

#ifndef SEGFUSE_TEST_ON_DEVICE  // there the names are those of the tests' own classes
/// Uses an object of which another one was made by moving it, and then that one in its place.
template <class Object, class Use>
void check_moved_from(const char* name, Object object, const Use& use) {
  use(object);
  Object other = std::move(object);
  try {
    use(object);  // NOLINT(bugprone-use-after-move)
    FAIL() << name;
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr(std::string(name) + " was used after it was moved from"));
  }
  object = std::move(other);
  use(object);
}

TEST(MovedFrom, ObjectsOfThisLibrarySaySo) {
  Rng rng(3);
  const auto p = random_problem<double>(1, 6, 3, 2, false, gaussian, rng);
  double z = 0;
  const PartitionResult result{{&z, {1}}, {}};
  Segmentations path;
  check_moved_from("Engine", Engine(1),
                   [&](Engine& x) { x.log_partition(p.potentials(), result); });
  check_moved_from("Engine", Engine(1), [&](Engine& x) { x.viterbi(p.potentials(), path); });
  check_moved_from("Inference", Inference(1),
                   [&](Inference& x) { x.log_partition(p.potentials(), {}, result); });
  check_moved_from("OnlineDecoder", OnlineDecoder(p.potentials()),
                   [](OnlineDecoder& x) { static_cast<void>(x.frames()); });
  check_moved_from("OnlineDecoder", OnlineDecoder(p.potentials()),
                   [&](OnlineDecoder& x) { x.finish(path); });
  check_moved_from("BlockPosterior", BlockPosterior(p.potentials()),
                   [](BlockPosterior& x) { static_cast<void>(x.frames()); });
  check_moved_from("ConstrainedPotentials", ConstrainedPotentials<double>(p.potentials(), {}),
                   [](const auto& x) { static_cast<void>(x.potentials()); });
}
#endif

}  // namespace
}  // namespace segfuse::semicrf::testing
