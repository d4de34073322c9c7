#include "learn/train/decode/clean_up.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "learn/train/loop/corpus.h"

namespace segfuse::learn {
namespace {

using Frames = std::vector<std::int32_t>;

/// Frames that often stay and often jump.
Frames random_frames(Rng& rng, std::int64_t most, std::uint64_t labels) {
  Frames frames;
  for (std::uint64_t left = 1 + rng.below(static_cast<std::uint64_t>(most)); left > 0; --left)
    frames.push_back(frames.empty() || rng.below(2) == 0
                         ? static_cast<std::int32_t>(rng.below(labels))
                         : frames.back());
  return frames;
}

Frames frames_of(const std::vector<FrameSegment>& segments) {
  Frames frames;
  for (const FrameSegment& s : segments) {
    EXPECT_EQ(s.start, std::ssize(frames));
    frames.insert(frames.end(), static_cast<std::size_t>(s.duration), s.label);
  }
  return frames;
}

/// Counts all votes of each frame.
Frames plain_vote(const Frames& frames, std::int64_t window) {
  Frames voted;
  for (std::int64_t t = 0; t < std::ssize(frames); ++t) {
    std::map<std::int32_t, std::int64_t> votes;
    for (std::int64_t u = t - window / 2; u <= t + window / 2; ++u)
      if (u >= 0 && u < std::ssize(frames)) ++votes[frames[static_cast<std::size_t>(u)]];
    std::int32_t label = frames[static_cast<std::size_t>(t)];
    const std::int64_t own = votes[label];
    std::int64_t most = 0;
    for (const auto& [candidate, count] : votes) most = std::max(most, count);
    if (own < most)
      for (const auto& [candidate, count] : votes)
        if (count == most) {
          label = candidate;
          break;
        }
    voted.push_back(label);
  }
  return voted;
}

/// Looks for the shortest segment again and again.
Frames plain_minimum(Frames frames, std::int64_t shortest) {
  while (true) {
    const std::vector<FrameSegment> segments = runs_of(frames);
    std::size_t least = 0;
    for (std::size_t i = 1; i < segments.size(); ++i)
      if (segments[i].duration < segments[least].duration) least = i;
    if (segments.size() < 2 || segments[least].duration >= shortest) return frames;
    const bool has_left = least > 0, has_right = least + 1 < segments.size();
    const bool to_left =
        !has_right || (has_left && segments[least - 1].duration >= segments[least + 1].duration);
    const std::int32_t label = segments[to_left ? least - 1 : least + 1].label;
    std::fill_n(frames.begin() + segments[least].start, segments[least].duration, label);
  }
}

TEST(CleanUp, IsWhatCountingAndLookingAgainGive) {
  Rng rng(11);
  for (int i = 0; i < 400; ++i) {
    const Frames frames = random_frames(rng, 60, 1 + rng.below(4));
    const auto window = static_cast<std::int64_t>(1 + 2 * rng.below(8));
    const auto shortest = static_cast<std::int64_t>(1 + rng.below(9));
    const std::vector<FrameSegment> segments = runs_of(frames);
    EXPECT_EQ(frames_of(majority_vote(segments, window)), plain_vote(frames, window));
    EXPECT_EQ(frames_of(without_short(segments, shortest)), plain_minimum(frames, shortest));
    const std::vector<FrameSegment> cleaned = clean_up(segments, {shortest, window});
    EXPECT_EQ(frames_of(cleaned), plain_minimum(plain_vote(frames, window), shortest));
    EXPECT_EQ(cleaned, runs_of(frames_of(cleaned))) << "neighbours of one label";
    for (const FrameSegment& s : cleaned)
      EXPECT_TRUE(cleaned.size() == 1 || s.duration >= shortest);
  }
}

TEST(CleanUp, CasesByHand) {
  const auto vote = [](Frames frames, std::int64_t window) {
    return frames_of(majority_vote(runs_of(frames), window));
  };
  const auto minimum = [](Frames frames, std::int64_t shortest) {
    return frames_of(without_short(runs_of(frames), shortest));
  };
  EXPECT_EQ(vote({0, 0, 1, 0, 0}, 3), (Frames{0, 0, 0, 0, 0}));
  EXPECT_EQ(vote({2, 1}, 3), (Frames{2, 1})) << "a draw leaves a frame its own label";
  EXPECT_EQ(vote({1, 2, 0, 2, 1}, 5), (Frames{1, 2, 1, 2, 1})) << "of equals the lowest";
  EXPECT_EQ(minimum({0, 0, 0, 1, 2, 2}, 2), (Frames{0, 0, 0, 0, 2, 2})) << "to the longer side";
  EXPECT_EQ(minimum({0, 0, 1, 2, 2}, 2), (Frames{0, 0, 0, 2, 2})) << "of equals to the one before";
  EXPECT_EQ(minimum({0, 0, 1, 0, 0, 2}, 2), (Frames{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(minimum({1}, 5), (Frames{1})) << "something has to be left";
  EXPECT_TRUE(clean_up({}, {3, 3}).empty());
}

TEST(CleanUp, CandidatesGoUpToTheMedian) {
  const std::vector<CleanUp> all =
      clean_up_candidates({{{0, 3, 0}, {3, 9, 1}}, {{0, 40, 0}}});  // the median is 9
  EXPECT_EQ(all.front(), (CleanUp{1, 1}));
  std::set<std::int64_t> shortest, windows;
  for (const CleanUp& one : all) {
    shortest.insert(one.shortest);
    windows.insert(one.window);
  }
  EXPECT_EQ(shortest, (std::set<std::int64_t>{1, 2, 3, 4, 5, 6, 8}));
  EXPECT_EQ(windows, (std::set<std::int64_t>{1, 3, 5, 7, 9, 11, 15, 19}));
  EXPECT_EQ(all.size(), shortest.size() * windows.size());
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end(), [](const CleanUp& a, const CleanUp& b) {
    return std::pair(a.shortest, a.window) < std::pair(b.shortest, b.window);
  }));
  EXPECT_EQ(clean_up_candidates({}).front(), (CleanUp{1, 1}));
}

TEST(CleanUp, TheBestSettingIsChosenAndOfEqualsTheSmallest) {
  Rng rng(5);
  std::vector<std::vector<FrameSegment>> noisy, gold;
  for (int i = 0; i < 5; ++i) {
    Frames truth, heard;
    for (int segment = 0; segment < 20; ++segment)
      for (std::uint64_t left = 6 + rng.below(8); left > 0; --left) {
        truth.push_back(segment % 3);
        heard.push_back(rng.below(8) == 0 ? static_cast<std::int32_t>(rng.below(3)) : segment % 3);
      }
    gold.push_back(runs_of(truth));
    noisy.push_back(runs_of(heard));
  }
  const auto wrong = [&](const std::vector<std::vector<FrameSegment>>& cleaned) {
    double count = 0;
    for (std::size_t i = 0; i < gold.size(); ++i) {
      const Frames a = frames_of(gold[i]), b = frames_of(cleaned[i]);
      for (std::size_t t = 0; t < a.size(); ++t) count += a[t] != b[t];
    }
    return count;
  };
  const std::vector<CleanUp> candidates = clean_up_candidates(gold);
  double best = 1e9;
  CleanUp expected;
  for (const CleanUp& setting : candidates) {
    std::vector<std::vector<FrameSegment>> cleaned;
    for (const auto& row : noisy) cleaned.push_back(clean_up(row, setting));
    if (wrong(cleaned) < best) {
      best = wrong(cleaned);
      expected = setting;
    }
  }
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    const TunedCleanUp tuned = tune_clean_up(noisy, candidates, wrong, true, pool);
    EXPECT_EQ(tuned.setting, expected);
    EXPECT_EQ(tuned.score, best);
    EXPECT_EQ(tuned.tried, std::ssize(candidates));
    EXPECT_LT(best, wrong(noisy) / 2) << "there is something to clean up";
    const auto right = [&](const auto& cleaned) { return -wrong(cleaned); };
    EXPECT_EQ(tune_clean_up(noisy, candidates, right, false, pool).setting, expected);
    const auto equal = [](const auto&) { return 1.0; };
    EXPECT_EQ(tune_clean_up(noisy, candidates, equal, true, pool).setting, (CleanUp{1, 1}));
    EXPECT_EQ(tune_clean_up(noisy, candidates, equal, false, pool).setting, (CleanUp{1, 1}));
  }
}

}  // namespace
}  // namespace segfuse::learn
