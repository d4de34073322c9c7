// Forward and backward of a residual convolution block on the executor: where the time goes.
// Prints one JSON list of rows; reference_ms is the time of the matrix products alone.
//   segfuse_bench_step [threads]
//   segfuse_bench_step cuda       on a GPU, beside the CPU's loops: several sizes, with the time
//   that
//                                 the host needs to enqueue a run, and the memory mapped after
//                                 warm-up

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "compiler/autodiff.h"
#include "engine/device/accelerator.h"
#include "engine/executable.h"
#include "ir/builder.h"
#include "ir/interpret/interpreter.h"

namespace {

using namespace segfuse;
using ir::Builder;
using ir::Extent;
using ir::ValId;

struct Block {
  ir::Fusion fusion;
  std::vector<Tensor> inputs;
  double matmul_flops = 0;
};

Block make_block(std::int64_t batch, std::int64_t time, std::int64_t width) {
  constexpr std::int64_t kKernel = 3;
  constexpr std::int64_t kDilation = 2;
  Block block;
  Builder b(block.fusion);
  Rng rng(1);
  std::vector<ValId> wanted;
  auto input = [&](const std::string& name, const Shape& shape, double scale) {
    Tensor tensor(DType::kF32, shape);
    for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, scale * rng.normal());
    block.inputs.push_back(tensor);
    wanted.push_back(
        block.fusion.add_input(name, DType::kF32, ir::Extents(shape.begin(), shape.end())));
    return wanted.back();
  };
  const ValId x = input("x", {batch, time, width}, 1);
  const ValId scale = input("scale", {width}, 1);
  const ValId shift = input("shift", {width}, 1);
  const ValId w1 = input("w1", {kKernel * width, width}, 0.05);
  const ValId b1 = input("b1", {width}, 1);
  const ValId w2 = input("w2", {width, width}, 0.05);
  const ValId b2 = input("b2", {width}, 1);
  const ValId seed = block.fusion.add_input("seed", DType::kI64, {2});
  block.inputs.push_back(Tensor::zeros(DType::kI64, {2}));

  const ValId normed = b.layer_norm(x, scale, shift);
  const ValId windows =
      b.unfold(b.pad_axis(normed, 1, kDilation, kDilation), 1, kKernel, 1, kDilation);
  const ValId columns = b.reshape(windows, {batch, time, kKernel * width});
  const ValId inner = b.gelu(b.add(b.matmul(columns, w1), b1));
  const ValId out = b.add(b.add(b.matmul(b.dropout(inner, seed, 0.1), w2), b2), x);
  const ValId loss = b.sum(b.square(out), {0, 1, 2});
  const auto gradients = compiler::gradients(block.fusion, loss, wanted);
  block.fusion.add_output(loss);
  for (const ValId gradient : gradients) block.fusion.add_output(gradient);
  block.matmul_flops = 3.0 * 2 * static_cast<double>(batch * time * width * width * (kKernel + 1));
  return block;
}

