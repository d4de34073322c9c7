// What a call of a compiled program costs beside its work: tiny inputs, shapes that are known.
// reference_ms is the time of computing the same by a plain loop. Prints one JSON list of rows; the
// rows from Python are those of calls_peers.py.
//   segfuse_bench_calls [threads]

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "calls_programs.h"

namespace {

using namespace segfuse;
using bench::layer;
using bench::pointwise;

/// Milliseconds of one call: the least of ten medians.
double milliseconds(const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  double best = 1e9;
  for (int repeat = 0; repeat < 10; ++repeat) {
    std::vector<double> times;
    for (int i = 0; i < 2001; ++i) {
      const auto begin = Clock::now();
      call();
      times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    }
    std::nth_element(times.begin(), times.begin() + 1000, times.end());
    best = std::min(best, times[1000]);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  nlohmann::json rows = nlohmann::json::array();
  // Of one call; several options alternate.
  auto row = [&](const char* name, const Program& program, const std::vector<Tensor>& inputs,
                 const std::vector<RunOptions>& options) {
    const auto call = [&] {
      for (const RunOptions& how : options) (void)program.run(inputs, how);
    };
    std::vector<float> out(64, 0.0F);
    const auto plain = [&] {
      const auto x = inputs[0].span<float>();
      for (std::size_t i = 0; i < x.size(); ++i) out[i] = x[i] * out[i] + 1;
    };
    rows.push_back({{"name", name},
                    {"device", "cpu"},
                    {"threads", threads},
                    {"ms", milliseconds(call) / static_cast<double>(options.size())},
                    {"error", 0.0},
                    {"reference_ms", milliseconds(plain)}});
  };
  const Tensor four = Tensor::full(DType::kF32, {4}, 0.5);
  const std::vector<Tensor> inputs{four, four};
  const RunOptions alone{.threads = threads};
  row("C++: x * y + 1, 4 elements", pointwise(), inputs, {alone});
  row("C++: the same, threads alternate", pointwise(), inputs, {alone, {.threads = threads + 1}});
  row("C++: the same, contexts alternate", pointwise(), inputs,
      {alone, {.context = Context(Options()), .threads = threads}});
  row("C++: the same, check_numerics", pointwise(), inputs,
      {{.threads = threads, .check_numerics = true}});
  row("C++: the same, check_numerics alternates", pointwise(), inputs,
      {alone, {.threads = threads, .check_numerics = true}});
  row("C++: layer norm, GELU, sum, (2, 4)", layer(),
      {Tensor::full(DType::kF32, {2, 4}, 0.5), four, four}, {alone});
  std::printf("%s\n", rows.dump(1).c_str());
}
