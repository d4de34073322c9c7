// scan: its body, step after step.

#include <algorithm>

#include "ir/interpret/evaluate.h"

namespace segfuse::ir {

Tensor step_of(const Tensor& all, std::int64_t step) {
  Tensor one(all.dtype(), Shape(all.shape().begin() + 1, all.shape().end()));
  const auto* from = static_cast<const std::byte*>(all.data());
  std::copy_n(from + static_cast<std::size_t>(step) * one.bytes(), one.bytes(),
              static_cast<std::byte*>(one.data()));
  return one;
}

void set_step(Tensor& all, std::int64_t step, const Tensor& one) {
  const auto* from = static_cast<const std::byte*>(one.data());
  std::copy_n(from, one.bytes(),
              static_cast<std::byte*>(all.data()) + static_cast<std::size_t>(step) * one.bytes());
}

std::vector<Tensor> run_steps(const Evaluation& e, const StepFunction& step) {
  const auto carries = static_cast<std::size_t>(e.attr<std::int64_t>("carries"));
  const auto sequences = static_cast<std::size_t>(e.attr<std::int64_t>("sequences"));
  const std::int64_t length = e.sizes.of(e.attr<Extents>("length")[0]);
  const bool reverse = e.attr<std::int64_t>("reverse") != 0;
  std::vector<Tensor> results(e.operands.begin(),
                              e.operands.begin() + static_cast<std::ptrdiff_t>(carries));
  for (std::size_t r = carries; r < e.expr().results.size(); ++r)
    results.emplace_back(wide(e.result(r).dtype), e.result_shape(r));
  for (std::int64_t i = 0; i < length; ++i) {
    const std::int64_t t = reverse ? length - 1 - i : i;
    std::vector<Tensor> inputs(results.begin(),
                               results.begin() + static_cast<std::ptrdiff_t>(carries));
    for (std::size_t o = carries; o < e.operands.size(); ++o)
      inputs.push_back(o < carries + sequences ? step_of(e.operands[o], t) : e.operands[o]);
    const std::vector<Tensor> outputs = step(inputs);
    for (std::size_t r = 0; r < outputs.size(); ++r) {
      if (r < carries) {
        results[r] = outputs[r];
      } else {
        set_step(results[r], t, outputs[r]);
      }
    }
  }
  return results;
}

Sizes body_sizes(const Evaluation& e) {
  const auto carries = static_cast<std::size_t>(e.attr<std::int64_t>("carries"));
  const auto sequences = static_cast<std::size_t>(e.attr<std::int64_t>("sequences"));
  std::vector<Shape> shapes;
  for (std::size_t o = 0; o < e.operands.size(); ++o) {
    shapes.push_back(e.operands[o].shape());
    if (o >= carries && o < carries + sequences) shapes.back().erase(shapes.back().begin());
  }
  return ir::bind(*e.attr<Body>("body").fusion, shapes);
}

std::vector<Tensor> evaluate_loop(const Evaluation& e, const OpaqueOps& opaque) {
  const Fusion& body = *e.attr<Body>("body").fusion;
  const Sizes sizes = body_sizes(e);
  return run_steps(e, [&](std::span<const Tensor> inputs) {
    const std::vector<Tensor> values = evaluate_all(body, sizes, inputs, opaque, e.round_to_dtype);
    std::vector<Tensor> outputs;
    for (const Output& output : body.outputs()) outputs.push_back(values[output.val.index]);
    return outputs;
  });
}

}  // namespace segfuse::ir
