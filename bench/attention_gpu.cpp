// Attention in f32 and bf16 on a CUDA device, kernel by kernel. Prints a JSON list of rows for
// bench/run, an empty one where there is no device.
//
// usage: segfuse_bench_attention_gpu [variants|variants16 [D [LENGTH]]]
// variants: a line for each of many layouts of the kernels instead, with the largest difference of
// its results from those of the layout that is chosen.

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "base/rng.h"
#include "engine/attention/gpu/launch.h"
#include "runtime/open_device.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

using engine::AttentionAddress;
using engine::AttentionKernel;
using engine::AttentionTiles;

struct Sizes {
  std::int64_t batch, heads, length, width;
  bool causal;
  DType dtype = DType::kF32;
  std::string name() const {
    return fmt::format("attention {} {}x{}x{}x{}{}", name_of(dtype), batch, heads, length, width,
                       causal ? ", causal" : "");
  }
};

/// Operands and results on the device.
class Attention {
 public:
  Attention(const runtime::DeviceAccess& gpu, const Sizes& sizes) : gpu_(gpu), sizes_(sizes) {
    plan_.leading = {sizes.batch * sizes.heads};
    plan_.batch = sizes.batch * sizes.heads;
    plan_.rows = plan_.columns = sizes.length;
    plan_.inner = plan_.outer = sizes.width;
    plan_.scale = 1 / std::sqrt(static_cast<double>(sizes.width));
    plan_.fill = -std::numeric_limits<double>::infinity();
    if (sizes.causal) plan_.ahead = 0;
    for (engine::AttentionMatrices* m : {&plan_.q, &plan_.k, &plan_.v, &plan_.g}) {
      m->steps = {sizes.length * sizes.width};
      m->row = sizes.width;
    }
    const auto rows = static_cast<std::size_t>(plan_.batch * sizes.length);
    count_ = rows * static_cast<std::size_t>(sizes.width);
    Rng rng(1);
    std::vector<float> values(count_);
    for (const AttentionAddress address :
         {AttentionAddress::kQ, AttentionAddress::kK, AttentionAddress::kV, AttentionAddress::kG}) {
      for (float& x : values) x = static_cast<float>(2 * rng.uniform() - 1);
      at(address) = allocate(count_ * size_of(sizes.dtype));
      if (sizes.dtype == DType::kBF16) {  // the upper half of each
        auto* const halves = reinterpret_cast<std::uint16_t*>(values.data());
        for (std::size_t i = 0; i < count_; ++i)
          halves[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(values[i]) >> 16);
      }
      gpu_.device->copy(gpu_.home, at(address), values.data(), count_ * size_of(sizes.dtype));
      gpu_.device->synchronize(gpu_.home);
    }
    for (const AttentionAddress address : {AttentionAddress::kLogs, AttentionAddress::kLess,
                                           AttentionAddress::kLog, AttentionAddress::kRest}) {
      at(address) = allocate(rows * sizeof(float));
      gpu_.device->fill(gpu_.home, at(address), 0, rows * sizeof(float));
    }
    for (const AttentionAddress address :
         {AttentionAddress::kRowFlags, AttentionAddress::kColumnFlags}) {
      at(address) = allocate(rows);
      gpu_.device->fill(gpu_.home, at(address), 1, rows);
    }
    for (std::byte*& result : results_) result = allocate(count_ * sizeof(float));
  }
  ~Attention() {
    for (std::byte* memory : owned_) gpu_.memory->release(gpu_.home, memory);
  }
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  /// Beside each other: each takes the compiler seconds.
  void compile(std::span<const std::pair<AttentionKernel, AttentionTiles>> all) {
    std::vector<std::jthread> threads;
    for (const auto& [kernel, tiles] : all)
      threads.emplace_back(
          [this, launch = engine::attention_launch(kernel, sizes_.dtype, plan_, true, tiles)] {
            try {
              gpu_.kernels->kernel(launch.program, launch.entry);
            } catch (const std::exception&) {  // said when it is used
            }
          });
  }
  std::size_t local_bytes(AttentionKernel kernel, const AttentionTiles& tiles) {
    return gpu_.kernels->local_bytes(prepare(kernel, tiles).code);
  }

