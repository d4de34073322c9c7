// How long passes and segmentation take, by the number of operations of a transformer's training
// step, in processor time. Prints one JSON list of rows; reference_ms is the time of the program
// with half as many layers, so that a ratio of 2 is linear. Threads do not matter: the compiler
// uses one.
//   segfuse_bench_segment [threads]

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "compiler/autodiff.h"
#include "compiler/passes/pass.h"
#include "compiler/segment/segmenter.h"
#include "ir/builder.h"

namespace {

using namespace segfuse;
using ir::Builder;
using ir::Extent;
using ir::ValId;

class Transformer {
 public:
  explicit Transformer(int layers) : batch_(f_.symbol("B")), time_(f_.symbol("T")) {
    ValId x = f_.add_input("x", DType::kF32, {batch_, time_, kWidth});
    for (int i = 0; i < layers; ++i) x = layer(x, fmt::format("{}.", i));
    const ValId loss = b_.mean(b_.square(x), {0, 1, 2});
    f_.add_output(loss);
    for (const ValId g : compiler::gradients(f_, loss, parameters_)) f_.add_output(g);
  }
  const ir::Fusion& fusion() const { return f_; }

 private:
  ValId parameter(const std::string& name, const ir::Extents& shape) {
    parameters_.push_back(f_.add_input(name, DType::kF32, shape));
    return parameters_.back();
  }
  ValId norm(ValId x, const std::string& name) {
    const ValId scale = parameter(name + "scale", {kWidth});
    return b_.layer_norm(x, scale, parameter(name + "shift", {kWidth}));
  }
  ValId linear(ValId x, const std::string& name, std::int64_t from, std::int64_t to) {
    const ValId weight = parameter(name + "weight", {from, to});
    return b_.add(b_.matmul(x, weight), parameter(name + "bias", {to}));
  }
  ValId heads(ValId x) {
    return b_.permute(b_.reshape(x, {batch_, time_, kHeads, kWidth / kHeads}), {0, 2, 1, 3});
  }
  ValId layer(ValId x, const std::string& name) {
    const ValId n = norm(x, name + "a.");
    const ValId q = heads(linear(n, name + "q.", kWidth, kWidth));
    const ValId k = heads(linear(n, name + "k.", kWidth, kWidth));
    const ValId v = heads(linear(n, name + "v.", kWidth, kWidth));
    const ValId scores = b_.mul(b_.matmul(q, k, false, true), b_.constant(0.125));
    const ValId mixed = b_.permute(b_.matmul(b_.softmax(scores, -1), v), {0, 2, 1, 3});
    const ValId merged = b_.reshape(mixed, {batch_, time_, kWidth});
    x = b_.add(x, linear(merged, name + "o.", kWidth, kWidth));
    const ValId h = b_.gelu(linear(norm(x, name + "b."), name + "up.", kWidth, 4 * kWidth));
    return b_.add(x, linear(h, name + "down.", 4 * kWidth, kWidth));
  }

  static constexpr std::int64_t kWidth = 512;
  static constexpr std::int64_t kHeads = 8;
  ir::Fusion f_;
  Builder b_{f_};
  Extent batch_;
  Extent time_;
  std::vector<ValId> parameters_;
};

struct Times {
  double passes = 1e300;
  double segmentation = 1e300;
  std::size_t built = 0;
  std::size_t operations = 0;
  std::size_t groups = 0;
};

/// Of the processor, so that other programs do not count.
double milliseconds_since(std::clock_t start) {
  return 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

Times measure(int layers) {
  const Transformer model(layers);
  Times best;
  best.built = model.fusion().exprs().size();
  for (int repeat = 0; repeat < (layers > 128 ? 2 : 5); ++repeat) {
    ir::Fusion fusion = model.fusion();
    auto start = std::clock();
    compiler::run_passes(fusion);
    best.passes = std::min(best.passes, milliseconds_since(start));
    best.operations = fusion.exprs().size();
    start = std::clock();
    const compiler::SegmentedFusion cut = compiler::segment(std::move(fusion));
    best.segmentation = std::min(best.segmentation, milliseconds_since(start));
    best.groups = cut.size();
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  auto rows = nlohmann::ordered_json::array();
  Times half = measure(4);
  for (int layers = 8; layers <= 1024; layers *= 2) {
    const Times now = measure(layers);
    for (const bool passes : {true, false}) {
      const std::size_t operations = passes ? now.built : now.operations;
      rows.push_back({{"name", fmt::format("{} {} layers", passes ? "passes" : "segments", layers)},
                      {"device", "cpu"},
                      {"threads", threads},
                      {"ms", passes ? now.passes : now.segmentation},
                      {"error", 0},
                      {"reference_ms", passes ? half.passes : half.segmentation},
                      {"operations", operations},
                      {"groups", now.groups}});
    }
    half = now;
  }
  fmt::print("{}\n", rows.dump(1));
  return 0;
}
