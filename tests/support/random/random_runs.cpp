#include "support/random/random_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ir/interpret/interpreter.h"
#include "ir/text.h"
#include "support/error_bounds.h"

namespace segfuse::testing {

using engine::numerics::Functions;

namespace {

std::vector<Bounded> exact_outputs(const ir::Fusion& fusion, const std::vector<Tensor>& inputs) {
  std::vector<Bounded> all;
  for (const Tensor& output : ir::interpret(fusion, inputs))
    all.push_back({output, Tensor::zeros(DType::kF64, output.shape())});
  return all;
}

/// The program with one output, and nothing that it does not need.
ir::Fusion only(const ir::Fusion& fusion, ir::ValId wanted) {
  ir::Fusion small = fusion;
  while (!small.outputs().empty()) small.remove_output(0);
  small.add_output(wanted);
  const std::vector<ir::ExprId> live = small.live_exprs();
  std::vector<ir::ExprId> all = small.sorted_exprs();
  for (auto at = all.rbegin(); at != all.rend(); ++at)
    if (std::find(live.begin(), live.end(), *at) == live.end()) small.erase(*at);
  return small;
}

}  // namespace

std::string difference(const ir::Fusion& fusion, Numbers numbers, const std::vector<Tensor>& inputs,
                       const std::vector<Tensor>& found, Functions functions) {
  const std::vector<Bounded> expected = numbers == Numbers::kExact
                                            ? exact_outputs(fusion, inputs)
                                            : bounded_outputs(fusion, inputs, functions);
  const double times = numbers == Numbers::kSmooth ? 2 : 1 + 0x1p-20;
  for (std::size_t o = 0; o < expected.size(); ++o) {
    if (found.at(o).shape() != expected[o].value.shape())
      return fmt::format("shape of output {}", o);
    for (std::int64_t i = 0; i < found[o].size(); ++i) {
      const double value = found[o].at(i);
      const double exact = expected[o].value.at(i);
      const bool both_nan = std::isnan(value) && std::isnan(exact);
      const double bound = times * expected[o].bound.at(i);
      if (value == exact || both_nan || std::abs(value - exact) <= bound) continue;
      return fmt::format("output {} element {}: {} is not {} within {}", o, i, value, exact, bound);
    }
  }
  return "";
}

std::string fault_of(const ir::Fusion& fusion, Numbers numbers, const std::vector<Tensor>& inputs,
                     const Evaluator& evaluate, Functions functions) {
  try {
    return difference(fusion, numbers, inputs, evaluate(fusion, inputs), functions);
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string shrunk(const ir::Fusion& fusion, Numbers numbers, const std::vector<Tensor>& inputs,
                   const Evaluator& evaluate, Functions functions) {
  for (const ir::ExprId id : fusion.live_exprs()) {
    const ir::Fusion small = only(fusion, fusion.result(id));
    const std::string fault = fault_of(small, numbers, inputs, evaluate, functions);
    if (!fault.empty()) return fault + "\n" + ir::print(small);
  }
  return "every value alone is right; together\n" + ir::print(fusion);
}

}  // namespace segfuse::testing
