// Sums over ranks beside the backward pass of compiled programs, on simulated devices.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <mutex>

#include "base/context/pool.h"
#include "comm/threads/thread_group.h"
#include "learn/train/loop/company.h"
#include "learn/train/loop/ranks.h"
#include "learn/train/loop/training_step.h"
#include "support/gpu/program_gpu.h"
#include "support/nccl/host_kernels.h"
#include "support/nccl/nccl_ranks.h"
#include "support/tensors.h"
#include "unit/learn_gpu/trial.h"

namespace segfuse::learn {
namespace {

namespace sim = runtime::sim;
using Names = std::vector<std::string>;

/// The kernels of programs, and the one that adds nodes.
class AllKernels final : public runtime::KernelLoader {
 public:
  int multiprocessors() const override { return programs_->multiprocessors(); }
  runtime::GpuKernel kernel(const runtime::GpuProgram& program, const std::string& entry) override {
    return (program.name == "comm_add_nodes" ? nodes_ : programs_)->kernel(program, entry);
  }
  void launch(runtime::StreamHandle stream, runtime::GpuKernel kernel,
              const runtime::GpuLaunch& launch, const void* argument, std::size_t size) override {
    if (kernel.handle == nullptr) return nodes_->launch(stream, kernel, launch, argument, size);
    static std::mutex one_at_a_time;  // there is one emulator for all ranks
    const std::lock_guard lock(one_at_a_time);
    programs_->launch(stream, kernel, launch, argument, size);
  }

 private:
  std::shared_ptr<runtime::KernelLoader> programs_ = segfuse::testing::make_program_kernels();
  std::shared_ptr<runtime::KernelLoader> nodes_ = test::make_host_kernels();
};

/// Keeps the names of what begins.
class Listed final : public sim::Schedule {
 public:
  Listed(std::shared_ptr<sim::Schedule> inner, Names* names)
      : inner_(std::move(inner)), names_(names) {}
  std::optional<std::size_t> choose(sim::Moment moment, std::span<const sim::Step> steps) override {
    const auto chosen = inner_->choose(moment, steps);
    if (chosen && steps[*chosen].begin) names_->emplace_back(steps[*chosen].name);
    return chosen;
  }
  void host_continues() override { inner_->host_continues(); }

