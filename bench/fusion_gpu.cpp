// Fused programs through printed CUDA kernels, under the schedules that choose_cuda() picks: bytes
// of inputs and outputs over time against this device's own copy, measured in the same run. Inputs
// are random, outputs poisoned before and checked after. Prints one JSON list of rows, or an empty
// one where there is no device.
//   segfuse_bench_fusion_gpu [part of a name [text]]            at one shape
//   segfuse_bench_fusion_gpu sweep [part of a name [elements]]  by the number of columns
//   segfuse_bench_fusion_gpu first [part of a name]             what first runs take
// "text" writes schedules and CUDA text to stderr.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/code/fnv.h"
#include "base/context/state.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "compiler/codegen/cuda/print_cuda.h"
#include "fusion_works.h"
#include "ir/bind.h"
#include "ir/interpret/interpreter.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/open_device.h"

namespace {

using namespace segfuse;
using bench::Work;
using ir::ValId;
using nlohmann::ordered_json;

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

double copy_bandwidth(const runtime::DeviceAccess& gpu) {
  const auto device = runtime::open_cuda_device(0);
  const runtime::StreamHandle stream = device->create_stream();
  const std::size_t bytes = std::size_t{1} << 29;
  std::byte* const from = gpu.memory->allocate(gpu.home, bytes);
  std::byte* const to = gpu.memory->allocate(gpu.home, bytes);
  gpu.device->fill(gpu.home, from, 1, bytes);
  gpu.device->synchronize(gpu.home);
  const double seconds = time(
      20, [&] { device->copy(stream, to, from, bytes); }, [&] { device->synchronize(stream); });
  gpu.memory->release(gpu.home, from);
  gpu.memory->release(gpu.home, to);
  device->destroy_stream(stream);
  return 2.0 * static_cast<double>(bytes) / seconds;
}

/// A workload at some sizes, and its kernels; memory is not needed yet.
class Compiled {
 public:
  struct Kernel {
    compiler::GroupKernel kernel;
    compiler::cuda::CudaLaunch how;
    runtime::GpuKernel code;
    std::size_t group = 0;
  };

  /// On any thread.
  Compiled(runtime::KernelLoader& gpu, const Work& what, bool text) : work(what) {
    work.build(model);
    ir::Fusion copy = model.fusion;
    compiler::run_passes(copy, {.verify = true});
    compiler::SegmentOptions options;
    options.hints.symbols = work.sizes;
    const compiler::SegmentedFusion cut = compiler::segment(std::move(copy), options);
    fusion = cut.fusion();
    for (const compiler::SegmentedGroup& group : cut.groups()) {
      const compiler::IterationDomain& domain = cut.domain(group.id);
      if (domain.kind == compiler::GroupKind::kView) continue;
      const compiler::GroupLowering lowering(fusion, group, domain, cut.in_place, cut.hints(),
                                             "k" + std::to_string(group.id.index));
      groups.push_back(lowering.lower(testing::chosen_for_cuda(lowering.space())));
    }
    std::vector<Shape> shapes;
    for (const ir::Input& input : fusion.inputs())
      shapes.push_back(shape_of(fusion, input.val, work.sizes));
    sizes = ir::bind(fusion, shapes);
    for (std::size_t g = 0; g < groups.size(); ++g)
      for (const compiler::GroupKernel& kernel : groups[g].kernels) add(gpu, kernel, g, text);
  }

  static Shape shape_of(const ir::Fusion& fusion, ValId val, const bench::Sizes& symbols) {
    Shape shape;
    for (const ir::Extent& extent : fusion.val(val).shape)
      shape.push_back(fusion.canonical(extent).evaluate(
          [&](ir::SymbolId s) { return symbols.at(fusion.to_string(ir::Extent(s))); }));
    return shape;
  }
  std::int64_t size(const ir::Extent& extent) const { return sizes.of(extent); }

  Work work;
  compiler::Model model;  ///< as it was written
  ir::Fusion fusion;
  ir::Sizes sizes;
  std::vector<compiler::LoweredGroup> groups;
  std::vector<Kernel> kernels;

