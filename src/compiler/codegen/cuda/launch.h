#pragma once
// How a kernel printed in CUDA C++ is launched.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "compiler/loop/kernel.h"

namespace segfuse::compiler::cuda {

using SizeOf = std::function<std::int64_t(const ir::Extent&)>;

/// What a launch needs besides the text.
struct CudaLaunch {
  unsigned threads = 32;      ///< blockDim.x
  unsigned rows_at_once = 1;  ///< blockDim.y
  unsigned strip = 1;         ///< outer iterations of a lane
  std::size_t globals = 0;    ///< pointers in the argument
  std::vector<ir::Extent> sizes;
  ir::Extent outer_count;
  struct RowBuffer {
    ir::Extent elements;
    std::size_t element_bytes = 0;
  };
  std::size_t state_bytes = 0;  ///< shared memory for reductions, of one outer iteration
  std::vector<RowBuffer> scratch;

  /// gridDim.x; blocks take further outer iterations when there are more.
  unsigned blocks(const SizeOf& size) const;
  std::size_t shared_bytes(const SizeOf& size) const;
  /// The kernel's argument: the addresses of the global buffers in their order, the sizes, the
  /// outer count, the address of the status word (an int that is 0 before). 8 bytes each.
  std::vector<std::uint64_t> argument(std::span<void* const> buffers, const SizeOf& size,
                                      int* status) const;
};
CudaLaunch cuda_launch(const loop::Kernel& kernel);

}  // namespace segfuse::compiler::cuda
