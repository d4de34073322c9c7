// Sums over ranks that go beside the backward pass, piece by piece.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>

#include "engine/device/accelerator.h"
#include "learn/train/loop/ranks.h"
#include "support/nccl/nccl_ranks.h"
#include "unit/learn/small_training.h"

namespace segfuse::learn {
namespace {

using optim::FlatPiece;
using segfuse::testing::same_bits;
using ::testing::HasSubstr;

TEST(Pieces, CoverTheVectorInTheOrderOfCompletion) {
  const Model model(HeadKind::kSemiMarkov);
  const optim::FlatLayout& layout = model.layout;
  const std::size_t count = layout.begin.size();
  std::vector<std::size_t> as_given(count, 0);
  std::vector<std::size_t> backwards(count);
  for (std::size_t p = 0; p < count; ++p) backwards[p] = count - p;
  for (const std::int64_t elements : {std::int64_t{1}, std::int64_t{200}, std::int64_t{1} << 20})
    for (const auto& order : {as_given, backwards}) {
      std::vector<FlatPiece> pieces = optim::cut_into_pieces(layout, order, elements);
      EXPECT_GT(pieces.size(), elements == 1 ? 5U : 0U);
      EXPECT_TRUE(std::ranges::is_sorted(pieces, {}, [&](const FlatPiece& piece) {
        std::size_t last = 0;
        for (const std::size_t p : piece.parameters) last = std::max(last, order[p]);
        return last;
      }));
      std::ranges::sort(pieces, {}, &FlatPiece::begin);
      std::int64_t end = 0;
      std::vector<int> owners(count, 0);
      for (const FlatPiece& piece : pieces) {
        EXPECT_EQ(piece.begin, end);
        EXPECT_EQ(piece.begin % optim::FlatLayout::kAlignment, 0);
        end = piece.end;
        if (layout.size > elements) {
          EXPECT_EQ(piece.begin < layout.decayed, piece.end <= layout.decayed);
        }
        for (const std::size_t p : piece.parameters) {
          ++owners[p];
          EXPECT_GE(layout.begin[p], piece.begin);
          EXPECT_LE(layout.begin[p] + num_elements(layout.shapes[p]), piece.end);
        }
      }
      EXPECT_EQ(end, layout.size);
      EXPECT_THAT(owners, ::testing::Each(1));
    }
}

/// A few steps on each rank: the parameters after them.
struct Steps {
  static constexpr std::int64_t kShards = 8;
  Model model{HeadKind::kSemiMarkov};
  std::vector<Sequence> sequences = some_sequences();
  std::int64_t piece = 64;