  /// Milliseconds of a launch, the shortest of several.
  double time(AttentionKernel kernel, const AttentionTiles& tiles) {
    const auto launch = [&, prepared = prepare(kernel, tiles)] { go(prepared); };
    launch();
    gpu_.device->synchronize(gpu_.home);
    double least = 1e9;
    for (int series = 0; series < 5; ++series) {
      constexpr int kCalls = 4;
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i) launch();
      gpu_.device->synchronize(gpu_.home);
      const std::chrono::duration<double, std::milli> taken =
          std::chrono::steady_clock::now() - begin;
      least = std::min(least, taken.count() / kCalls);
    }
    return least;
  }
  double time_finite(std::int64_t of) {
    std::vector<engine::FiniteMatrix> matrices(static_cast<std::size_t>(of),
                                               {&plan_.v, plan_.outer});
    Prepared p{engine::attention_finite_launch(sizes_.dtype, plan_, plan_.rows, matrices), {}};
    for (std::size_t i = 0; i < matrices.size(); ++i)
      p.launch.words[i] = reinterpret_cast<std::uintptr_t>(at(AttentionAddress::kV));
    p.launch.words[3] = reinterpret_cast<std::uintptr_t>(at(AttentionAddress::kRowFlags));
    p.code = gpu_.kernels->kernel(p.launch.program, p.launch.entry);
    double least = 1e9;
    for (int series = 0; series < 5; ++series) {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < 10; ++i) go(p);
      gpu_.device->synchronize(gpu_.home);
      const std::chrono::duration<double, std::milli> taken =
          std::chrono::steady_clock::now() - begin;
      least = std::min(least, taken.count() / 10);
    }
    return least;
  }
  std::vector<float> results(std::size_t which) {
    std::vector<float> values(count_);
    gpu_.device->copy(gpu_.home, values.data(), results_[which], count_ * size_of(sizes_.dtype));
    gpu_.device->synchronize(gpu_.home);
    if (sizes_.dtype == DType::kBF16) {
      const auto* const halves = reinterpret_cast<const std::uint16_t*>(values.data());
      for (std::size_t i = count_; i-- > 0;)
        values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(halves[i]) << 16);
    }
    return values;
  }

 private:
  struct Prepared {
    engine::LibraryLaunch launch;
    runtime::GpuKernel code;
  };
  Prepared prepare(AttentionKernel kernel, const AttentionTiles& tiles) {
    Prepared p{engine::attention_launch(kernel, sizes_.dtype, plan_, true, tiles), {}};
    std::byte* first = nullptr;
    std::byte* second = nullptr;
    if (kernel != AttentionKernel::kLogarithms) first = results_[0];
    if (kernel == AttentionKernel::kKeys) second = results_[1];
    at(AttentionAddress::kFirst) = first;
    at(AttentionAddress::kSecond) = second;
    for (std::size_t i = 0; i < static_cast<std::size_t>(AttentionAddress::kCount); ++i)
      p.launch.words[i] = reinterpret_cast<std::uintptr_t>(addresses_[i]);
    if (kernel == AttentionKernel::kResult)
      p.launch.words[static_cast<std::size_t>(AttentionAddress::kLog)] =
          reinterpret_cast<std::uintptr_t>(at(AttentionAddress::kLogs));
    p.code = gpu_.kernels->kernel(p.launch.program, p.launch.entry);
    return p;
  }
  void go(const Prepared& p) {
    gpu_.kernels->launch(gpu_.home, p.code, {p.launch.grid, p.launch.block, p.launch.shared_bytes},
                         p.launch.words.data(), p.launch.words.size() * sizeof(std::uint64_t));
  }
  std::byte*& at(AttentionAddress address) { return addresses_[static_cast<std::size_t>(address)]; }
  std::byte* allocate(std::size_t bytes) {
    owned_.push_back(gpu_.memory->allocate(gpu_.home, bytes));
    return owned_.back();
  }

  runtime::DeviceAccess gpu_;
  Sizes sizes_;
  engine::AttentionPlan plan_;
  std::size_t count_ = 0;
  std::byte* addresses_[static_cast<std::size_t>(AttentionAddress::kCount)] = {};
  std::byte* results_[2] = {};
  std::vector<std::byte*> owned_;
};

constexpr AttentionKernel kBackward[] = {AttentionKernel::kLogarithms, AttentionKernel::kQueries,
                                         AttentionKernel::kKeys};

AttentionTiles chosen(const runtime::DeviceAccess& gpu, AttentionKernel kernel, DType dtype,
                      std::int64_t width) {
  return engine::attention_tiles(kernel, dtype, width, width,
                                 static_cast<std::size_t>(gpu.kernels->shared_bytes()));
}