/// Largest difference from the interpreter in double, over the largest value of each output, on a
/// block of the same form that the interpreter can do.
double error_on_small_block(ThreadPool& pool, const engine::ExecutableOptions& how = {}) {
  const Block block = make_block(2, 9, 16);
  const std::vector<Tensor> fast = engine::Executable(block.fusion, pool, how).run(block.inputs);
  const std::vector<Tensor> exact = ir::interpret(block.fusion, block.inputs);
  double worst = 0;
  for (std::size_t i = 0; i < fast.size(); ++i) {
    double scale = 1e-30;
    double difference = 0;
    for (std::int64_t j = 0; j < fast[i].size(); ++j) {
      scale = std::max(scale, std::abs(exact[i].at(j)));
      difference = std::max(difference, std::abs(exact[i].at(j) - fast[i].at(j)));
    }
    worst = std::max(worst, difference / scale);
  }
  return worst;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Runs that follow one another without waiting, as those of a trainer do but for the loss.
nlohmann::ordered_json on_device(ThreadPool& pool,
                                 const std::shared_ptr<engine::Accelerator>& accelerator,
                                 const Shape& sizes, double error) {
  const Block block = make_block(sizes[0], sizes[1], sizes[2]);
  engine::Executable executable(block.fusion, pool, {.accelerator = accelerator});
  std::vector<Tensor> inputs;
  for (const Tensor& input : block.inputs) inputs.push_back(accelerator->upload(input));
  for (int i = 0; i < 5; ++i) static_cast<void>(executable.run(inputs));
  accelerator->synchronize();
  const std::uint64_t grown = accelerator->heap().statistics().grown;
  constexpr int kRuns = 20;
  std::vector<double> each;
  std::vector<double> enqueued;
  for (int round = 0; round < 7; ++round) {
    const double begin = now();
    for (int i = 0; i < kRuns; ++i) static_cast<void>(executable.run(inputs));
    const double submitted = now();
    accelerator->synchronize();
    each.push_back((now() - begin) / kRuns);
    enqueued.push_back((submitted - begin) / kRuns);
  }
  // Where the time goes, from a program whose steps are waited for.
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  {
    engine::Executable slow(block.fusion, pool, {.profile = true, .accelerator = accelerator});
    static_cast<void>(slow.run(inputs));
    const std::vector<engine::StepTime> first = slow.step_times();
    for (int i = 0; i < 5; ++i) static_cast<void>(slow.run(inputs));
    const std::vector<engine::StepTime> all = slow.step_times();
    for (std::size_t i = 0; i < all.size(); ++i)
      steps.push_back({all[i].what, 1e6 * (all[i].seconds - first[i].seconds) / 5});
  }
  engine::Executable host(block.fusion, pool);
  std::vector<double> on_host;
  for (int i = 0; i < 4; ++i) {
    const double begin = now();
    static_cast<void>(host.run(block.inputs));
    on_host.push_back(now() - begin);
  }
  return {{"name", fmt::format("step_B{}_T{}_C{}", sizes[0], sizes[1], sizes[2])},
          {"device", accelerator->device()->device().name()},
          {"ms", 1e3 * median(each)},
          {"spread", (*std::max_element(each.begin(), each.end()) -
                      *std::min_element(each.begin(), each.end())) /
                         median(each)},
          {"error", error},
          {"enqueue_ms", 1e3 * median(enqueued)},
          {"tflops", block.matmul_flops / median(each) * 1e-12},
          {"mapped_after_warm_up", accelerator->heap().statistics().grown - grown},
          {"steps_us", steps},
          {"reference", fmt::format("CPU, {} threads", pool.size())},
          {"reference_ms", 1e3 * median(on_host)}};
}

int run_on_device() {
  std::string reason;
  if (runtime::cuda_device_count(&reason) == 0) {
    fmt::print(stderr, "{}\n", reason);
    fmt::print("[]\n");
    return 0;
  }
  ThreadPool pool(0);
  const auto accelerator = engine::open_accelerator("cuda");
  const double error = error_on_small_block(pool, {.accelerator = accelerator});
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Shape& sizes : {Shape{8, 500, 64}, Shape{16, 400, 256}, Shape{64, 800, 512}})
    rows.push_back(on_device(pool, accelerator, sizes, error));
  fmt::print("{}\n", rows.dump(1));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "cuda") return run_on_device();
  const std::int64_t sizes[] = {16, 400, 256};
  const Block block = make_block(sizes[0], sizes[1], sizes[2]);
  ThreadPool pool(argc > 1 ? std::atoi(argv[1]) : 0);
  const double error = error_on_small_block(pool);
  engine::Executable executable(block.fusion, pool, {.profile = true});
  constexpr int kRuns = 12;
  std::vector<double> seconds;
  for (int i = 0; i < kRuns; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    (void)executable.run(block.inputs);
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const auto steps = executable.step_times();
  double total = 0;
  double matmul = 0;
  for (const engine::StepTime& step : steps) {
    total += step.seconds;
    if (step.what.starts_with("matmul")) matmul += step.seconds;
  }
  // The matrix products alone, at the rate measured inside the step, are the floor.
  const double floor_ms = 1e3 * matmul / kRuns;
  nlohmann::ordered_json row = {
      {"name", fmt::format("step_B{}_T{}_C{}", sizes[0], sizes[1], sizes[2])},
      {"device", "cpu"},
      {"threads", pool.size()},
      {"ms", 1e3 * seconds[kRuns / 2]},
      {"spread", (seconds.back() - seconds.front()) / seconds[kRuns / 2]},
      {"error", error},
      {"reference_ms", floor_ms},
      {"matmul_gflops", block.matmul_flops * kRuns / matmul * 1e-9},
      {"outside_matmul", 1 - matmul / total}};
  fmt::print("{}\n", nlohmann::ordered_json::array({row}).dump(1));
  return 0;
}
