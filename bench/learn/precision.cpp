// Training steps in each precision of products (training.precision), on the first GPU.
//   segfuse_bench_precision [NAME]             reference_ms is the step in float32
//   segfuse_bench_precision print NAME PRECISION    the program of a step, in text form
// Prints one JSON list of rows, empty where there is no GPU. Each row has the longest kinds of
// steps of the program, from a run in which each is waited for.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/context/pool.h"
#include "base/rng.h"
#include "engine/device/accelerator.h"
#include "ir/text.h"
#include "learn/train/commands/config.h"
#include "learn/train/loop/bound_inputs.h"
#include "learn/train/loop/ranks.h"
#include "learn/train/loop/training_step.h"

namespace {

using namespace segfuse;
using Clock = std::chrono::steady_clock;
using learn::Precision;

constexpr std::int64_t kFrames = 1000;
constexpr std::int64_t kRows = 32;

learn::ModelConfig model_named(const std::string& name) {
  learn::ModelConfig model;
  model.width = 512;
  model.features = 80;
  model.classes = 45;
  model.max_duration = 40;
  if (name == "attention") {
    model.dilations = {};
    model.attention_blocks = 4;
    model.attention_heads = 8;
  }
  return model;
}

learn::Batch batch_for(const learn::ModelConfig& model) {
  Rng rng(1);
  std::vector<learn::Sequence> all;
  std::vector<std::int64_t> order;
  for (std::int64_t row = 0; row < kRows; ++row) {
    learn::Sequence sequence;
    sequence.id = std::to_string(row);
    sequence.features = Tensor(DType::kF32, {kFrames, model.features});
    for (float& value : sequence.features.span<float>()) value = static_cast<float>(rng.normal());
    for (std::int64_t at = 0; at < kFrames; at += 10)
      sequence.segments.push_back(
          {at, 10,
           static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(model.classes)))});
    all.push_back(std::move(sequence));
    order.push_back(row);
  }
  return learn::make_batch(all, order, model);
}

/// A training that has made no step yet.
class Trial {
 public:
  Trial(const learn::Segmenter& segmenter, const learn::Batch& batch, Precision precision,
        const std::shared_ptr<engine::Accelerator>& accelerator)
      : accelerator_(accelerator),
        layout_(segmenter.parameters(), learn::is_crf),
        alone_(nullptr, 1),
        batch_(batch),
        state_{optim::FlatTensors::copy(layout_, segmenter.initial(1)),
               optim::FlatTensors::zeros(layout_),
               optim::FlatTensors::zeros(layout_),
               {}} {
    learn::StepOptions options;
    options.precision = precision;
    const Tensor limit =
        Tensor::zeros(DType::kF32, {segmenter.max_duration(), segmenter.config().classes});
    step_ = std::make_unique<learn::TrainingStep>(
        segmenter, options, state_, layout_, learn::NamedTensors{{"duration_limit", limit}},
        engine::ExecutableOptions{.accelerator = accelerator});
    step_->stage(batch_);
  }
  /// The loss of each of some steps.
  std::vector<float> run(int steps) {
    std::vector<float> all;
    for (int i = 0; i < steps; ++i) {
      step_->begin(1);
      step_->add(batch_, {1, 0, batch_.segments});
      all.push_back(step_->losses()[0]);
      const double norm = step_->reduce(alone_);
      step_->update(1e-4, std::min(1.0, 1 / norm), ++steps_);
    }
    return all;
  }
  double ms_a_step() {
    std::vector<double> each;
    constexpr int kSteps = 4;
    for (int round = 0; round < 5; ++round) {
      accelerator_->device()->device().drain();
      const Clock::time_point begin = Clock::now();
      run(kSteps);
      accelerator_->device()->device().drain();
      each.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count() /
                     kSteps);
    }
    std::sort(each.begin(), each.end());
    return each[each.size() / 2];
  }
  Tensor parameters() {
    step_->fetch(state_);
    return state_.parameters.whole;
  }

 private:
  std::shared_ptr<engine::Accelerator> accelerator_;
  optim::FlatLayout layout_;
  learn::TrainingRanks alone_;
  learn::Batch batch_;
  learn::FlatState state_;
  std::unique_ptr<learn::TrainingStep> step_;
  std::int64_t steps_ = 0;
};