 private:
  void add(runtime::KernelLoader& gpu, compiler::GroupKernel kernel, std::size_t group, bool text) {
    compiler::loop::Kernel& loops = kernel.kernel;
    compiler::cuda::fit_to_sizes(loops, [this](const ir::Extent& e) { return size(e); });
    const auto make = [&] {
      const std::string source = compiler::cuda::print_cuda(loops);
      if (text) fmt::print(stderr, "// {}\n{}\n", to_string(loops.schedule), source);
      return gpu.kernel(
          {fmt::format("fusion_{:016x}", fnv1a(source)), source, {}, Context().state().code},
          loops.name);
    };
    runtime::GpuKernel code = make();
    if (loops.schedule.resident != 1 && gpu.local_bytes(code) != 0) {  // as DeviceKernels does it
      loops.schedule.resident = 1;
      code = make();
    }
    compiler::cuda::CudaLaunch how = compiler::cuda::cuda_launch(loops);
    kernels.push_back({std::move(kernel), std::move(how), code, group});
  }
};

/// Random numbers in the device's memory, which the inputs of all programs are the beginnings of.
class Inputs {
 public:
  explicit Inputs(const runtime::DeviceAccess& gpu) : gpu_(gpu) {}
  ~Inputs() {
    for (auto& [key, slot] : slots_) gpu_.memory->release(gpu_.home, slot.memory);
  }
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;

  struct Slot {
    std::vector<double> values;  ///< repeated through the memory
    Tensor pattern{DType::kF32, {0}};
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
    double at(std::int64_t position) const {
      return values[static_cast<std::size_t>(position % kPattern)];
    }
  };
  /// At least that many bytes; memory that was given before may be freed.
  const Slot& get(std::size_t number, DType dtype, std::size_t bytes) {
    Slot& slot = slots_[{number, dtype}];
    if (slot.values.empty()) make(slot, number, dtype);
    if (slot.bytes >= bytes) return slot;
    if (slot.memory != nullptr) gpu_.memory->release(gpu_.home, slot.memory);
    slot.bytes = bytes;
    slot.memory = gpu_.memory->allocate(gpu_.home, bytes);
    for (std::size_t at = 0; at < bytes; at += slot.pattern.bytes())
      gpu_.device->copy(gpu_.home, slot.memory + at, slot.pattern.data(),
                        std::min(slot.pattern.bytes(), bytes - at));
    gpu_.device->synchronize(gpu_.home);
    return slot;
  }

 private:
  static void make(Slot& slot, std::size_t number, DType dtype) {
    const auto seed = std::chrono::steady_clock::now().time_since_epoch().count();
    Rng rng(static_cast<std::uint64_t>(seed), number);
    slot.pattern = Tensor(dtype, {kPattern});
    for (std::int64_t i = 0; i < kPattern; ++i) {
      slot.pattern.set(i, 4 * rng.uniform() - 2);
      slot.values.push_back(slot.pattern.at(i));
    }
  }

