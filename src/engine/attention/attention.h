#pragma once
// Attention and its gradients by tiles: memory that grows with the rows and with the columns, never
// with both.
//
// A tile of scores is kTileRows x kTileColumns, cut from the first row and column on. Forward, the
// rows of a tile go from tile to tile with their greatest score, the sum of their exponentials and
// the weighted values, which are scaled when the greatest changes. Backward, a tile's weights are
// found again from the logarithms of the sums. All sums are in an order that sizes alone decide: no
// bit depends on the number of threads, nor a batch's on the others.

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "base/thread_pool.h"

namespace segfuse::engine {

/// Where the matrices of an operand are, in elements.
struct AttentionMatrices {
  std::vector<std::int64_t> steps;   ///< by leading axis, 0 where it is repeated
  std::vector<std::int64_t> starts;  ///< by batch
  std::int64_t row = 0;
  std::int64_t column = 1;  ///< 0 or 1 for a bias or mask, which may be repeated; else 1
};

struct AttentionPlan {
  std::vector<std::int64_t> leading;  ///< the sizes whose product is the batch
  std::int64_t batch = 0, rows = 0, columns = 0;
  std::int64_t inner = 0;  ///< of queries and keys
  std::int64_t outer = 0;  ///< of values
  double scale = 1;
  double fill = 0;
  std::optional<std::int64_t> ahead;
  AttentionMatrices q, k, v, g;
  std::optional<AttentionMatrices> bias, mask;

  /// What a band hides behind -infinity has the weight 0.
  bool skips() const { return ahead && fill == -std::numeric_limits<double>::infinity(); }
  /// On the CPU, bytes beside the operands and results.
  std::int64_t flags(bool gradient) const;
};

/// Operands as the plan has them; `logs` and `less` are (batch, rows). Results are packed.
template <class T>
struct AttentionArrays {
  const T* q = nullptr;
  const T* k = nullptr;
  const T* v = nullptr;
  const T* bias = nullptr;
  const std::uint8_t* mask = nullptr;
  T* split_logs = nullptr;  ///< of gradients: 2 x (batch, rows) to work with
  std::uint8_t* flags = nullptr;
};

template <class T>
void attend(ThreadPool& pool, const AttentionPlan& plan, const AttentionArrays<T>& in, T* out,
            T* logs);

/// What the results depend on beside the operands, and the results: null for one that nobody wants.
template <class T>
struct AttentionSlopes {
  const T* logs = nullptr;
  const T* g = nullptr;
  const T* less = nullptr;
  T* dq = nullptr;
  T* dk = nullptr;
  T* dv = nullptr;
};

template <class T>
void attend_grad(ThreadPool& pool, const AttentionPlan& plan, const AttentionArrays<T>& in,
                 const AttentionSlopes<T>& with);

}  // namespace segfuse::engine