  Tensor run(comm::Group* group, const std::shared_ptr<engine::Accelerator>& accelerator,
             const comm::NcclApi* nccl, bool waits) const {
    TrainingRanks ranks(group, kShards);
    ranks.choose_exchange("", accelerator.get(), nccl);
    StepOptions options;
    options.shards = kShards;
    options.crf_reg = 0.25;
    options.piece = piece;
    options.adamw.average = 0.5;
    const FlatState state = model.state();
    const engine::ExecutableOptions how{.backend = "loops", .accelerator = accelerator};
    TrainingStep step(model.segmenter, options, state, model.layout,
                      {{"duration_limit", model.limit}}, how);
    for (std::int64_t number = 0; number < 4; ++number) {
      const std::int64_t present = number == 2 ? 5 : kShards;
      const comm::ShardRange own = ranks.shards();
      step.begin(present, std::min(own.begin, present));
      for (std::int64_t s = own.begin; s < std::min(own.end, present); ++s)
        step.add(make_batch(sequences, {s}, model.segmenter.config()), {7, s, 30});
      if (ranks.overlaps() && ranks.all_ready(true, step.pieces())) step.start_sum(ranks);
      static_cast<void>(step.losses());
      if (accelerator && waits) synchronize(*accelerator);
      const double norm = step.reduce(ranks);
      step.update(0.01, 1 / norm, number + 1);
    }
    step.fetch(state);
    ranks.finish();
    return state.parameters.whole;
  }
  static void synchronize(engine::Accelerator& accelerator) {
    runtime::OpenDevice& device = *accelerator.device();
    for (const runtime::StreamId stream : device.timeline().streams(device.device()))
      device.timeline().synchronize(stream);
  }
  void expect_on(int count, test::Devices& devices, const Tensor& expected) const {
    comm::run_ranks(count, [&](comm::Group& group) {
      devices.begin_rank(group.rank());
      const auto accelerator = engine::Accelerator::make(fmt::format("gpu {}", group.rank()),
                                                         devices.open(group.rank()));
      EXPECT_TRUE(
          same_bits(run(&group, accelerator, &devices.api(), !devices.runs_by_itself()), expected))
          << "rank " << group.rank() << " of " << count << ", pieces of " << piece;
    });
  }
};

class SumsInPieces : public ::testing::Test {
 protected:
  void SetUp() override { test::fake().reset(); }
  void TearDown() override {
    EXPECT_EQ(test::fake().misuse(), "");
    EXPECT_EQ(test::fake().alive(), 0);
  }
  Steps steps;
};

TEST_F(SumsInPieces, HaveTheBitsOfOneRank) {
  const Tensor one = steps.run(nullptr, nullptr, nullptr, false);
  for (const std::int64_t piece : {std::int64_t{1}, std::int64_t{300}, std::int64_t{1} << 20})
    for (const int ranks : {2, 3, 8}) {
      steps.piece = piece;
      const auto devices = test::like_cuda(2);
      steps.expect_on(ranks, *devices, one);
    }
}

TEST_F(SumsInPieces, HaveThemUnderAllSchedules) {
  const Tensor one = steps.run(nullptr, nullptr, nullptr, false);
  for (const auto& schedule : runtime::sim::all_schedules(3, 2)) {
    SCOPED_TRACE(std::string(schedule.name) + " " + std::to_string(schedule.number));
    const auto devices = test::simulated(schedule.make);
    steps.expect_on(3, *devices, one);
  }
}

TEST_F(SumsInPieces, OfRanksThatCutOtherwiseAreRefused) {
  const auto devices = test::like_cuda(2);
  try {
    comm::run_ranks(2, [&](comm::Group& group) {
      devices->begin_rank(group.rank());
      Steps own;
      own.piece = group.rank() == 0 ? 64 : 1 << 20;
      const auto accelerator = engine::Accelerator::make(fmt::format("gpu {}", group.rank()),
                                                         devices->open(group.rank()));
      static_cast<void>(own.run(&group, accelerator, &devices->api(), false));
    });
    FAIL() << "they trained together";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 sums the gradients in other pieces than rank 0"));
  }
}

/// The norm is enqueued behind the sum; it is not that of a sum that has no end.
TEST_F(SumsInPieces, WithoutARankThatHasLeftAreAnErrorInThatStep) {
  const auto devices = test::like_cuda(2);
  std::latch began(2);
  const auto run = [&](comm::Group& group) {
    devices->begin_rank(group.rank());
    const auto accelerator =
        engine::Accelerator::make(fmt::format("gpu {}", group.rank()), devices->open(group.rank()));
    TrainingRanks ranks(&group, 4);
    ranks.choose_exchange("nccl", accelerator.get(), &devices->api());
    StepOptions options;
    options.shards = 4;
    options.piece = steps.piece;
    const Model& model = steps.model;
    const FlatState state = model.state();
    TrainingStep step(model.segmenter, options, state, model.layout,
                      {{"duration_limit", model.limit}},
                      {.backend = "loops", .accelerator = accelerator});
    const comm::ShardRange own = ranks.shards();
    step.begin(4, own.begin);
    for (std::int64_t s = own.begin; s < own.end; ++s)
      step.add(make_batch(steps.sequences, {s}, model.segmenter.config()), {7, s, 30});
    ASSERT_TRUE(ranks.all_ready(true, step.pieces()));
    if (group.rank() == 1) {
      began.wait();
      throw DataError("this rank has no data");
    }
    step.start_sum(ranks);
    static_cast<void>(step.losses());
    began.count_down();
    EXPECT_THROW(static_cast<void>(step.reduce(ranks)), CommError) << "rank " << group.rank();
  };
  EXPECT_THROW(comm::run_ranks(3, run), DataError);
}

/// Who cannot begin a sum lets nobody begin one.
TEST_F(SumsInPieces, BeginOnAllRanksOrNone) {
  const auto devices = test::like_cuda(2);
  comm::run_ranks(3, [&](comm::Group& group) {
    devices->begin_rank(group.rank());
    const auto accelerator =
        engine::Accelerator::make(fmt::format("gpu {}", group.rank()), devices->open(group.rank()));
    TrainingRanks ranks(&group, 4);
    ranks.choose_exchange("nccl", accelerator.get(), &devices->api());
    ASSERT_TRUE(ranks.overlaps());
    EXPECT_FALSE(ranks.all_ready(group.rank() != 1, "pieces"));
    EXPECT_TRUE(ranks.all_ready(true, "pieces"));
    ranks.finish();
  });
}

}  // namespace
}  // namespace segfuse::learn
