// The posterior of a row in blocks, against that of the whole row.

#include <gtest/gtest.h>

#include "segfuse/error.h"
#include "unit/semicrf/scopes.h"

namespace segfuse::semicrf::testing {
namespace {

template <class T>
FrameScores<T> frames_of(const Problem<T>& p, std::int64_t first, std::int64_t n) {
  const auto rows = [&](const std::vector<T>& all, bool given) {
    return given ? View<const T, 2>(all.data() + first * p.C, {n, p.C}) : View<const T, 2>();
  };
  return {rows(p.emission, true), rows(p.start, p.with_start), rows(p.end, p.with_end)};
}

struct Description {
  std::vector<SegmentPosterior> segments;
  double log_partition = 0.0;
  double score = 0.0;
  std::vector<double> label, boundary;  ///< of each frame
};

class Numbers : public NumberStore {
 public:
  void append(std::span<const double> numbers) override {
    all_.insert(all_.end(), numbers.begin(), numbers.end());
  }
  void read(std::int64_t first, std::span<double> numbers) override {
    for (double& number : numbers) number = all_.at(static_cast<std::size_t>(first++));
  }

 private:
  std::vector<double> all_;
};

template <class T>
Description in_blocks(const Problem<T>& p, const Segmentations& path, std::int64_t block,
                      std::int64_t piece, std::int64_t tolerance, NumberStore* kept = nullptr,
                      const View<const std::uint8_t, 1>& must_start = {}) {
  BlockPosterior posterior(p.potentials(), block, kept, must_start);
  for (std::int64_t first = 0; first < p.T_; first += piece)
    posterior.push(frames_of(p, first, std::min(piece, p.T_ - first)));
  Description out;
  out.log_partition = posterior.log_partition();
  const BlockPosterior::Reader<T> read = [&](std::int64_t first, std::int64_t n) {
    return frames_of(p, first, n);
  };
  out.label.resize(static_cast<std::size_t>(p.T_ * p.C), -1.0);
  std::int64_t seen = p.T_;
  out.segments =
      posterior.describe(path.view(), tolerance, read,
                         [&](std::int64_t t, std::span<const double> label, double boundary) {
                           EXPECT_EQ(t, --seen);
                           std::ranges::copy(label, out.label.begin() + t * p.C);
                           out.boundary.insert(out.boundary.begin(), boundary);
                         });
  EXPECT_EQ(seen, 0);
  EXPECT_EQ(posterior.log_partition(), out.log_partition);
  out.score = posterior.score();
  return out;
}

/// What Engine and Inference say of the same segments.
Description of_whole(const Problem<double>& p, const Segmentations& path, std::int64_t tolerance) {
  Description out;
  const auto potentials = p.potentials();
  Engine engine(1);
  Inference inference(1);
  std::vector<double> z(1), label(static_cast<std::size_t>(p.T_ * p.C));
  std::vector<double> within(static_cast<std::size_t>(p.T_)), exact(path.label.size()), score(1);
  out.boundary.resize(static_cast<std::size_t>(p.T_));
  Posteriors<double> posteriors;
  posteriors.label = {label.data(), {1, p.T_, p.C}};
  posteriors.boundary = {out.boundary.data(), {1, p.T_}};
  posteriors.log_partition = View<double, 1>(z);
  engine.posteriors(potentials, posteriors);
  engine.segment_posteriors<double>(potentials, path.view(), View<double, 1>(exact));
  inference.boundary_within<double>(potentials, {}, tolerance, {within.data(), {1, p.T_}});
  engine.score(potentials, path, View<double, 1>(score));
  out.log_partition = z[0];
  out.score = score[0];
  for (std::size_t i = 0; i < path.label.size(); ++i) {
    double sum = 0;
    for (std::int64_t t = path.start[i]; t < path.start[i] + path.duration[i]; ++t)
      sum += label[static_cast<std::size_t>(t * p.C + path.label[i])];
    out.segments.push_back(
        {exact[i], sum / path.duration[i], within[static_cast<std::size_t>(path.start[i])]});
  }
  out.label = label;
  return out;
}

void expect_near(const Description& a, const Description& b, double tolerance) {
  EXPECT_NEAR(a.log_partition, b.log_partition, tolerance * std::abs(b.log_partition) + tolerance);
  EXPECT_NEAR(a.score, b.score, tolerance * std::abs(b.score) + tolerance);
  const auto near = [&](double x, double y) { return std::abs(x - y) <= tolerance; };
  EXPECT_TRUE(std::ranges::equal(a.label, b.label, near));
  EXPECT_TRUE(std::ranges::equal(a.boundary, b.boundary, near));
  ASSERT_EQ(a.segments.size(), b.segments.size());
  for (std::size_t i = 0; i < a.segments.size(); ++i) {
    EXPECT_NEAR(a.segments[i].segment, b.segments[i].segment, tolerance) << "segment " << i;
    EXPECT_NEAR(a.segments[i].label, b.segments[i].label, tolerance) << "segment " << i;
    EXPECT_NEAR(a.segments[i].start, b.segments[i].start, tolerance) << "segment " << i;
  }
}

bool same(const Description& a, const Description& b) {
  return a.log_partition == b.log_partition && a.score == b.score && a.label == b.label &&
         a.boundary == b.boundary &&
         std::ranges::equal(a.segments, b.segments, [](const auto& x, const auto& y) {
           return x.segment == y.segment && x.label == y.label && x.start == y.start;
         });
}

/// Neighbours of one label as one segment.
Segmentations runs_of(const Segmentations& path) {
  Segmentations runs;
  for (std::size_t i = 0; i < path.label.size(); ++i) {
    if (i > 0 && path.label[i] == path.label[i - 1])
      runs.duration.back() += path.duration[i];
    else
      runs.append(path.start[i], path.duration[i], path.label[i]);
  }
  runs.end_row();
  return runs;
}

TEST(BlockPosterior, AgreesWithTheWholeRowAtAnyBlockAndPiece) {
  std::uint64_t seed = 0;
  for (const std::int64_t longest : {1, 2, 7}) {
    for (const std::int64_t frames : {1, 2, 6, 7, 8, 13, 14, 15, 60, 61}) {
      for (const Draw& draw : all_draws()) {
        Rng rng(++seed);
        auto p = random_problem<double>(1, frames, longest, 3, false, draw, rng);
        p.with_start = rng.below(2) == 0, p.with_end = rng.below(2) == 0;
        Segmentations path;
        std::vector<RowStatus> status(1);
        Engine(1).viterbi(p.potentials(), path, {{}, View<RowStatus, 1>(status)});
        if (status[0] != RowStatus::kOk) continue;
        const std::int64_t tolerance = static_cast<std::int64_t>(rng.below(5));
        SCOPED_TRACE(fmt::format("{} frames, K {}, seed {}, tolerance {}", frames, longest, seed,
                                 tolerance));
        const Description whole = of_whole(p, path, tolerance);
        const Description one = in_blocks(p, path, 100, 100, tolerance);
        expect_near(one, whole, 1e-9);
        // One block or many: the forward half has the same bits, the rest too.
        for (const std::int64_t block : {1, 7, 20})
          EXPECT_TRUE(same(in_blocks(p, path, block, 5, tolerance), one)) << block;
        EXPECT_TRUE(same(in_blocks(p, path, 100, 1, tolerance), one));
        Numbers elsewhere;
        EXPECT_TRUE(same(in_blocks(p, path, 7, 5, tolerance, &elsewhere), one));
        if (longest > 1) continue;
        EXPECT_EQ(in_blocks(p, runs_of(path), 7, 5, tolerance).score, one.score);
      }
    }
  }
}

/// The first frames of a row.
template <class T>
Problem<T> beginning_of(const Problem<T>& p, std::int64_t frames) {
  Problem<T> first = p;
  first.T_ = frames;
  for (std::vector<T>* scores : {&first.emission, &first.start, &first.end})
    scores->resize(static_cast<std::size_t>(frames * p.C));
  return first;
}

template <class T>
Segmentations best_of(const Problem<T>& p) {
  Segmentations path;
  Engine(1).viterbi(p.potentials(), path);
  return path;
}

TEST(BlockPosterior, AgreesWithTheWholeRowWhereItIsSettled) {
  std::uint64_t seed = 0;
  for (const std::int64_t longest : {1, 2, 7, 150}) {
    for (const std::int64_t tolerance : {0, 2, 40}) {
      Rng rng(++seed);
      auto p = random_problem<double>(1, 1700, longest, 3, false, all_draws()[0], rng);
      p.with_start = rng.below(2) == 0, p.with_end = rng.below(2) == 0;
      SCOPED_TRACE(fmt::format("K {}, tolerance {}", longest, tolerance));
      const Segmentations path = best_of(p);
      const Description one = in_blocks(p, path, 2000, 2000, tolerance);
      expect_near(one, of_whole(p, path, tolerance), 3e-9);
      for (const std::int64_t block : {100, 512, 700})
        EXPECT_TRUE(same(in_blocks(p, path, block, 99, tolerance), one)) << block;
    }
  }
}

/// How many frames from the first have the same bits.
std::int64_t same_frames(const Description& a, const Description& b, std::int64_t classes) {
  const auto same = [](const std::vector<double>& x, const std::vector<double>& y) {
    return std::ranges::mismatch(x, y).in1 - x.begin();
  };
  return std::min(same(a.boundary, b.boundary), same(a.label, b.label) / classes);
}

std::size_t same_segments(const Description& a, const Description& b) {
  const auto equal = [](const SegmentPosterior& x, const SegmentPosterior& y) {
    return x.segment == y.segment && x.label == y.label && x.start == y.start;
  };
  const auto end = std::ranges::mismatch(a.segments, b.segments, equal).in1;
  return static_cast<std::size_t>(end - a.segments.begin());
}

/// A posterior depends on all that follows; what is forgotten does not change a bit.
TEST(BlockPosterior, HasTheBitsThatTheBeginningOfTheRowHasByItself) {
  constexpr std::int64_t kFrames = 4321;
  constexpr std::int64_t kSettled = kFrames / 512 * 512;  // forgets before the row's last frames
  std::uint64_t seed = 100;
  int compared = 0;
  for (const std::int64_t longest : {1, 2, 7, 40}) {
    for (const Draw& draw : all_draws()) {
      for (const std::int64_t tolerance : {0, 3}) {
        Rng rng(++seed);
        auto p = random_problem<double>(1, 2 * kFrames, longest, 5, false, draw, rng);
        p.with_start = rng.below(2) == 0, p.with_end = rng.below(2) == 0;
        const Problem<double> beginning = beginning_of(p, kFrames);
        const Segmentations path = best_of(p), path_of_beginning = best_of(beginning);
        if (path.label.empty() || path_of_beginning.label.empty()) continue;
        const Description all = in_blocks(p, path, 1000, 1000, tolerance);
        const Description part = in_blocks(beginning, path_of_beginning, 300, kFrames, tolerance);
        SCOPED_TRACE(fmt::format("K {}, seed {}, tolerance {}", longest, seed, tolerance));
        EXPECT_GE(same_frames(part, all, p.C), kSettled);
        std::size_t settled = 0;
        for (std::size_t i = 0; i < path.label.size(); ++i)
          settled += path.start[i] + path.duration[i] < kSettled - 512;
        EXPECT_GE(same_segments(part, all), settled);
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 30);
}

/// What Inference says within constraints of boundaries; a segment's probability is that of all
/// segmentations with these boundaries and labels.
Description of_scope(const Problem<double>& p, const Segmentations& path, std::int64_t tolerance,
                     const std::vector<std::int8_t>& boundary) {
  Description out;
  const auto potentials = p.potentials();
  Inference inference(1);
  Scope scope;
  scope.constraints.boundary = {boundary.data(), {1, p.T_}};
  std::vector<double> z(1), label(static_cast<std::size_t>(p.T_ * p.C)), score(1);
  std::vector<double> within(static_cast<std::size_t>(p.T_));
  out.boundary.resize(static_cast<std::size_t>(p.T_));
  Posteriors<double> posteriors;
  posteriors.label = {label.data(), {1, p.T_, p.C}};
  posteriors.boundary = {out.boundary.data(), {1, p.T_}};
  posteriors.log_partition = View<double, 1>(z);
  inference.posteriors(potentials, scope, posteriors);
  inference.boundary_within<double>(potentials, scope, tolerance, {within.data(), {1, p.T_}});
  Engine(1).score(potentials, path, View<double, 1>(score));
  out.log_partition = z[0];
  out.score = score[0];
  for (std::size_t i = 0; i < path.label.size(); ++i) {
    std::vector<std::int8_t> only = boundary;
    std::vector<std::int32_t> its(static_cast<std::size_t>(p.T_), -1);
    double sum = 0;
    const std::int64_t end = path.start[i] + path.duration[i];
    for (std::int64_t t = path.start[i]; t < end; ++t) {
      sum += label[static_cast<std::size_t>(t * p.C + path.label[i])];
      only[static_cast<std::size_t>(t)] = t == path.start[i] ? 1 : 0;
      its[static_cast<std::size_t>(t)] = path.label[i];
    }
    if (end < p.T_) only[static_cast<std::size_t>(end)] = 1;
    Scope one;
    one.constraints.boundary = {only.data(), {1, p.T_}};
    one.constraints.label = {its.data(), {1, p.T_}};
    std::vector<double> with(1);
    inference.log_partition(potentials, one, {View<double, 1>(with), {}});
    out.segments.push_back({std::exp(with[0] - z[0]), sum / path.duration[i],
                            within[static_cast<std::size_t>(path.start[i])]});
  }
  out.label = label;
  return out;
}

TEST(BlockPosterior, ObeysStartsThatAreKnown) {
  std::uint64_t seed = 0;
  int compared = 0;
  for (const std::int64_t longest : {1, 2, 7, 20}) {
    for (const std::int64_t frames : {1, 2, 8, 30, 61, 600}) {  // a row is settled at 512
      for (const Draw& draw : all_draws()) {
        Rng rng(++seed);
        auto p = random_problem<double>(1, frames, longest, 3, false, draw, rng);
        p.with_start = rng.below(2) == 0, p.with_end = rng.below(2) == 0;
        std::vector<std::int8_t> boundary(static_cast<std::size_t>(frames), -1);
        std::vector<std::uint8_t> starts(static_cast<std::size_t>(frames), 0);
        for (std::size_t t = 0; t < starts.size(); ++t)
          if (rng.below(6) == 0) starts[t] = boundary[t] = 1;
        Scope scope;
        scope.constraints.boundary = {boundary.data(), {1, frames}};
        SegmentationLists best;
        Inference(1).k_best(p.potentials(), scope, 1, best);
        if (best.score.empty()) continue;
        const Segmentations& path = best.segmentations;
        const std::int64_t tolerance = static_cast<std::int64_t>(rng.below(4));
        SCOPED_TRACE(fmt::format("{} frames, K {}, seed {}", frames, longest, seed));
        const Description one = in_blocks(p, path, 2000, 2000, tolerance, nullptr, starts);
        expect_near(one, of_scope(p, path, tolerance, boundary), 1e-9);
        for (const std::int64_t block : {1, 7, 100})
          EXPECT_TRUE(same(in_blocks(p, path, block, 5, tolerance, nullptr, starts), one)) << block;
        for (std::size_t t = 0; t < starts.size(); ++t)
          EXPECT_TRUE(starts[t] == 0 || std::abs(one.boundary[t] - 1) < 1e-9) << t;
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 30);
}

TEST(BlockPosterior, HoldsABlockAndLittleOfEachOther) {
  Rng rng(5);
  const std::int64_t longest = 10, classes = 3, block = 256;
  const auto held = [&](std::int64_t frames, NumberStore* kept = nullptr) {
    auto p = random_problem<float>(1, frames, longest, classes, false, all_draws()[0], rng);
    BlockPosterior posterior(p.potentials(), block, kept);
    posterior.push(frames_of(p, 0, frames));
    return posterior.bytes();
  };
  const std::int64_t row = 8 * static_cast<std::int64_t>(sizeof(double));
  const std::int64_t few = held(10 * block), many = held(40 * block);
  EXPECT_LE(few, 12 * (block + 3 * longest) * row);
  EXPECT_LE(many - few, 30 * (longest + 3) * row);
  Numbers elsewhere, others;
  EXPECT_EQ(held(10 * block, &elsewhere), held(40 * block, &others));
}

TEST(BlockPosterior, RefusesWhatDoesNotFit) {
  Rng rng(1);
  auto p = random_problem<double>(1, 4, 2, 3, false, all_draws()[0], rng);
  EXPECT_THROW(BlockPosterior(p.potentials(), 0), UsageError);
  BlockPosterior posterior(p.potentials());
  EXPECT_THROW(posterior.push(FrameScores<double>{{p.emission.data(), {4, 2}}}), UsageError);
  const std::vector<std::uint8_t> starts(3, 0);
  BlockPosterior shorter(p.potentials(), 10, nullptr, starts);
  EXPECT_THROW(shorter.push(frames_of(p, 0, 4)), UsageError);
  p.emission[4] = std::nan("");
  EXPECT_THROW(posterior.push(frames_of(p, 0, 4)), DataError);
}

}  // namespace
}  // namespace segfuse::semicrf::testing
