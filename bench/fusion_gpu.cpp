// Fused programs through printed CUDA kernels, under the schedules that choose_cuda() picks: bytes
// of inputs and outputs over time against this device's own copy, measured in the same run. Inputs
// are random, outputs poisoned before and checked after. Prints one JSON list of rows, or an empty
// one where there is no device.
//   segfuse_bench_fusion_gpu [name of one program [text]]
// "text" writes schedules and CUDA text to stderr.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/fnv.h"
#include "base/rng.h"
#include "compiler/codegen/cuda/print_cuda.h"
#include "compiler/interpret/interpreter.h"
#include "ir/bind.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/gpu.h"
#include "unit/codegen_gpu/models.h"

namespace {

using namespace segfuse;
using compiler::Model;
using ir::ValId;
using Sizes = std::map<std::string, std::int64_t>;

constexpr std::int64_t kPattern = 1048573;  // numbers that repeat through an input

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Seconds of one call when calls follow each other; median of seven series.
double time(int calls, const std::function<void()>& call, const std::function<void()>& wait) {
  std::vector<double> seconds;
  for (int series = 0; series < 8; ++series) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    wait();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (series > 0) seconds.push_back(taken.count() / calls);  // the first one warms up
  }
  return median(seconds);
}

double copy_bandwidth(runtime::Gpu& gpu) {
  const auto device = runtime::open_cuda_device(0);
  const runtime::StreamHandle stream = device->create_stream();
  const std::size_t bytes = std::size_t{1} << 29;
  void* const from = gpu.allocate(bytes, nullptr);
  void* const to = gpu.allocate(bytes, nullptr);
  gpu.fill(from, 1, bytes, nullptr);
  gpu.synchronize(nullptr);
  const double seconds = time(
      20, [&] { device->copy(stream, to, from, bytes); }, [&] { device->synchronize(stream); });
  gpu.release(from, nullptr);
  gpu.release(to, nullptr);
  device->destroy_stream(stream);
  return 2.0 * static_cast<double>(bytes) / seconds;
}

struct Launch {
  runtime::GpuKernel kernel;
  compiler::cuda::CudaLaunch how;
  std::vector<std::uint64_t> argument;
  unsigned blocks = 1;
  std::size_t shared = 0;
};

/// A Fusion with its memory on the device.
class Program {
 public:
  Program(runtime::Gpu& gpu, const ir::Fusion& fusion, const Sizes& symbols, bool text)
      : gpu_(gpu) {
    ir::Fusion copy = fusion;
    compiler::run_passes(copy, {.verify = true});
    compiler::SegmentOptions options;
    options.hints.symbols = symbols;
    const compiler::SegmentedFusion cut = compiler::segment(std::move(copy), options);
    fusion_ = cut.fusion();
    std::vector<compiler::LoweredGroup> lowered;
    for (const compiler::SegmentedGroup& group : cut.groups()) {
      const compiler::GroupPlan& plan = cut.plan(group.id);
      if (plan.kind == compiler::PlanKind::kView) continue;
      const compiler::GroupLowering lowering(fusion_, group, plan, cut.in_place, cut.hints(),
                                             "k" + std::to_string(group.id.index));
      lowered.push_back(lowering.lower(testing::chosen_for_cuda(lowering.space())));
    }
    std::vector<Shape> shapes;
    for (const ir::Input& input : fusion_.inputs()) {
      Shape shape;
      for (const ir::Extent& extent : fusion_.val(input.val).shape)
        shape.push_back(fusion_.canonical(extent).evaluate(
            [&](ir::SymbolId s) { return symbols.at(fusion_.to_string(ir::Extent(s))); }));
      shapes.push_back(shape);
    }
    sizes_ = ir::bind(fusion_, shapes);
    for (const ir::Input& input : fusion_.inputs()) fill(input.val);
    status_ = static_cast<int*>(gpu_.allocate(16, nullptr));
    gpu_.fill(status_, 0, 16, nullptr);
    for (const compiler::LoweredGroup& group : lowered) add(group, text);
    for (const ir::Output& output : fusion_.outputs()) memory_of(output.val);
  }
  ~Program() {
    for (void* memory : owned_) gpu_.release(memory, nullptr);
    gpu_.release(status_, nullptr);
  }

