// What a call of a compiled program costs the host on a GPU: tiny inputs in its memory, shapes that
// are known, nobody waits. reference_ms is that of launching the same kernels and nothing else.
// Medians of calls that are timed one by one, with the times that a tenth of them is below and
// above. Prints one JSON list of rows, or an empty one where there is no device.
//   segfuse_bench_calls_gpu

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "calls_programs.h"
#include "engine/device/accelerator.h"
#include "engine/device/device_kernels.h"
#include "engine/program_state.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/kernels.h"
#include "segfuse/device_function.h"

namespace {

using namespace segfuse;
using engine::Accelerator;

struct Times {
  double median = 0, low = 0, high = 0;  ///< milliseconds
};

/// Batches are waited for, so that no queue is ever full.
Times time(const std::function<void()>& call, const std::function<void()>& wait) {
  using Clock = std::chrono::steady_clock;
  constexpr int kBatches = 80, kCalls = 50;
  std::vector<double> times;
  for (int batch = 0; batch < kBatches; ++batch) {
    for (int i = 0; i < kCalls; ++i) {
      const auto begin = Clock::now();
      call();
      const std::chrono::duration<double, std::milli> taken = Clock::now() - begin;
      if (batch >= kBatches / 4) times.push_back(taken.count());  // those before warm up
    }
    wait();
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() / 10], times[times.size() * 9 / 10]};
}

double largest_error(const Tensor& found, const Tensor& expected) {
  const Tensor host = found.to_host();
  double worst = 0;
  for (std::int64_t i = 0; i < host.size(); ++i)
    worst = std::max(worst, std::abs(host.at(i) - expected.at(i)));
  return worst;
}

/// The kernels of a program over given memory, launched by themselves.
class Launches {
 public:
  Launches(const ir::Fusion& program, Accelerator& accelerator, const std::vector<Tensor>& inputs,
           const Tensor& output)
      : accelerator_(accelerator),
        stream_(accelerator.executor().timeline().handle(accelerator.streams()[0])),
        fusion_(program, accelerator.kernels()),
        status_(allocate(16)) {
    std::vector<Shape> shapes;
    for (const Tensor& input : inputs) shapes.push_back(input.shape());
    const std::vector<engine::DeviceGroup> groups = fusion_.prepare(shapes, sizes_);
    for (const engine::DeviceGroup& group : groups) {
      std::vector<std::byte*> workspaces;
      for (const compiler::Workspace& w : group.workspaces)
        workspaces.push_back(
            allocate(static_cast<std::size_t>(sizes_.of(w.elements)) * size_of(w.dtype)));
      for (const auto& kernel : group.kernels) {
        std::vector<void*> buffers;
        for (const compiler::Operand& operand : kernel->kernel.operands)
          buffers.push_back(operand.val.valid() ? address_of(operand.val, inputs, output)
                                                : workspaces[operand.workspace]);
        const auto size = [this](const ir::Extent& extent) { return sizes_.of(extent); };
        launches_.push_back(
            {kernel, kernel->launch.blocks(size), kernel->launch.shared_bytes(size),
             kernel->launch.argument(buffers, size, reinterpret_cast<int*>(status_))});
      }
    }
  }
  std::size_t size() const { return launches_.size(); }
  void run() const {
    for (const Launch& l : launches_)
      accelerator_.kernels()->launch(stream_, l.kernel->code,
                                     {{l.blocks, 1, 1},
                                      {l.kernel->launch.threads, l.kernel->launch.rows_at_once, 1},
                                      l.shared},
                                     l.argument.data(), l.argument.size() * sizeof(l.argument[0]));
  }

 private:
  struct Launch {
    std::shared_ptr<const engine::DeviceKernel> kernel;
    unsigned blocks = 1;
    std::size_t shared = 0;
    std::vector<std::uint64_t> argument;
  };
  std::byte* allocate(std::size_t bytes) {
    owned_.push_back(accelerator_.allocate(bytes, "launches"));
    accelerator_.executor().fill(accelerator_.streams()[0], owned_.back(), 0);
    return owned_.back().address();
  }
  /// Programs with one output and no value between kernels.
  std::byte* address_of(ir::ValId val, const std::vector<Tensor>& inputs, const Tensor& output) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (fusion_.fusion().inputs()[i].val == val) return accelerator_.buffer(inputs[i]).address();
    return accelerator_.buffer(output).address();
  }

  Accelerator& accelerator_;
  runtime::StreamHandle stream_;
  engine::DeviceKernels fusion_;
  std::vector<runtime::Buffer> owned_;
  std::byte* status_;
  ir::Sizes sizes_;
  std::vector<Launch> launches_;
};

