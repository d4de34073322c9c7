#pragma once
// An evaluator whose kernels for one operation have a fault, as written by somebody in a hurry. All
// other operations are right.

#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "engine/exec/semicrf_ops.h"
#include "engine/numerics/subject.h"
#include "ir/bind.h"
#include "ir/interpret/evaluate.h"

namespace segfuse::testing {

/// What a faulty kernel works on: operands and results in their types.
struct KernelCall {
  const ir::Fusion& fusion;
  ir::ExprId id;
  const std::vector<Tensor>& operands;
  Tensor& result;  ///< holds what was in memory before
  int call;        ///< how many calls there were before
};
using Kernel = std::function<void(const KernelCall&)>;

/// Memory as an allocator hands it on: something finite, or NaN where that was requested.
inline Tensor used_memory(DType dtype, const Shape& shape, bool poison) {
  return Tensor::full(dtype, shape, poison ? std::numeric_limits<double>::quiet_NaN() : 0.25);
}

inline engine::numerics::Subject with_faulty_kernel(ir::Op op, Kernel kernel) {
  return [op, kernel = std::move(kernel), call = 0](const ir::Fusion& fusion,
                                                    std::span<const Tensor> inputs,
                                                    const engine::numerics::Trial& trial) mutable {
    const ir::Sizes sizes = ir::bind_inputs(fusion, inputs);
    std::vector<Tensor> values(fusion.storage().vals.size());
    for (std::size_t i = 0; i < inputs.size(); ++i)
      values[fusion.inputs()[i].val.index] = inputs[i];
    for (const ir::ExprId id : fusion.live_exprs()) {
      const ir::Expr& expr = fusion.expr(id);
      std::vector<Tensor> operands;
      std::vector<Tensor> wide;
      for (const ir::ValId operand : expr.operands) {
        operands.push_back(values[operand.index]);
        wide.push_back(ir::widen(operands.back()));
      }
      const ir::Evaluation e{fusion, sizes, id, wide};
      if (expr.op == op) {
        Tensor& result = values[expr.results[0].index];
        result = used_memory(e.result().dtype, e.result_shape(), trial.poison);
        kernel({fusion, id, operands, result, call++});
        continue;
      }
      const std::vector<Tensor> results = ir::evaluate(e, engine::reference_opaque_ops());
      for (std::size_t r = 0; r < results.size(); ++r)
        values[expr.results[r].index] = ir::narrow(results[r], e.result(r).dtype);
    }
    std::vector<Tensor> outputs;
    for (const ir::Output& output : fusion.outputs()) outputs.push_back(values[output.val.index]);
    return outputs;
  };
}

// Kernels of sums over the last axis, f32.

/// Every thread adds its part to the result when it is done, in whatever order they come.
inline void sum_as_threads_come(const KernelCall& c) {
  constexpr std::size_t kThreads = 16;
  const auto from = c.operands[0].span<float>();
  const auto to = c.result.span<float>();
  const std::size_t row = from.size() / to.size();
  std::mt19937 arrival(static_cast<unsigned>(c.call));
  for (std::size_t r = 0; r < to.size(); ++r) {
    std::vector<float> parts(kThreads, 0.0F);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        for (std::size_t i = t; i < row; i += kThreads) parts[t] += from[r * row + i];
      });
    for (std::thread& thread : threads) thread.join();
    std::shuffle(parts.begin(), parts.end(), arrival);
    to[r] = 0;
    for (const float part : parts) to[r] += part;
  }
}

/// One running sum.
inline void running_sum(const KernelCall& c) {
  const auto from = c.operands[0].span<float>();
  const auto to = c.result.span<float>();
  const std::size_t row = from.size() / to.size();
  for (std::size_t r = 0; r < to.size(); ++r) {
    float sum = 0;
    for (std::size_t i = 0; i < row; ++i) sum += from[r * row + i];
    to[r] = sum;
  }
}

/// Whole vectors only: what is left at the end is never written.
inline void add_without_tail(const KernelCall& c) {
  constexpr std::size_t kLanes = 16;
  const auto a = c.operands[0].span<float>();
  const auto b = c.operands[1].span<float>();
  const auto to = c.result.span<float>();
  for (std::size_t i = 0; i + kLanes <= to.size(); i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) to[i + lane] = a[i + lane] + b[i + lane];
}

/// A matrix turned around, rows a number of rows apart rather than a number of columns.
inline void permute_by_wrong_stride(const KernelCall& c) {
  const auto from = c.operands[0].span<float>();
  const auto to = c.result.span<float>();
  const auto rows = static_cast<std::size_t>(c.operands[0].shape()[0]);
  const auto columns = static_cast<std::size_t>(c.operands[0].shape()[1]);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) to[j * rows + i] = from[(i * rows + j) % from.size()];
}

}  // namespace segfuse::testing