  void run() {
    for (const Launch& l : launches_)
      gpu_.launch(l.kernel, {l.blocks, 1, 1}, {l.how.threads, l.how.rows_at_once, 1}, l.shared,
                  l.argument.data(), l.argument.size() * sizeof(l.argument[0]), nullptr);
  }
  std::size_t kernels() const { return launches_.size(); }
  double bytes() const {
    double sum = 0;
    for (const ir::Input& input : fusion_.inputs()) sum += bytes_of(input.val);
    for (const ir::Output& output : fusion_.outputs()) sum += bytes_of(output.val);
    return sum;
  }
  double input(std::size_t number, std::int64_t at) const {
    return patterns_[number].at(at % kPattern);
  }
  /// Elements [begin, begin + count) of an output.
  Tensor output(std::size_t number, std::int64_t begin, std::int64_t count) const {
    const ValId val = fusion_.outputs()[number].val;
    Tensor result(fusion_.val(val).dtype, {count});
    const auto* from = static_cast<const std::byte*>(memory_.at(val)) +
                       static_cast<std::size_t>(begin) * size_of(result.dtype());
    gpu_.copy_to_host(result.data(), from, result.bytes(), nullptr);
    return result;
  }

 private:
  double bytes_of(ValId val) const {
    return static_cast<double>(num_elements(sizes_.of(fusion_.val(val).shape))) *
           static_cast<double>(size_of(fusion_.val(val).dtype));
  }
  void* poisoned(std::size_t bytes) {
    owned_.push_back(gpu_.allocate(std::max<std::size_t>(bytes, 16), nullptr));
    gpu_.fill(owned_.back(), 0xff, std::max<std::size_t>(bytes, 16), nullptr);
    return owned_.back();
  }
  void* memory_of(ValId val) {
    const auto found = memory_.find(val);
    if (found != memory_.end()) return found->second;
    return memory_[val] = poisoned(static_cast<std::size_t>(bytes_of(val)));
  }
  void fill(ValId val) {
    const auto number = static_cast<std::uint64_t>(patterns_.size());
    const auto seed = std::chrono::steady_clock::now().time_since_epoch().count();
    Rng rng(static_cast<std::uint64_t>(seed), number);
    Tensor pattern(fusion_.val(val).dtype, {kPattern});
    for (std::int64_t i = 0; i < kPattern; ++i) pattern.set(i, 4 * rng.uniform() - 2);
    auto* const memory = static_cast<std::byte*>(memory_of(val));
    const auto bytes = static_cast<std::size_t>(bytes_of(val));
    for (std::size_t at = 0; at < bytes; at += pattern.bytes())
      gpu_.copy_to_device(memory + at, pattern.data(), std::min(pattern.bytes(), bytes - at),
                          nullptr);
    patterns_.push_back(pattern);
  }
  void add(const compiler::LoweredGroup& group, bool text) {
    const auto size = [this](const ir::Extent& extent) { return sizes_.of(extent); };
    std::vector<void*> workspaces;
    for (const compiler::Workspace& w : group.workspaces)
      workspaces.push_back(
          poisoned(static_cast<std::size_t>(sizes_.of(w.elements)) * size_of(w.dtype)));
    for (compiler::GroupKernel kernel : group.kernels) {
      compiler::cuda::fit_to_sizes(kernel.kernel, size);
      const std::string source = compiler::cuda::print_cuda(kernel.kernel);
      if (text) fmt::print(stderr, "// {}\n{}\n", to_string(kernel.kernel.schedule), source);
      Launch l;
      l.how = compiler::cuda::cuda_launch(kernel.kernel);
      l.kernel = gpu_.kernel({fmt::format("fusion_{:016x}", fnv1a(source)), source, {}},
                             kernel.kernel.name);
      std::vector<void*> buffers;
      for (const compiler::Operand& operand : kernel.operands)
        buffers.push_back(operand.val.valid() ? memory_of(operand.val)
                                              : workspaces[operand.workspace]);
      l.argument = l.how.argument(buffers, size, status_);
      l.blocks = l.how.blocks(size);
      l.shared = l.how.shared_bytes(size);
      launches_.push_back(std::move(l));
    }
  }

  runtime::Gpu& gpu_;
  ir::Fusion fusion_;
  ir::Sizes sizes_;
  std::map<ValId, void*> memory_;
  std::vector<void*> owned_;
  std::vector<Tensor> patterns_;
  std::vector<Launch> launches_;
  int* status_ = nullptr;
};

using Check = std::function<double(const Program&, const ir::Fusion&, const Sizes&)>;

double worse(double worst, double found, double expected) {
  const double error = std::abs(found - expected) / std::max(1.0, std::abs(expected));
  return std::isfinite(error) ? std::max(worst, error) : INFINITY;
}