class Bench {
 public:
  explicit Bench(std::shared_ptr<Accelerator> accelerator) : accelerator_(std::move(accelerator)) {}

  void measure(const std::string& what, const Program& program, const std::vector<Tensor>& host) {
    const Tensor expected = program.run_reference(host).at(0);
    std::vector<Tensor> inputs;
    for (const Tensor& input : host) inputs.push_back(accelerator_->upload(input));
    const ir::Fusion& fusion = program.state().fusion;
    const auto wait = [&] { accelerator_->synchronize(); };

    const Tensor output = accelerator_->empty(DType::kF32, expected.shape(), "output");
    const Launches launches(fusion, *accelerator_, inputs, output);
    wait();
    const Times raw = time([&] { launches.run(); }, wait);
    add(fmt::format("{} launch of its kernel, {}", launches.size(), what), raw, raw,
        largest_error(output, expected));

    const RunOptions how{.threads = 1, .device = accelerator_->name()};
    add("Program::run, " + what, time([&] { (void)program.run(inputs, how); }, wait), raw,
        largest_error(program.run(inputs, how).at(0), expected));

    ThreadPool pool(1);
    engine::Executable executable(fusion, pool, {.accelerator = accelerator_});
    add("Executable::run, " + what, time([&] { (void)executable.run(inputs); }, wait), raw,
        largest_error(executable.run(inputs).at(0), expected));

    on_the_callers_stream(what, program, inputs, expected, raw);
  }
  const nlohmann::ordered_json& rows() const { return rows_; }

 private:
  void on_the_callers_stream(const std::string& what, const Program& program,
                             const std::vector<Tensor>& inputs, const Tensor& expected,
                             const Times& raw) {
    const auto array = [&](const Tensor& tensor) {
      return ForeignArray{.address = accelerator_->buffer(tensor).address(),
                          .dtype = tensor.dtype(),
                          .shape = tensor.shape()};
    };
    std::vector<ForeignArray> arrays;
    for (const Tensor& input : inputs) arrays.push_back(array(input));
    const Tensor output = accelerator_->empty(DType::kF32, expected.shape(), "output");
    const ForeignArray result = array(output);
    DeviceFunction function(program, {.device = accelerator_->name()});
    accelerator_->synchronize();
    const Times times = time([&] { function.run(arrays, {&result, 1}, stream_.get()); },
                             [&] { device_->synchronize(stream_); });
    add("DeviceFunction::run on the caller's stream, " + what, times, raw,
        largest_error(output, expected));
  }
  void add(const std::string& name, const Times& times, const Times& raw, double error) {
    rows_.push_back({{"name", name},
                     {"device", accelerator_->device()->device().name()},
                     {"threads", 1},
                     {"ms", times.median},
                     {"us_low", 1e3 * times.low},
                     {"us_high", 1e3 * times.high},
                     {"reference_ms", raw.median},
                     {"error", error}});
  }

  // The caller's; they outlive what is called on them.
  std::shared_ptr<runtime::Device> device_ = runtime::open_cuda_device(0);
  runtime::StreamHandle stream_ = device_->create_stream();
  std::shared_ptr<Accelerator> accelerator_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

}  // namespace

int main() {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  if (runtime::cuda_device_count() > 0) {
    Bench bench(engine::open_accelerator("cuda"));
    const Tensor four = Tensor::from(std::vector{0.5F, -1.25F, 2.0F, 0.75F}, {4});
    const Tensor eight =
        Tensor::from(std::vector{0.5F, -1.25F, 2.0F, 0.75F, 3.0F, 1.0F, -2.0F, 0.125F}, {2, 4});
    bench.measure("x * y + 1 on 4 elements", bench::pointwise(), {four, four});
    bench.measure("layer norm on (2, 4)", bench::norm(), {eight, four, four});
    bench.measure("layer norm, GELU and sum on (2, 4)", bench::layer(), {eight, four, four});
    rows = bench.rows();
  }
  fmt::print("{}\n", rows.dump(1));
  return 0;
}