  runtime::DeviceAccess gpu_;
  std::map<std::pair<std::size_t, DType>, Slot> slots_;
};

struct Launch {
  const Compiled::Kernel* kernel = nullptr;
  std::vector<std::uint64_t> argument;
  unsigned blocks = 1;
  std::size_t shared = 0;
};

/// What was compiled, with its memory on the device.
class Program {
 public:
  Program(const runtime::DeviceAccess& gpu, Inputs& inputs, const Compiled& compiled)
      : gpu_(gpu), compiled_(compiled), fusion_(compiled.fusion) {
    for (std::size_t i = 0; i < fusion_.inputs().size(); ++i) {
      const ValId val = fusion_.inputs()[i].val;
      inputs_.push_back(&inputs.get(i, fusion_.val(val).dtype,
                                    std::max(static_cast<std::size_t>(bytes_of(val)), kMin)));
      memory_[val] = inputs_.back()->memory;
    }
    status_ = gpu_.memory->allocate(gpu_.home, kMin);
    gpu_.device->fill(gpu_.home, status_, 0, kMin);
    std::vector<std::vector<void*>> workspaces;
    for (const compiler::LoweredGroup& group : compiled.groups) {
      workspaces.emplace_back();
      for (const compiler::Workspace& w : group.workspaces)
        workspaces.back().push_back(
            poisoned(static_cast<std::size_t>(compiled.size(w.elements)) * size_of(w.dtype)));
    }
    for (const Compiled::Kernel& kernel : compiled.kernels) add(kernel, workspaces[kernel.group]);
    for (const ir::Output& output : fusion_.outputs()) memory_of(output.val);
  }
  ~Program() {
    for (std::byte* memory : owned_) gpu_.memory->release(gpu_.home, memory);
    gpu_.memory->release(gpu_.home, status_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void run() {
    for (const Launch& l : launches_)
      gpu_.kernels->launch(
          gpu_.home, l.kernel->code,
          {{l.blocks, 1, 1}, {l.kernel->how.threads, l.kernel->how.rows_at_once, 1}, l.shared},
          l.argument.data(), l.argument.size() * sizeof(l.argument[0]));
  }
  const Compiled& compiled() const { return compiled_; }
  double bytes() const {
    double sum = 0;
    for (const ir::Input& input : fusion_.inputs()) sum += bytes_of(input.val);
    for (const ir::Output& output : fusion_.outputs()) sum += bytes_of(output.val);
    return sum;
  }
  const Inputs::Slot& input(std::size_t number) const { return *inputs_[number]; }
  /// Elements [begin, begin + count) of an output.
  Tensor output(std::size_t number, std::int64_t begin, std::int64_t count) const {
    const ValId val = fusion_.outputs()[number].val;
    Tensor result(fusion_.val(val).dtype, {count});
    const auto* from = static_cast<const std::byte*>(memory_.at(val)) +
                       static_cast<std::size_t>(begin) * size_of(result.dtype());
    gpu_.device->read(gpu_.home, result.data(), from, result.bytes());
    return result;
  }

 private:
  static constexpr std::size_t kMin = 16;

  double bytes_of(ValId val) const {
    return static_cast<double>(num_elements(compiled_.sizes.of(fusion_.val(val).shape))) *
           static_cast<double>(size_of(fusion_.val(val).dtype));
  }
  void* poisoned(std::size_t bytes) {
    owned_.push_back(gpu_.memory->allocate(gpu_.home, std::max(bytes, kMin)));
    gpu_.device->fill(gpu_.home, owned_.back(), 0xff, std::max(bytes, kMin));
    return owned_.back();
  }
  void* memory_of(ValId val) {
    const auto found = memory_.find(val);
    if (found != memory_.end()) return found->second;
    return memory_[val] = poisoned(static_cast<std::size_t>(bytes_of(val)));
  }
  void add(const Compiled::Kernel& kernel, const std::vector<void*>& workspaces) {
    const auto size = [this](const ir::Extent& extent) { return compiled_.size(extent); };
    std::vector<void*> buffers;
    for (const compiler::Operand& operand : kernel.kernel.operands)
      buffers.push_back(operand.val.valid() ? memory_of(operand.val)
                                            : workspaces[operand.workspace]);
    launches_.push_back({&kernel,
                         kernel.how.argument(buffers, size, reinterpret_cast<int*>(status_)),
                         kernel.how.blocks(size), kernel.how.shared_bytes(size)});
  }

  runtime::DeviceAccess gpu_;
  const Compiled& compiled_;
  const ir::Fusion& fusion_;
  std::map<ValId, void*> memory_;
  std::vector<std::byte*> owned_;
  std::vector<const Inputs::Slot*> inputs_;
  std::vector<Launch> launches_;
  std::byte* status_ = nullptr;
};

double worse(double worst, double found, double expected) {
  const double error = std::abs(found - expected) / std::max(1.0, std::abs(expected));
  return std::isfinite(error) ? std::max(worst, error) : INFINITY;
}

bool by_rows(const ir::Fusion& fusion, ValId val) {
  const ir::Extents& shape = fusion.val(val).shape;
  return !shape.empty() && fusion.to_string(fusion.canonical(shape[0])) == "N";
}

/// Rows of all outputs over N, which depend on the same rows of inputs over N alone.
double check_rows(const Program& program, std::int64_t first, std::int64_t count) {
  const ir::Fusion& fusion = program.compiled().model.fusion;
  bench::Sizes sizes = program.compiled().work.sizes;
  sizes.at("N") = count;
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < fusion.inputs().size(); ++i) {
    const ValId val = fusion.inputs()[i].val;
    Tensor tensor(DType::kF64, Compiled::shape_of(fusion, val, sizes));
    const std::int64_t begin = by_rows(fusion, val) ? first * (tensor.size() / count) : 0;
    for (std::int64_t at = 0; at < tensor.size(); ++at)
      tensor.set(at, program.input(i).at(begin + at));
    inputs.push_back(tensor.to(fusion.val(val).dtype));
  }
  const std::vector<Tensor> expected = ir::interpret(fusion, inputs);
  double worst = 0;
  for (std::size_t o = 0; o < expected.size(); ++o) {
    if (!by_rows(fusion, fusion.outputs()[o].val)) continue;
    const std::int64_t begin = first * (expected[o].size() / count);
    const Tensor found = program.output(o, begin, expected[o].size());
    for (std::int64_t i = 0; i < found.size(); ++i)
      worst = worse(worst, found.at(i), expected[o].at(i));
  }
  return worst;
}

/// The first rows and the last.
double check_ends(const Program& program) {
  constexpr std::int64_t kElements = 3 * 4096;
  const bench::Sizes& sizes = program.compiled().work.sizes;
  std::int64_t row = 1;
  for (const auto& [name, size] : sizes) row *= name == "N" ? 1 : size;
  const std::int64_t rows = sizes.at("N");
  const std::int64_t count = std::min(rows, std::clamp<std::int64_t>(kElements / row, 1, 1024));
  return std::max(check_rows(program, 0, count), check_rows(program, rows - count, count));
}

/// About twenty columns, with the first and the last.
std::vector<std::int64_t> some_columns(std::int64_t columns) {
  std::vector<std::int64_t> some;
  for (std::int64_t c = 0; c < columns; c += std::max<std::int64_t>(1, columns / 19))
    some.push_back(c);
  if (some.back() != columns - 1) some.push_back(columns - 1);
  return some;
}

/// Sums over all rows of `terms(row, column)` for these columns.
template <class Terms>
double check_sums(const Program& program, std::size_t output, ThreadPool& pool,
                  const Terms& terms) {
  const bench::Sizes& sizes = program.compiled().work.sizes;
  const std::vector<std::int64_t> columns = some_columns(sizes.at("C"));
  const std::int64_t rows = sizes.at("N");
  const std::int64_t grain = std::max<std::int64_t>(1, rows / 64);
  std::vector<std::vector<double>> parts(static_cast<std::size_t>((rows + grain - 1) / grain),
                                         std::vector<double>(columns.size()));
  pool.for_ranges(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<double>& sums = parts[static_cast<std::size_t>(begin / grain)];
    for (std::int64_t row = begin; row < end; ++row) terms(row, columns, sums);
  });
  const Tensor found = program.output(output, 0, sizes.at("C"));
  double worst = 0;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    double sum = 0;
    for (const std::vector<double>& part : parts) sum += part[i];
    worst = worse(worst, found.at(columns[i]), sum);
  }
  return worst;
}

