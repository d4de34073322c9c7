// The update of all parameters: AdamW over flat vectors, as the trainer runs it. reference_ms is
// that of the same Fusion with an input for each parameter, alternating with it in one run; error
// is the largest difference of any parameter after it, which has to be 0. Prints one JSON list of
// rows; of a device nothing where there is none.
//   segfuse_bench_optimizer THREADS [cuda]

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "engine/device/accelerator.h"
#include "engine/executable.h"
#include "learn/model/segmenter.h"
#include "learn/optim/adamw.h"
#include "learn/optim/flat.h"
#include "learn/train/loop/bound_inputs.h"

namespace {

using namespace segfuse;
using learn::BoundInputs;
using optim::FlatLayout;
using optim::FlatTensors;

/// One of the two ways to update, over a state of its own.
class Update {
 public:
  Update(const learn::Segmenter& segmenter, const FlatLayout& layout, bool flat, ThreadPool& pool,
         const std::shared_ptr<engine::Accelerator>& accelerator)
      : specs_(flat ? layout.ranges() : segmenter.parameters()),
        executable_(optim::adamw_update(specs_, config()), pool, {.accelerator = accelerator}),
        inputs_(executable_.fusion()) {
    Rng rng(3);
    for (const std::string prefix : {"", "gradient.", "m.", "v.", "mean."}) {
      FlatTensors values = FlatTensors::zeros(layout);
      for (Tensor& part : values.parts)
        for (float& x : part.span<float>()) x = static_cast<float>(0.01 + 0.1 * rng.uniform());
      if (accelerator) values = {layout, accelerator->upload(values.whole)};
      if (prefix.empty()) parameters_ = values;
      for (std::size_t i = 0; i < specs_.size(); ++i)
        inputs_.set(
            prefix + specs_[i].name,
            !flat ? values.parts[i]
                  : engine::part_of(values.whole, specs_[i].name == "decayed" ? 0 : layout.decayed,
                                    specs_[i].shape));
    }
    for (const char* name : {"rate", "clip", "correction1", "correction2"})
      inputs_.set(name, Tensor::full(DType::kF32, {}, 0.01));
  }
  void run() { static_cast<void>(executable_.run(inputs_.tensors())); }
  Tensor parameters() const { return parameters_.whole.to_host(); }

 private:
  static optim::AdamWConfig config() {
    optim::AdamWConfig config;
    config.average = 0.98;
    return config;
  }
  std::vector<nn::ParameterSpec> specs_;
  engine::Executable executable_;
  BoundInputs inputs_;
  FlatTensors parameters_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

nlohmann::json measure(std::int64_t width, int threads,
                       const std::shared_ptr<engine::Accelerator>& accelerator) {
  learn::ModelConfig model;
  model.width = width;
  model.features = 40;
  model.classes = 45;
  model.max_duration = 40;
  const learn::Segmenter segmenter(model);
  const FlatLayout layout(segmenter.parameters(), learn::is_crf);
  ThreadPool pool(threads);
  Update flat(segmenter, layout, true, pool, accelerator);
  Update each(segmenter, layout, false, pool, accelerator);
  const auto wait = [&] {
    if (accelerator) accelerator->synchronize();
  };
  using Clock = std::chrono::steady_clock;
  constexpr int kRounds = 25, kRuns = 20;
  std::vector<double> times[2];
  for (int round = 0; round < kRounds; ++round)
    for (Update* update : {&flat, &each}) {
      wait();
      const auto begin = Clock::now();
      for (int i = 0; i < kRuns; ++i) update->run();
      wait();
      const std::chrono::duration<double, std::milli> taken = Clock::now() - begin;
      if (round >= 5) times[update == &each].push_back(taken.count() / kRuns);
    }
  const Tensor a = flat.parameters();
  const Tensor b = each.parameters();
  double error = 0;
  for (std::int64_t i = 0; i < a.size(); ++i) error = std::max(error, std::abs(a.at(i) - b.at(i)));
  return {{"name", fmt::format("AdamW, {} parameters, {} values", segmenter.parameters().size(),
                               segmenter.parameter_count())},
          {"device", accelerator ? accelerator->name() : "cpu"},
          {"threads", threads},
          {"ms", median(times[0])},
          {"reference_ms", median(times[1])},
          {"error", error}};
}

}  // namespace

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::atoi(arguments[1]) : 1;
  std::shared_ptr<engine::Accelerator> accelerator;
  nlohmann::json rows = nlohmann::json::array();
  if (count > 2) {
    try {
      accelerator = engine::open_accelerator(arguments[2]);
    } catch (const std::exception&) {
      fmt::print("{}\n", rows.dump());
      return 0;
    }
  }
  for (const std::int64_t width : {48, 128, 512, 1024})
    rows.push_back(measure(width, threads, accelerator));
  fmt::print("{}\n", rows.dump(1));
}