/// The first rows of the first output, which depend on the first rows of inputs over N alone.
double check_rows(const Program& program, const ir::Fusion& fusion, const Sizes& sizes) {
  constexpr std::int64_t kRows = 3;
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < fusion.inputs().size(); ++i) {
    Shape shape;
    for (const ir::Extent& extent : fusion.val(fusion.inputs()[i].val).shape)
      shape.push_back(fusion.canonical(extent).evaluate([&](ir::SymbolId s) {
        const std::string name = fusion.to_string(ir::Extent(s));
        return name == "N" ? kRows : sizes.at(name);
      }));
    Tensor tensor(DType::kF64, shape);
    for (std::int64_t at = 0; at < tensor.size(); ++at) tensor.set(at, program.input(i, at));
    inputs.push_back(tensor.to(fusion.val(fusion.inputs()[i].val).dtype));
  }
  const std::vector<Tensor> expected = compiler::interpret(fusion, inputs);
  double worst = 0;
  for (std::size_t o = 0; o < expected.size(); ++o) {
    if (expected[o].shape().empty() || expected[o].shape()[0] != kRows) continue;
    const Tensor found = program.output(o, 0, expected[o].size());
    for (std::int64_t i = 0; i < found.size(); ++i)
      worst = worse(worst, found.at(i), expected[o].at(i));
  }
  return worst;
}

double check_column_sum(const Program& program, const ir::Fusion&, const Sizes& sizes) {
  const std::int64_t columns = sizes.at("C");
  const Tensor found = program.output(0, 0, columns);
  double worst = 0;
  for (std::int64_t c = 0; c < columns; c += 211) {
    double sum = 0;
    for (std::int64_t r = 0; r < sizes.at("N"); ++r) sum += program.input(0, r * columns + c);
    worst = worse(worst, found.at(c), sum);
  }
  return worst;
}

double check_transposed(const Program& program, const ir::Fusion&, const Sizes& sizes) {
  const std::int64_t rows = sizes.at("N");
  const std::int64_t columns = sizes.at("C");
  double worst = 0;
  for (std::int64_t c = 0; c < columns; c += 211) {
    const Tensor found = program.output(0, c * rows, rows);
    for (std::int64_t r = 0; r < rows; ++r)
      worst = worse(worst, found.at(r), program.input(0, r * columns + c) * 0.5);
  }
  return worst;
}

struct Work {
  std::string name;
  std::function<void(Model&)> build;
  Check check = check_rows;
  Sizes sizes{{"N", 32768}, {"C", 4096}};
};

std::vector<Work> works(DType dtype) {
  const std::string type = "_" + std::string(name_of(dtype));
  return {
      {"pointwise" + type, [=](Model& m) { testing::pointwise_flat(m, dtype); }},
      {"softmax" + type, [=](Model& m) { testing::softmax_rows(m, dtype); }},
      {"layer_norm" + type, [=](Model& m) { testing::layer_norm_rows(m, dtype); }},
      {"rms_norm" + type, [=](Model& m) { testing::rms_norm_rows(m, dtype); }},
      {"add_norm" + type, [=](Model& m) { testing::layer_norm_rows(m, dtype, true); }},
      {"layer_norm_backward" + type, [=](Model& m) { testing::layer_norm_gradients(m, dtype); }},
      {"instance_norm" + type,
       [=](Model& m) { testing::instance_norm(m, dtype); },
       check_rows,
       {{"N", 64}, {"T", 256}, {"H", 56}, {"W", 56}}},
      {"column_sum" + type, [=](Model& m) { testing::column_sums(m, dtype); }, check_column_sum},
      {"transpose" + type, [=](Model& m) { testing::transposed_rows(m, dtype); }, check_transposed},
  };
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  if (runtime::cuda_device_count() > 0) {
    const auto gpu = runtime::open_cuda_gpu(0);
    const double copy = copy_bandwidth(*gpu);
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const Work& work : works(dtype)) {
        if (!only.empty() && only != work.name) continue;
        Model model;
        work.build(model);
        Program program(*gpu, model.fusion, work.sizes, argc > 2);
        program.run();
        gpu->synchronize(nullptr);
        const double error = work.check(program, model.fusion, work.sizes);
        const double seconds = time(20, [&] { program.run(); }, [&] { gpu->synchronize(nullptr); });
        rows.push_back({{"name", work.name},
                        {"device", gpu->name()},
                        {"threads", 1},
                        {"ms", 1e3 * seconds},
                        {"reference_ms", 1e3 * program.bytes() / copy},
                        {"kernels", program.kernels()},
                        {"gb_per_s", program.bytes() / seconds / 1e9},
                        {"copy_gb_per_s", copy / 1e9},
                        {"of_copy", program.bytes() / seconds / copy},
                        {"error", error}});
      }
  }
  fmt::print("{}\n", rows.dump(1));
  return 0;
}
