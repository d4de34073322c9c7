// What ranks of a training do beside the shards: sums on devices, and sets that are dealt out.
#include <gmock/gmock.h>

#include <bit>

#include "engine/device/accelerator.h"
#include "learn/train/decode/on_ranks.h"
#include "learn/train/loop/stragglers.h"
#include "small_training.h"
#include "support/nccl/nccl_ranks.h"

namespace segfuse::learn {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

/// A training whose programs run on the host, while all that lasts lies on a device.
struct DeviceTraining : Training {
  DeviceTraining() {
    plan.shards = plan.batch_size = 8;
    plan.crf_reg = 0.01;
    options.execution.backend = "loops";
  }
  TrainingOutcome run_with(test::Devices& devices, int ranks, const std::string& comm,
                           bool shared = false) {
    return run_on_ranks(ranks, *this, [&](comm::Group& group, TrainerOptions& own) {
      devices.begin_rank(group.rank());
      own.comm = comm;
      own.nccl = &devices.api();
      own.execution.accelerator = engine::Accelerator::make(
          fmt::format("gpu {}", shared ? 0 : group.rank()), devices.open(group.rank()));
    });
  }
};

TEST(TrainingRanks, WithDevicesOfTheirOwnSumByNccl) {
  DeviceTraining training;  // without comm: the memory of all is too small for peers' tiles
  const TrainingOutcome one = run_on_ranks(1, training);
  for (const int ranks : {2, 3, 4})
    for (const char* const comm : {"", "nccl"}) {
      test::fake().reset();
      const auto devices = test::like_cuda(2);
      expect_equal(training.run_with(*devices, ranks, comm), one);
      for (int rank = 0; rank < ranks; ++rank) EXPECT_GT(test::fake().calls(rank), 10U);
      EXPECT_EQ(test::fake().misuse(), "");
      EXPECT_EQ(test::fake().alive(), 0);
    }
}

TEST(TrainingRanks, WhoseDevicesReachEachOtherSumThere) {
  DeviceTraining training;
  const TrainingOutcome one = run_on_ranks(1, training);
  for (const int ranks : {2, 3, 4})
    for (const char* const comm : {"", "peer"}) {
      test::fake().reset();
      const auto devices = test::like_cuda(2, std::size_t{1} << 30);
      expect_equal(training.run_with(*devices, ranks, comm), one);
      for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(test::fake().calls(rank), 0U);
      EXPECT_EQ(devices->held(), 0U);
    }
}

TEST(TrainingRanks, WithoutThatSumInHostMemory) {
  DeviceTraining training;
  const TrainingOutcome one = run_on_ranks(1, training);
  test::fake().reset();
  const auto devices = test::like_cuda(2);
  expect_equal(training.run_with(*devices, 3, "", true), one);
  expect_equal(training.run_with(*devices, 3, "tcp"), one);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(test::fake().calls(rank), 0U);
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TrainingRanks, WhoAsksForOneWayIsToldWhyNot) {
  DeviceTraining training;
  test::fake().reset();
  const auto devices = test::like_cuda(2);
  EXPECT_THAT(error_of([&] { training.run_with(*devices, 3, "nccl", true); }),
              AllOf(HasSubstr("--comm nccl: ranks 0 and 1 share a GPU")));
  EXPECT_THAT(error_of([&] { training.run_with(*devices, 3, "peer"); }),
              HasSubstr("--comm peer: rank 0: the GPU has no memory left for it"));
  EXPECT_THAT(error_of([&] {
                run_on_ranks(2, training,
                             [](comm::Group&, TrainerOptions& own) { own.comm = "nccl"; });
              }),
              AllOf(HasSubstr("--comm nccl: rank 0 (host "), HasSubstr("trains on the CPU")));
}

TEST(TrainingRanks, AFaultOfNcclEndsAll) {
  DeviceTraining training;
  for (const test::FakeFault how : {test::FakeFault::kAtOnce, test::FakeFault::kLater})
    for (const std::uint64_t k : {2U, 5U, 9U, 12U}) {
      test::fake().reset();
      test::fake().fail(1, k, how);
      {
        const auto devices = test::like_cuda(2);
        EXPECT_THAT(error_of([&] { training.run_with(*devices, 3, "nccl"); }), HasSubstr("rank 1"))
            << k;
      }
      EXPECT_EQ(test::fake().alive(), 0);
      EXPECT_EQ(test::fake().misuse(), "");
    }
}

/// A set of several batches.
struct DevSet {
  explicit DevSet(HeadKind head) : model(head) {
    for (int copy = 0; copy < 2; ++copy)
      for (Sequence& sequence : some_sequences()) sequences.push_back(std::move(sequence));
    how.batch_frames = kFrames;
    how.posteriors = head != HeadKind::kSoftmax;
  }
  Decoder decoder() const { return {model.segmenter, model.parameters, model.limit, {}}; }

