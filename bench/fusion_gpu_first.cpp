#include <fmt/core.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>

#include "base/code/made_kernels.h"
#include "base/thread_pool.h"
#include "engine/device/accelerator.h"
#include "engine/executable.h"
#include "fusion_works.h"
#include "runtime/cuda/nvrtc.h"
#include "segfuse/error.h"
#include "segfuse/spawn.h"

namespace segfuse::bench {
namespace {

using nlohmann::ordered_json;

double milliseconds(const std::function<void()>& what) {
  const auto begin = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

/// Inputs on the device; what is in them does not matter here.
std::vector<Tensor> inputs_of(const ir::Fusion& fusion, const Sizes& sizes,
                              engine::Accelerator& accelerator) {
  std::vector<Tensor> inputs;
  for (const ir::Input& input : fusion.inputs()) {
    const ir::Val& val = fusion.val(input.val);
    Shape shape;
    for (const ir::Extent& extent : val.shape)
      shape.push_back(fusion.canonical(extent).evaluate(
          [&](ir::SymbolId s) { return sizes.at(fusion.to_string(ir::Extent(s))); }));
    inputs.push_back(accelerator.empty(val.dtype, shape, "input"));
    accelerator.executor().fill(accelerator.streams()[0], accelerator.buffer(inputs.back()), 0);
  }
  return inputs;
}

/// NVRTC alone, the same texts again one after the other.
double compile_again(const std::vector<MadeKernels>& made) {
  return milliseconds([&] {
    for (const MadeKernels& one : made)
      (void)runtime::cuda::compile_cubin(one.name, one.text, one.defines, one.architecture);
  });
}

ordered_json first_run(const Work& work, const std::shared_ptr<engine::Accelerator>& accelerator,
                       bool cold) {
  ThreadPool pool(1);
  compiler::Model model;
  work.build(model);
  const std::vector<Tensor> inputs = inputs_of(model.fusion, work.sizes, *accelerator);
  const auto run = [&] {  // with its end, which waits
    engine::Executable program(model.fusion, pool, {.accelerator = accelerator});
    (void)program.run(inputs);
    accelerator->synchronize();
  };
  accelerator->synchronize();
  std::vector<MadeKernels> made;
  ordered_json row{{"name", work.name}, {"device", accelerator->device()->device().name()}};
  {
    const KernelListener listener([&](const MadeKernels& one) { made.push_back(one); });
    row["first_ms"] = milliseconds(run);
  }
  row["again_ms"] = milliseconds(run);
  row["texts"] = made.size();
  if (cold) row["compiler_ms"] = compile_again(made);
  return row;
}

/// The first program of a process opens libraries.
Work opening_work() {
  return {"a process, x + x on 4 elements",
          [](compiler::Model& m) {
            const ir::ValId x = m.input("x", {m.size("N")});
            m.output(m.b.add(x, x));
          },
          {{"N", 4}}};
}

ordered_json in_a_process(const std::string& part, bool cold, const std::string& folder) {
  spawn::Request request;
  request.arguments = {std::filesystem::read_symlink("/proc/self/exe").string(), "once",
                       cold ? "cold" : "full", part};
  // NVRTC and the driver have a cache of their own.
  request.environment =
      spawn::Environment::patch({{"SEGFUSE_CACHE_DIR", folder}, {"CUDA_CACHE_DISABLE", "1"}});
  request.err = spawn::Inherit{};
  const spawn::Result result = spawn::run(request);
  if (!result.ok())
    throw InternalError(fmt::format("a process for first runs: {}", result.outcome()));
  return ordered_json::parse(result.out);
}

double median_of(const std::vector<ordered_json>& runs, std::size_t row, const char* key) {
  std::vector<double> values;
  for (const ordered_json& run : runs) values.push_back(run.at(row).at(key).get<double>());
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

ordered_json first_runs_here(const std::string& part, bool cold) {
  const auto accelerator = engine::open_accelerator("cuda");
  {  // Memory is mapped before: 3 GiB, more than any of them needs.
    (void)accelerator->empty(DType::kF32, {3 << 28}, "all");
  }
  ordered_json rows = ordered_json::array();
  rows.push_back(first_run(opening_work(), accelerator, cold));
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const Work& work : gpu_works(dtype))
      if (work.name.find(part) != std::string::npos)
        rows.push_back(first_run(work, accelerator, cold));
  return rows;
}

ordered_json first_runs(const std::string& part) {
  constexpr int kProcesses = 3;  // of each kind
  std::string folder = (std::filesystem::temp_directory_path() / "segfuse_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr)
    throw UsageError(fmt::format("'{}' cannot be made", folder));
  std::vector<ordered_json> cold;
  std::vector<ordered_json> full;
  for (int i = 0; i < kProcesses; ++i) {
    std::filesystem::remove_all(folder);
    cold.push_back(in_a_process(part, true, folder));
    full.push_back(in_a_process(part, false, folder));
  }
  std::filesystem::remove_all(folder);
  ordered_json rows = ordered_json::array();
  for (std::size_t i = 0; i < cold[0].size(); ++i)
    rows.push_back({{"name", "first run of " + cold[0][i]["name"].get<std::string>()},
                    {"device", cold[0][i]["device"]},
                    {"threads", 1},
                    {"ms", median_of(cold, i, "first_ms")},
                    {"reference_ms", median_of(cold, i, "compiler_ms")},
                    {"error", 0.0},
                    {"compiler_ms", median_of(cold, i, "compiler_ms")},
                    {"from_disk_ms", median_of(full, i, "first_ms")},
                    {"again_ms", median_of(cold, i, "again_ms")},
                    {"texts", cold[0][i]["texts"]}});
  return rows;
}

}  // namespace segfuse::bench
