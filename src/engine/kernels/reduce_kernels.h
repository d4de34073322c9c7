#pragma once
// Reductions of contiguous runs, and their states. A run is summed pairwise over blocks; states are
// combined by the caller in a fixed order. Floats carry their states in double.

#include <cstdint>

#include "ir/op.h"
#include "segfuse/tensor.h"

namespace segfuse::engine {

/// What is known about some elements of one reduction.
///   sum, prod, max, min: a;  argmax: a and its index n (-1: none)
///   welford: mean a, sum of squared deviations b, count n;  logsumexp: maximum a, b =
///   sum(exp(x-a))
template <class T>
struct ReduceState {
  using Number = std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>;
  Number a = 0;
  Number b = 0;
  std::int64_t n = 0;
};

template <class T>
struct ReduceLoops {
  /// The state of elements x[0..n), of which x[0] has index `first`.
  ReduceState<T> (*run)(const T* x, std::int64_t n, std::int64_t first);
  /// The state of both; `left` comes first.
  ReduceState<T> (*combine)(const ReduceState<T>& left, const ReduceState<T>& right);
  /// The state of nothing.
  ReduceState<T> identity;
  /// state[c] = state[c] op x[c]; null where columns are reduced through `run`.
  void (*columns)(T* state, const T* x, std::int64_t n);
};

/// T is float, double, std::int32_t or std::int64_t.
template <class T>
ReduceLoops<T> reduce_loops(ir::Op op);

}  // namespace segfuse::engine