/// Milliseconds by what the steps of forward and backward pass are called, the longest first.
nlohmann::ordered_json profile_of(const learn::Segmenter& segmenter, const learn::Batch& batch,
                                  Precision precision,
                                  const std::shared_ptr<engine::Accelerator>& accelerator) {
  engine::Executable program(
      segmenter.training(precision), pool_of({}),
      {.tf32 = precision == Precision::kTF32, .profile = true, .accelerator = accelerator});
  learn::BoundInputs inputs(program.fusion());
  const std::vector<Tensor> initial = segmenter.initial(1);
  for (std::size_t i = 0; i < initial.size(); ++i)
    inputs.set(segmenter.parameters()[i].name, accelerator->upload(initial[i]));
  inputs.set("duration_limit",
             accelerator->upload(Tensor::zeros(
                 DType::kF32, {segmenter.max_duration(), segmenter.config().classes})));
  bind_batch(inputs, batch, {1, 0, batch.segments});
  constexpr int kRuns = 3;
  (void)program.run(inputs.tensors());
  const std::vector<engine::StepTime> first = program.step_times();
  for (int i = 0; i < kRuns; ++i) (void)program.run(inputs.tensors());
  const std::vector<engine::StepTime> last = program.step_times();
  std::map<std::string, std::pair<double, int>> all;
  double whole = 0;
  for (std::size_t i = 0; i < last.size(); ++i) {
    const double ms = 1e3 * (last[i].seconds - first[i].seconds) / kRuns;
    all[last[i].what].first += ms;
    ++all[last[i].what].second;
    whole += ms;
  }
  std::vector<std::pair<std::string, std::pair<double, int>>> sorted(all.begin(), all.end());
  std::ranges::sort(sorted,
                    [](const auto& a, const auto& b) { return a.second.first > b.second.first; });
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  rows.push_back({"all", whole, last.size()});
  for (std::size_t i = 0; i < std::min<std::size_t>(24, sorted.size()); ++i)
    rows.push_back({sorted[i].first, sorted[i].second.first, sorted[i].second.second});
  return rows;
}

nlohmann::ordered_json rows_on(const std::shared_ptr<engine::Accelerator>& accelerator,
                               const std::string& only) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const char* const name : {"convolutions", "attention"}) {
    if (!only.empty() && only != name) continue;
    const learn::Segmenter segmenter(model_named(name));
    const learn::Batch batch = batch_for(segmenter.config());
    double reference = 0;
    float exact = 0;
    for (const Precision precision :
         {Precision::kFloat32, Precision::kTF32, Precision::kBFloat16}) {
      constexpr int kSteps = 6;
      Tensor before;
      std::vector<float> losses;
      bool same = true;
      for (int attempt = 0; attempt < 2; ++attempt) {
        Trial trial(segmenter, batch, precision, accelerator);
        losses = trial.run(kSteps);
        const Tensor now = trial.parameters();
        if (attempt > 0) same = std::ranges::equal(before.span<float>(), now.span<float>());
        before = now.clone();
      }
      accelerator->heap().reset_peaks();
      Trial trial(segmenter, batch, precision, accelerator);
      trial.run(3);
      const double ms = trial.ms_a_step();
      const double peak =
          static_cast<double>(accelerator->heap().statistics().peak_taken_bytes) / 1e9;
      if (precision == Precision::kFloat32) reference = ms, exact = losses.back();
      rows.push_back({{"name", fmt::format("{}, {}", name, learn::name_of(precision))},
                      {"device", accelerator->device()->device().name()},
                      {"threads", 1},
                      {"ms", ms},
                      {"peak_gb", peak},
                      {"error", std::abs(losses.back() / exact - 1)},
                      {"reference_ms", reference},
                      {"losses", losses},
                      {"same_bits", same},
                      {"steps_ms", profile_of(segmenter, batch, precision, accelerator)}});
    }
  }
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 3 && std::string(argv[1]) == "print") {
    for (const Precision precision : {Precision::kFloat32, Precision::kTF32, Precision::kBFloat16})
      if (learn::name_of(precision) == argv[3])
        fmt::print("{}", ir::print(learn::Segmenter(model_named(argv[2])).training(precision)));
    return 0;
  }
  std::string reason;
  if (runtime::cuda_device_count(&reason) == 0) {
    fmt::print(stderr, "{}\n", reason);
    fmt::print("[]\n");
    return 0;
  }
  fmt::print("{}\n", rows_on(engine::open_accelerator("cuda"), argc > 1 ? argv[1] : "").dump(1));
  return 0;
}