  static constexpr std::int64_t kFrames = 40;
  Model model;
  std::vector<Sequence> sequences;
  Decoder::Options how;
};

void expect_equal(const Decoded& a, const Decoded& b) {
  ASSERT_EQ(a.segments.size(), b.segments.size());
  for (std::size_t i = 0; i < a.segments.size(); ++i) {
    EXPECT_EQ(a.segments[i].segment, b.segments[i].segment);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(a.segments[i].posterior),
              std::bit_cast<std::uint64_t>(b.segments[i].posterior));
    EXPECT_EQ(std::bit_cast<std::uint64_t>(a.segments[i].start_confidence),
              std::bit_cast<std::uint64_t>(b.segments[i].start_confidence));
  }
  EXPECT_EQ(a.label, b.label);
  EXPECT_EQ(a.boundary, b.boundary);
  EXPECT_EQ(a.duration, b.duration);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(a.log_probability),
            std::bit_cast<std::uint64_t>(b.log_probability));
}

TEST(TrainingRanks, DealASetOutAndRankZeroHasTheBitsOfOne) {
  for (const HeadKind head : {HeadKind::kSemiMarkov, HeadKind::kLinearChain, HeadKind::kSoftmax}) {
    const DevSet set(head);
    Decoder alone = set.decoder();
    const std::vector<Decoded> expected = alone.decode(set.sequences, set.how);
    const double loss = alone.loss(set.sequences, DevSet::kFrames);
    EXPECT_GT(alone.batch(), 4) << "a set of several batches";
    for (const int ranks : {1, 2, 3, 5, 16})
      comm::run_ranks(ranks, [&](comm::Group& group) {
        Decoder own = set.decoder();
        const auto decoded = decode_on_ranks(own, set.sequences, set.how, &group);
        const double of_all = loss_on_ranks(own, set.sequences, &group, DevSet::kFrames);
        if (group.rank() > 0) return;
        EXPECT_EQ(std::bit_cast<std::uint64_t>(of_all), std::bit_cast<std::uint64_t>(loss));
        ASSERT_EQ(decoded.size(), expected.size());
        for (std::size_t i = 0; i < decoded.size(); ++i) expect_equal(decoded[i], expected[i]);
      });
  }
}

TEST(TrainingRanks, WorkOnTheirShareAlone) {
  const DevSet set(HeadKind::kSemiMarkov);
  Decoder own = set.decoder();
  std::vector<int> seen(set.sequences.size(), 0);
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    const auto share = own.decode_share(set.sequences, set.how, {rank, 3});
    EXPECT_LT(share.size(), set.sequences.size() / 2);
    for (const auto& [row, decoded] : share) ++seen[static_cast<std::size_t>(row)];
  }
  EXPECT_THAT(seen, Each(1));
}

TEST(TrainingRanks, TheRecordingThatCannotBeDecodedIsTheSameOnAnyNumber) {
  DevSet set(HeadKind::kSemiMarkov);
  for (const std::size_t bad : {4U, 7U, 18U}) {
    set.sequences[bad].id = "bad " + std::to_string(bad);
    set.sequences[bad].features = set.sequences[bad].features.clone();
    set.sequences[bad].features.set(3, NAN);
  }
  Decoder alone = set.decoder();
  const std::string expected = error_of([&] { alone.decode(set.sequences, set.how); });
  EXPECT_THAT(expected, HasSubstr("bad "));
  for (const int ranks : {2, 3, 5}) {
    const std::string found = error_of([&] {
      comm::run_ranks(ranks, [&](comm::Group& group) {
        Decoder own = set.decoder();
        decode_on_ranks(own, set.sequences, set.how, &group);
      });
    });
    EXPECT_EQ(found, expected) << ranks;
  }
}

/// What is said after so many steps that each take these seconds a rank.
std::vector<std::string> said_of(Stragglers& stragglers, int steps,
                                 const std::vector<Stragglers::Work>& ranks) {
  std::vector<std::string> all;
  for (int step = 0; step < steps; ++step)
    if (const auto sentence = stragglers.add(ranks)) all.push_back(*sentence);
  return all;
}

TEST(Stragglers, OneThatIsSlowIsNamedOnce) {
  Stragglers stragglers;
  EXPECT_THAT(said_of(stragglers, 49, {{0.1, 1}, {0.2, 1}, {0.12, 1}}), ::testing::IsEmpty());
  EXPECT_THAT(said_of(stragglers, 500, {{0.1, 1}, {0.2, 1}, {0.12, 1}}),
              ::testing::ElementsAre("rank 1 is slow: in 50 of 50 steps it took the longest for a "
                                     "shard, 200.0 ms against 120.0 ms of the next slowest rank"));
  EXPECT_THAT(said_of(stragglers, 100, {{0.3, 1}, {0.2, 1}, {0.12, 1}}),
              ::testing::ElementsAre(HasSubstr("rank 0 is slow")));
}

TEST(Stragglers, MoreShardsNoiseAndTurnsAreNobodysFault) {
  Stragglers stragglers;
  EXPECT_THAT(said_of(stragglers, 100, {{0.2, 2}, {0.1, 1}}), ::testing::IsEmpty());
  EXPECT_THAT(said_of(stragglers, 100, {{0.105, 1}, {0.1, 1}}), ::testing::IsEmpty());
  EXPECT_THAT(said_of(stragglers, 100, {{0.0004, 1}, {0.0001, 1}}), ::testing::IsEmpty());
  EXPECT_THAT(said_of(stragglers, 100, {{0.4, 1}, {0, 0}}), ::testing::IsEmpty());
  for (int step = 0; step < 200; ++step)
    EXPECT_FALSE(stragglers.add({{step % 4 == 0 ? 0.1 : 0.5, 1}, {0.2, 1}}));
}

}  // namespace
}  // namespace segfuse::learn
