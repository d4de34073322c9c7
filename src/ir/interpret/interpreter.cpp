#include "ir/interpret/interpreter.h"

#include <fmt/core.h>

#include "base/check.h"
#include "ir/bind.h"
#include "ir/interpret/evaluate.h"
#include "ir/random.h"

namespace segfuse::ir {

Tensor widen(const Tensor& tensor) {
  if (is_float(tensor.dtype())) return tensor.to(DType::kF64);
  if (tensor.dtype() == DType::kI64) return tensor;
  Tensor result(DType::kI64, tensor.shape());
  for (std::int64_t i = 0; i < tensor.size(); ++i)
    result.span<std::int64_t>()[static_cast<std::size_t>(i)] =
        static_cast<std::int64_t>(tensor.at(i));
  return result;
}

Tensor narrow(const Tensor& wide_tensor, DType dtype) {
  if (is_float(dtype)) return wide_tensor.to(dtype).clone();
  if (dtype == DType::kI64) return wide_tensor.clone();
  Tensor result(dtype, wide_tensor.shape());
  for (std::int64_t i = 0; i < result.size(); ++i) result.set(i, wide_tensor.at(i));
  return result;
}

namespace {

std::vector<Tensor> evaluate_opaque(const Evaluation& e, const OpaqueOps& opaque) {
  const OpaqueOps::Function* function = nullptr;
  switch (as<OpaqueOp>(e.expr().op)) {
    case OpaqueOp::matmul: return evaluate_matmul(e);
    case OpaqueOp::cumsum:
    case OpaqueOp::cumprod:
    case OpaqueOp::cummax:
    case OpaqueOp::cummin:
    case OpaqueOp::cumlogsumexp:
    case OpaqueOp::linear_scan: return evaluate_scan(e);
    case OpaqueOp::scan: return evaluate_loop(e, opaque);
    case OpaqueOp::sort: return evaluate_sort(e);
    case OpaqueOp::attention: return evaluate_attention(e);
    case OpaqueOp::attention_grad: return evaluate_attention_grad(e);
    case OpaqueOp::semicrf_loss: function = &opaque.semicrf_loss; break;
    case OpaqueOp::semicrf_loss_grad: function = &opaque.semicrf_loss_grad; break;
  }
  if (!*function)
    throw UsageError(
        fmt::format("the Fusion '{}' uses '{}', for which interpret() was given no function",
                    e.fusion.name(), info(e.expr().op).name));
  return (*function)(e.operands);
}

}  // namespace

std::vector<Tensor> evaluate(const Evaluation& e, const OpaqueOps& opaque) {
  switch (info(e.expr().op).op_class) {
    case OpClass::kElementwise: return evaluate_elementwise(e);
    case OpClass::kReduction: return evaluate_reduction(e);
    case OpClass::kMovement: return evaluate_movement(e);
    case OpClass::kCreation: return evaluate_creation(e);
    case OpClass::kOpaque: return evaluate_opaque(e, opaque);
  }
  throw InternalError(fmt::format("no evaluation for '{}'", info(e.expr().op).name));
}

std::vector<Tensor> evaluate_creation(const Evaluation& e) {
  const Val& result = e.result();
  Tensor out(wide(result.dtype), e.result_shape());
  switch (as<CreationOp>(e.expr().op)) {
    case CreationOp::constant: out.set(0, e.attr<double>("value")); break;
    case CreationOp::extent:
      out.set(0, static_cast<double>(e.sizes.of(e.attr<Extents>("size")[0])));
      break;
    case CreationOp::iota:
      for (std::int64_t i = 0; i < out.size(); ++i) out.set(i, static_cast<double>(i));
      break;
    case CreationOp::random_uniform: {
      const auto seed = e.operands[0].span<std::int64_t>();
      const auto stream = e.attr<std::int64_t>("stream");
      for (std::int64_t i = 0; i < out.size(); ++i)
        out.set(i, random_element(seed[0], seed[1], stream, static_cast<std::uint64_t>(i)));
    }
  }
  if (!is_float(result.dtype))
    for (std::int64_t& value : out.span<std::int64_t>()) value = wrap(result.dtype, value);
  return {out};
}

std::vector<Tensor> evaluate_all(const Fusion& fusion, const Sizes& sizes,
                                 std::span<const Tensor> inputs, const OpaqueOps& opaque,
                                 bool round_to_dtype) {
  std::vector<Tensor> values(fusion.storage().vals.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) values[fusion.inputs()[i].val.index] = inputs[i];
  for (const ExprId id : fusion.live_exprs()) {
    const Expr& expr = fusion.expr(id);
    std::vector<Tensor> operands;
    for (const ValId operand : expr.operands) operands.push_back(values[operand.index]);
    const std::vector<Tensor> results =
        evaluate({fusion, sizes, id, operands, round_to_dtype}, opaque);
    SEGFUSE_CHECK(results.size() == expr.results.size(), "results of {}", info(expr.op).name);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const DType dtype = fusion.val(expr.results[i]).dtype;
      const bool round = round_to_dtype && is_float(dtype);
      values[expr.results[i].index] = round ? results[i].to(dtype).to(DType::kF64) : results[i];
    }
  }
  return values;
}

std::vector<Tensor> interpret(const Fusion& fusion, std::span<const Tensor> inputs,
                              const OpaqueOps& opaque, const InterpretOptions& options) {
  const Sizes sizes = bind_inputs(fusion, inputs);
  std::vector<Tensor> wide_inputs;
  for (const Tensor& input : inputs) wide_inputs.push_back(widen(input));
  const std::vector<Tensor> values =
      evaluate_all(fusion, sizes, wide_inputs, opaque, options.round_to_dtype);
  std::vector<Tensor> outputs;
  for (const Output& output : fusion.outputs()) {
    const DType dtype = fusion.val(output.val).dtype;
    const bool as_f64 = options.outputs_as_f64 && is_float(dtype);
    outputs.push_back(narrow(values[output.val.index], as_f64 ? DType::kF64 : dtype));
  }
  return outputs;
}

}  // namespace segfuse::ir
