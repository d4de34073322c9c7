#pragma once
// The kernels of attention on a GPU, and their launches: docs/decisions/190.
//
// A block has a tile of rows of one batch and goes over tiles of the other side in their order, so
// each result is one sum in an order that sizes alone decide. Gradients take two kernels, for
// queries over keys and for keys over queries, because a sum over blocks would need an order.

#include <cstdint>

#include "engine/attention/attention.h"
#include "engine/device/library_kernels.h"

namespace segfuse::engine {

enum class AttentionKernel { kResult, kLogarithms, kQueries, kKeys };

/// How a kernel is laid out: kernels/common.cuh says what the numbers are. `resident`: blocks of a
/// multiprocessor that registers are kept for. Tensor cores (bf16) have 8 row lanes, even rows and
/// columns that are multiples of 4; `held`: own rows stay in registers.
struct AttentionTiles {
  int warps = 4;
  int row_lanes = 4;
  int rows = 8;
  int columns = 8;
  int parts = 1;
  int resident = 1;
  int held = 0;
  bool operator==(const AttentionTiles&) const = default;
};

/// Shared memory of a block.
std::size_t attention_shared_bytes(AttentionKernel kernel, DType dtype, std::int64_t inner,
                                   std::int64_t outer, const AttentionTiles& tiles);
/// The tiles for a device whose blocks may have so much shared memory.
AttentionTiles attention_tiles(AttentionKernel kernel, DType dtype, std::int64_t inner,
                               std::int64_t outer, std::size_t shared_bytes);

/// The addresses of a launch; 0 for one that is not there.
enum class AttentionAddress : std::size_t {
  kQ,
  kK,
  kV,
  kG,
  kBias,
  kMask,
  kLogs,
  kLess,
  kLog,
  kRest,
  kRowFlags,
  kColumnFlags,
  kFirst,
  kSecond,
  kCount
};

/// `aligned`: q, k, v and g begin at multiples of 16 bytes.
LibraryLaunch attention_launch(AttentionKernel kernel, DType dtype, const AttentionPlan& plan,
                               bool aligned, const AttentionTiles& tiles);

/// Rows of a flag.
inline constexpr std::int64_t kFlagRows = 32;
/// By kFlagRows rows of each batch, whether up to three stacks of matrices with so many rows are
/// finite. Addresses: the matrices, 0 for one that is not there, and the flags.
struct FiniteMatrix {
  const AttentionMatrices* matrices = nullptr;
  std::int64_t width = 0;
  bool sums = false;  ///< of the type of sums: f32 where the operands are bf16
};
LibraryLaunch attention_finite_launch(DType dtype, const AttentionPlan& plan, std::int64_t rows,
                                      const std::vector<FiniteMatrix>& matrices);

}  // namespace segfuse::engine