double check_column_sum(const Program& program, ThreadPool& pool) {
  const std::int64_t width = program.compiled().work.sizes.at("C");
  const Inputs::Slot& x = program.input(0);
  return check_sums(program, 0, pool,
                    [&](std::int64_t row, const auto& columns, std::vector<double>& sums) {
                      for (std::size_t i = 0; i < columns.size(); ++i)
                        sums[i] += x.at(row * width + columns[i]);
                    });
}

/// The gradient of x by rows; those of scale and shift are sums over all rows.
double check_gradients(const Program& program, ThreadPool& pool) {
  const std::int64_t width = program.compiled().work.sizes.at("C");
  const Inputs::Slot& x = program.input(0);
  const Inputs::Slot& g = program.input(3);
  const auto scale = [&](std::int64_t row, const auto& columns, std::vector<double>& sums) {
    double sum = 0, squares = 0;
    for (std::int64_t c = 0; c < width; ++c) sum += x.at(row * width + c);
    const double mean = sum / static_cast<double>(width);
    for (std::int64_t c = 0; c < width; ++c) {
      const double away = x.at(row * width + c) - mean;
      squares += away * away;
    }
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::int64_t at = row * width + columns[i];
      sums[i] += g.at(at) * (x.at(at) - mean) * inverse;
    }
  };
  const auto shift = [&](std::int64_t row, const auto& columns, std::vector<double>& sums) {
    for (std::size_t i = 0; i < columns.size(); ++i) sums[i] += g.at(row * width + columns[i]);
  };
  return std::max({check_ends(program), check_sums(program, 1, pool, scale),
                   check_sums(program, 2, pool, shift)});
}

double check_transposed(const Program& program) {
  constexpr std::int64_t kMax = 1 << 16;  // rows at either end
  const std::int64_t rows = program.compiled().work.sizes.at("N");
  const std::int64_t columns = program.compiled().work.sizes.at("C");
  const std::int64_t count = std::min(rows, kMax);
  double worst = 0;
  for (const std::int64_t c : some_columns(columns))
    for (const std::int64_t first : {std::int64_t{0}, rows - count}) {
      const Tensor found = program.output(0, c * rows + first, count);
      for (std::int64_t r = 0; r < count; ++r)
        worst = worse(worst, found.at(r), program.input(0).at((first + r) * columns + c) * 0.5);
    }
  return worst;
}