nlohmann::json rows(const runtime::DeviceAccess& gpu) {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [dtype, causal] : {std::pair{DType::kF32, false},
                                      {DType::kF32, true},
                                      {DType::kBF16, false},
                                      {DType::kBF16, true}})
    for (const auto& [b, h, t, d] : {std::tuple{8, 16, 2048, 64},
                                     {1, 8, 8192, 64},
                                     {8, 16, 2048, 128},
                                     {32, 8, 512, 32},
                                     {4, 16, 1024, 80},
                                     {32, 8, 1000, 64}}) {
      const Sizes sizes{b, h, t, d, causal, dtype};
      Attention attention(gpu, sizes);
      double forward =
          attention.time(AttentionKernel::kResult, chosen(gpu, AttentionKernel::kResult, dtype, d));
      double backward = 0;
      for (const AttentionKernel kernel : kBackward)
        backward += attention.time(kernel, chosen(gpu, kernel, dtype, d));
      if (causal) {
        forward += attention.time_finite(1);
        backward += attention.time_finite(1) + attention.time_finite(3);
      }
      for (const auto& [what, ms] : {std::pair{"forward", forward}, {"backward", backward}})
        all.push_back({{"name", sizes.name() + ", " + what},
                       {"device", gpu.device->name()},
                       {"threads", 1},
                       {"ms", ms}});
    }
  return all;
}

const char* name_of(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::kResult: return "result";
    case AttentionKernel::kLogarithms: return "logarithms";
    case AttentionKernel::kQueries: return "queries";
    case AttentionKernel::kKeys: return "keys";
  }
  return "";
}

using Variant = std::pair<AttentionKernel, AttentionTiles>;

std::span<const Variant> variants_of(DType dtype) {
  static constexpr Variant kTried16[] = {{AttentionKernel::kResult, {4, 8, 4, 16, 1, 2, 1}},
                                         {AttentionKernel::kResult, {4, 8, 2, 16, 1, 3, 1}},
                                         {AttentionKernel::kResult, {4, 8, 4, 16, 1, 2, 0}},
                                         {AttentionKernel::kResult, {8, 8, 2, 16, 1, 1, 1}},
                                         {AttentionKernel::kResult, {4, 8, 4, 8, 1, 2, 1}},
                                         {AttentionKernel::kQueries, {4, 8, 4, 8, 1, 2, 1}},
                                         {AttentionKernel::kQueries, {4, 8, 2, 8, 1, 2, 1}},
                                         {AttentionKernel::kQueries, {8, 8, 2, 8, 1, 1, 1}},
                                         {AttentionKernel::kKeys, {4, 8, 4, 8, 1, 2, 0}},
                                         {AttentionKernel::kKeys, {4, 8, 2, 16, 1, 2, 1}},
                                         {AttentionKernel::kKeys, {4, 8, 2, 8, 1, 2, 1}},
                                         {AttentionKernel::kKeys, {8, 8, 2, 8, 1, 1, 1}},
                                         {AttentionKernel::kLogarithms, {4, 8, 4, 16, 1, 2, 1}}};
  static constexpr Variant kTried[] = {{AttentionKernel::kResult, {4, 4, 8, 8, 2, 2}},
                                       {AttentionKernel::kResult, {4, 4, 8, 8, 1, 2}},
                                       {AttentionKernel::kResult, {8, 2, 8, 4, 2, 1}},
                                       {AttentionKernel::kResult, {8, 4, 8, 8, 2, 1}},
                                       {AttentionKernel::kResult, {4, 4, 8, 4, 1, 2}},
                                       {AttentionKernel::kResult, {4, 4, 4, 8, 1, 3}},
                                       {AttentionKernel::kResult, {4, 4, 4, 4, 1, 2}},
                                       {AttentionKernel::kResult, {4, 2, 8, 4, 1, 2}},
                                       {AttentionKernel::kQueries, {4, 4, 4, 8, 1, 2}},
                                       {AttentionKernel::kQueries, {4, 4, 8, 4, 1, 2}},
                                       {AttentionKernel::kQueries, {4, 4, 8, 8, 2, 1}},
                                       {AttentionKernel::kQueries, {8, 2, 8, 4, 1, 1}},
                                       {AttentionKernel::kQueries, {8, 4, 4, 8, 1, 1}},
                                       {AttentionKernel::kQueries, {8, 4, 8, 4, 1, 1}},
                                       {AttentionKernel::kQueries, {4, 4, 4, 4, 1, 2}},
                                       {AttentionKernel::kQueries, {4, 4, 4, 4, 1, 3}},
                                       {AttentionKernel::kQueries, {8, 2, 4, 4, 1, 1}},
                                       {AttentionKernel::kKeys, {4, 4, 4, 8, 1, 2}},
                                       {AttentionKernel::kKeys, {4, 4, 8, 4, 1, 2}},
                                       {AttentionKernel::kKeys, {8, 2, 8, 4, 1, 1}},
                                       {AttentionKernel::kKeys, {8, 4, 4, 8, 1, 1}},
                                       {AttentionKernel::kKeys, {4, 4, 4, 4, 1, 2}},
                                       {AttentionKernel::kKeys, {4, 4, 4, 4, 1, 3}},
                                       {AttentionKernel::kKeys, {8, 2, 4, 4, 1, 1}},
                                       {AttentionKernel::kKeys, {8, 2, 4, 4, 1, 2}},
                                       {AttentionKernel::kLogarithms, {4, 4, 8, 8, 2, 2}}};
  return dtype == DType::kBF16 ? std::span<const Variant>(kTried16) : kTried;
}

