#pragma once
// The workloads of the GPU's fusion benchmarks, which fusion_gpu_peers.py has as well.

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "unit/codegen_gpu/models.h"

namespace segfuse::bench {

using Sizes = std::map<std::string, std::int64_t>;

struct Work {
  std::string name;  ///< "softmax_bf16"
  std::function<void(compiler::Model&)> build;
  Sizes sizes{{"N", 32768}, {"C", 4096}};
  std::string swept{};  ///< of a sweep: the name without sizes
  bool is(std::string_view kind) const { return name.starts_with(std::string(kind) + "_"); }
};

inline std::vector<Work> gpu_works(DType dtype) {
  using compiler::Model;
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
       {{"N", 64}, {"T", 256}, {"H", 56}, {"W", 56}}},
      {"column_sum" + type, [=](Model& m) { testing::column_sums(m, dtype); }},
      {"transpose" + type, [=](Model& m) { testing::transposed_rows(m, dtype); }},
  };
}

/// What the first run of each workload takes, in processes of their own: with an empty folder for
/// compiled code, with a full one, and by another program object of the same process.
nlohmann::ordered_json first_runs(const std::string& part);
/// One of these processes; `cold` says that the folder is empty, and the compiler is timed alone.
nlohmann::ordered_json first_runs_here(const std::string& part, bool cold);

}  // namespace segfuse::bench
