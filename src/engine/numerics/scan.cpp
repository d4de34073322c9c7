#include "engine/numerics/bounds.h"

namespace segfuse::engine::numerics {

using ir::Evaluation;

std::vector<Judged> judge_scan(const Evaluation& e, std::span<const Judged> operands,
                               const ir::OpaqueOps& opaque, Functions functions) {
  const ir::Fusion& body = *e.attr<ir::Body>("body").fusion;
  const auto carries = static_cast<std::size_t>(e.attr<std::int64_t>("carries"));
  const auto sequences = static_cast<std::size_t>(e.attr<std::int64_t>("sequences"));
  const std::int64_t length = e.sizes.of(e.attr<ir::Extents>("length")[0]);
  const bool reverse = e.attr<std::int64_t>("reverse") != 0;
  const ir::Sizes sizes = ir::body_sizes(e);
  std::vector<Judged> results(operands.begin(),
                              operands.begin() + static_cast<std::ptrdiff_t>(carries));
  for (std::size_t r = carries; r < e.expr().results.size(); ++r) {
    const Shape shape = e.result_shape(r);
    results.push_back(
        {Tensor(ir::wide(e.result(r).dtype), shape), Tensor::zeros(DType::kF64, shape)});
  }
  for (std::int64_t i = 0; i < length; ++i) {
    const std::int64_t t = reverse ? length - 1 - i : i;
    std::vector<Judged> inputs(results.begin(),
                               results.begin() + static_cast<std::ptrdiff_t>(carries));
    for (std::size_t o = carries; o < operands.size(); ++o) {
      inputs.push_back(operands[o]);
      if (o >= carries + sequences) continue;
      inputs.back() = {ir::step_of(operands[o].value, t), ir::step_of(operands[o].error, t)};
    }
    const std::vector<Judged> values = judge_values(body, sizes, inputs, opaque, functions);
    for (std::size_t r = 0; r < results.size(); ++r) {
      const Judged& made = values[body.outputs()[r].val.index];
      if (r < carries) {
        results[r] = made;
      } else {
        ir::set_step(results[r].value, t, made.value);
        ir::set_step(results[r].error, t, made.error);
      }
    }
  }
  return results;
}

}  // namespace segfuse::engine::numerics