void variants(const runtime::DeviceAccess& gpu, DType dtype, std::int64_t width,
              std::int64_t length) {
  const auto most = static_cast<std::size_t>(gpu.kernels->shared_bytes());
  std::vector<Variant> tried;
  for (const Variant& one : variants_of(dtype))
    if (engine::attention_shared_bytes(one.first, dtype, width, width, one.second) <= most)
      tried.push_back(one);
  for (const bool causal : {false, true}) {
    Attention attention(gpu, {16, 16, length, width, causal, dtype});
    attention.compile(tried);
    // The logarithms and then the gradients need those of the result.
    attention.time(AttentionKernel::kResult, chosen(gpu, AttentionKernel::kResult, dtype, width));
    attention.time(AttentionKernel::kLogarithms,
                   chosen(gpu, AttentionKernel::kLogarithms, dtype, width));
    for (const auto& [kernel, t] : tried) {
      const bool keys = kernel == AttentionKernel::kKeys;
      const double products = kernel == AttentionKernel::kResult    ? 2
                              : kernel == AttentionKernel::kQueries ? 3
                              : keys                                ? 4
                                                                    : 0;
      try {
        const double ms = attention.time(kernel, t);
        const std::vector<float> first = attention.results(0);
        const std::vector<float> second = attention.results(1);
        attention.time(kernel, chosen(gpu, kernel, dtype, width));
        double worst = 0;
        const auto compare = [&](const std::vector<float>& a, const std::vector<float>& b) {
          for (std::size_t i = 0; i < a.size(); i += 7)
            worst = std::max(worst, static_cast<double>(std::abs(a[i] - b[i])));
        };
        compare(attention.results(0), first);
        if (keys) compare(attention.results(1), second);
        const double flops = products * 2.0 * 16 * 16 * static_cast<double>(length * length) *
                             static_cast<double>(width) / (causal ? 2 : 1);
        fmt::print(
            "D={}{} {} {},{},{},{},{},{},{} shared {} local {}: {:.3f} ms, {:.1f} TFLOP/s, "
            "off by {:.1e}\n",
            width, causal ? " causal" : "", name_of(kernel), t.warps, t.row_lanes, t.rows,
            t.columns, t.parts, t.resident, t.held,
            engine::attention_shared_bytes(kernel, dtype, width, width, t),
            attention.local_bytes(kernel, t), ms, flops / ms / 1e9, worst);
      } catch (const std::exception& error) {
        fmt::print("D={} {} {},{},{},{},{},{}: {}\n", width, name_of(kernel), t.warps, t.row_lanes,
                   t.rows, t.columns, t.parts, t.resident,
                   std::string_view(error.what()).substr(0, 300));
      }
      std::fflush(stdout);
    }
    if (causal) fmt::print("finite: {:.3f} ms\n", attention.time_finite(1));
  }
}

int run(std::span<char*> arguments) {
  std::string reason;
  if (runtime::cuda_device_count(&reason) == 0) {
    fmt::print(stderr, "{}\n", reason);
    fmt::print("[]\n");
    return 0;
  }
  const runtime::DeviceAccess gpu = runtime::access_cuda(0);
  if (const std::string_view what = arguments.size() > 1 ? arguments[1] : "";
      what.starts_with("variants"))
    variants(gpu, what == "variants16" ? DType::kBF16 : DType::kF32,
             arguments.size() > 2 ? std::atoi(arguments[2]) : 64,
             arguments.size() > 3 ? std::atoi(arguments[3]) : 2048);
  else
    fmt::print("{}\n", rows(gpu).dump(1));
  return 0;
}

}  // namespace
}  // namespace segfuse

int main(int argc, char** argv) {
  try {
    return segfuse::run({argv, static_cast<std::size_t>(argc)});
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