 private:
  std::shared_ptr<sim::Schedule> inner_;
  Names* names_;
};

ModelConfig deep_model() {
  // Without a CRF, which enqueues work from within work: not for a device that does it at once.
  ModelConfig config = small_model(HeadKind::kSoftmax);
  config.dilations = {1, 2};
  return config;
}

struct Case {
  std::int64_t shards = 2;
  std::int64_t piece = 64;
};

/// Two steps: the parameters, and what began in the last step before its gradient was summed.
Tensor two_steps(comm::Group* group, const std::shared_ptr<sim::Schedule>& schedule,
                 const Case& given, Names& names) {
  const std::int64_t shards = given.shards;
  Names all;
  const Trial trial(deep_model());
  const optim::FlatLayout layout(trial.segmenter.parameters(), is_crf);
  const auto accelerator = engine::Accelerator::make(
      fmt::format("gpu {}", rank_of(group)), std::make_shared<AllKernels>(),
      std::make_unique<sim::SimDevice>(std::make_shared<Listed>(schedule, &all)),
      {.check_streams = true});
  TrainingRanks ranks(group, shards);
  ranks.choose_exchange("", accelerator.get(), &test::fake_api());
  const FlatState state{optim::FlatTensors::copy(layout, trial.parameters),
                        optim::FlatTensors::zeros(layout),
                        optim::FlatTensors::zeros(layout),
                        {}};
  StepOptions options;
  options.shards = shards;
  options.piece = given.piece;
  TrainingStep step(trial.segmenter, options, state, layout, {},
                    {.accelerator = accelerator, .context = trial.context});
  const auto synchronize = [&] {
    runtime::OpenDevice& device = *accelerator->device();
    for (const runtime::StreamId stream : device.timeline().streams(device.device()))
      device.timeline().synchronize(stream);
  };
  for (std::int64_t number = 0; number < 2; ++number) {
    synchronize();
    all.clear();
    step.begin(shards, ranks.shards().begin);
    for (std::int64_t s = ranks.shards().begin; s < ranks.shards().end; ++s)
      step.add(make_batch(trial.training, {s, s + 4}, trial.segmenter.config(), 16), {7, s, 30});
    if (ranks.overlaps() && ranks.all_ready(true, step.pieces())) step.start_sum(ranks);
    synchronize();
    names = all;
    static_cast<void>(step.losses());
    const double norm = step.reduce(ranks);
    step.update(0.01, 1 / norm, number + 1);
  }
  step.fetch(state);
  ranks.finish();
  return state.parameters.whole;
}

Tensor on_ranks(int count, const Case& given,
                const std::function<std::shared_ptr<sim::Schedule>()>& schedule, Names& names) {
  Tensor first;
  test::fake().reset();
  const auto devices = test::simulated(schedule);  // tells the fake how its work is run
  comm::run_ranks(count, [&](comm::Group& group) {
    devices->begin_rank(group.rank());
    Names own;
    const Tensor found = two_steps(&group, schedule(), given, own);
    if (group.rank() > 0) return;
    first = found;
    names = own;
  });
  EXPECT_EQ(test::fake().misuse(), "");
  return first;
}

TEST(SumsBesideTheBackwardPass, HaveTheBitsOfOneRankUnderAllSchedules) {
  for (const std::int64_t shards : {2, 4}) {
    Names names;
    const Tensor one = two_steps(nullptr, sim::eager(), {shards}, names);
    for (const sim::NamedSchedule& schedule : sim::all_schedules(3, 1)) {
      SCOPED_TRACE(::testing::Message() << shards << schedule.name << schedule.number);
      EXPECT_TRUE(segfuse::testing::same_bits(on_ranks(2, {shards}, schedule.make, names), one));
    }
  }
}

TEST(SumsBesideTheBackwardPass, BeginBeforeTheLastGradientIsWritten) {
  const auto is_sum = [](const std::string& name) { return name.starts_with("the sum of shards"); };
  for (const std::int64_t piece : {64, 1 << 20}) {
    Names names;
    static_cast<void>(on_ranks(2, {2, piece}, sim::reverse, names));
    const auto first = std::ranges::find_if(names, is_sum);
    ASSERT_NE(first, names.end());
    const auto later = std::count_if(first, names.end(), std::not_fn(is_sum));
    if (piece == 64)
      EXPECT_GT(later, 5) << "kernels of the backward pass";
    else
      EXPECT_EQ(later, 0) << "all is one piece";
    EXPECT_TRUE(is_sum(names.back()));
  }
}

/// Else no piece could be summed before the end.
TEST(SumsBesideTheBackwardPass, HaveGradientsThatAreCompleteLastLayersFirst) {
  const Segmenter segmenter(deep_model());
  const auto made = segfuse::testing::make_sim_accelerator();
  ir::Fusion program = segmenter.training();
  for (const nn::ParameterSpec& spec : segmenter.parameters()) {
    const ir::Extents shape(spec.shape.begin(), spec.shape.end());
    const auto output =
        std::ranges::find(program.outputs(), "gradient." + spec.name, &ir::Output::name);
    program.add_alias(output->val, program.add_input("gradient." + spec.name, DType::kF32, shape));
  }
  const Context context;
  engine::Executable executable(program, pool_of(context), {.accelerator = made.accelerator});
  const std::vector<std::size_t> order = executable.order_of_writes();
  const auto written = [&](const char* name) {
    const std::string input = std::string("gradient.") + name;
    const auto& inputs = executable.fusion().inputs();
    const auto at = std::ranges::find(inputs, input, &ir::Input::name) - inputs.begin();
    return order.at(static_cast<std::size_t>(at));
  };
  const char* const layers[] = {"emission.weight",    "block1.conv.weight", "block1.mix.weight",
                                "block0.conv.weight", "block0.mix.weight",  "stem.weight"};
  for (std::size_t i = 1; i < std::size(layers); ++i)
    EXPECT_LT(written(layers[i - 1]), written(layers[i])) << layers[i];
}

}  // namespace
}  // namespace segfuse::learn