double check(const Program& program, ThreadPool& pool) {
  const Work& work = program.compiled().work;
  if (work.is("column_sum")) return check_column_sum(program, pool);
  if (work.is("transpose")) return check_transposed(program);
  if (work.is("layer_norm_backward")) return check_gradients(program, pool);
  return check_ends(program);
}

class Bench {
 public:
  explicit Bench(ordered_json& rows)
      : rows_(rows), gpu_(runtime::access_cuda(0)), inputs_(gpu_), copy_(copy_bandwidth(gpu_)) {}

  /// Compiles all of them beside each other and measures one after the other.
  void measure(const std::vector<Work>& works, bool text) {
    std::vector<std::unique_ptr<Compiled>> compiled(works.size());
    const auto compile = [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      compiled[at] = std::make_unique<Compiled>(*gpu_.kernels, works[at], text);
    };
    const auto count = static_cast<std::int64_t>(works.size());
    if (!text) pool_.run(count, compile);
    for (std::int64_t i = 0; text && i < count; ++i) compile(i);  // in their order
    for (const auto& one : compiled) measure(*one);
  }

 private:
  void measure(const Compiled& compiled) {
    constexpr double kSeries = 0.02;  // seconds; slow ones are called less often
    Program program(gpu_, inputs_, compiled);
    const auto run = [&] { program.run(); };
    const auto wait = [&] { gpu_.device->synchronize(gpu_.home); };
    run();
    wait();
    const double error = check(program, pool_);
    const double once = time(1, run, wait);
    const double seconds = time(std::clamp(static_cast<int>(kSeries / once), 1, 20), run, wait);
    rows_.push_back({{"name", compiled.work.name},
                     {"device", gpu_.device->name()},
                     {"threads", 1},
                     {"ms", 1e3 * seconds},
                     {"reference_ms", 1e3 * program.bytes() / copy_},
                     {"kernels", compiled.kernels.size()},
                     {"gb_per_s", program.bytes() / seconds / 1e9},
                     {"copy_gb_per_s", copy_ / 1e9},
                     {"of_copy", program.bytes() / seconds / copy_},
                     {"error", error}});
    if (compiled.work.swept.empty()) return;
    rows_.back()["workload"] = compiled.work.swept;
    rows_.back()["columns"] = compiled.work.sizes.at("C");
  }

  ordered_json& rows_;
  ThreadPool pool_;
  runtime::DeviceAccess gpu_;
  Inputs inputs_;
  double copy_ = 0;
};

/// Workloads whose names have that part.
std::vector<Work> named(const std::string& part) {
  std::vector<Work> all;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (Work& work : bench::gpu_works(dtype))
      if (work.name.find(part) != std::string::npos) all.push_back(std::move(work));
  return all;
}

/// The workloads over matrices, about as many elements in each.
std::vector<Work> by_columns(const std::string& part, std::int64_t elements) {
  std::vector<Work> all;
  for (const Work& work : named(part)) {
    if (!work.sizes.contains("C")) continue;
    for (const std::int64_t columns : {1, 2, 3, 8, 31, 39, 64, 127, 1000, 4093, 50257, 152064}) {
      const std::int64_t rows = std::max<std::int64_t>(1, elements / columns);
      all.push_back(work);
      all.back().name = fmt::format("{} {}x{}", work.name, rows, columns);
      all.back().sizes = {{"N", rows}, {"C", columns}};
      all.back().swept = work.name;
    }
  }
  return all;
}

void measure(const std::vector<std::string>& arguments, ordered_json& rows) {
  const auto argument = [&](std::size_t i) {
    return i < arguments.size() ? arguments[i] : std::string();
  };
  if (runtime::cuda_device_count() == 0) return;
  const std::string mode = argument(0);
  if (mode == "first") {
    rows = bench::first_runs(argument(1));
  } else if (mode == "once") {
    rows = bench::first_runs_here(argument(2), argument(1) == "cold");
  } else if (mode == "sweep") {
    const std::int64_t elements = arguments.size() > 2 ? std::stoll(arguments[2]) : 1 << 26;
    Bench(rows).measure(by_columns(argument(1), elements), false);
  } else {
    Bench(rows).measure(named(mode), arguments.size() > 1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  ordered_json rows = ordered_json::array();
  int status = 0;
  try {
    measure({argv + 1, argv + argc}, rows);
  } catch (const std::exception& error) {  // what was measured before is printed all the same
    fmt::print(stderr, "bench: {}\n", error.what());
    status = 1;
  }
  fmt::print("{}\n", rows.dump(1));
  return status;
}
