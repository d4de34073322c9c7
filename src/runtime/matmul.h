#pragma once
// Matrix products that a device's library has prepared.

#include <cstddef>
#include <cstdint>

#include "runtime/device.h"
#include "segfuse/tensor.h"

namespace segfuse::runtime {

/// One operand of a matrix product in device memory.
struct GpuMatrix {
  std::int64_t batch_stride = 0;  ///< elements between matrices; 0: one for all
  std::int64_t leading = 1;       ///< elements between rows (between columns when by_columns)
  bool by_columns = false;        ///< neighbours in a column are neighbours in memory
  std::uint32_t alignment = 256;  ///< of the first element, in bytes
};

/// out = a b for each of a batch: a is (m, k), b (k, n), out (m, n) by rows without gaps. No side
/// is empty.
struct GpuProduct {
  DType dtype = DType::kF32;  ///< a float; halves are summed in f32
  std::int64_t batch = 1, m = 1, n = 1, k = 1;
  GpuMatrix a, b;
  std::uint32_t out_alignment = 256;
  bool tf32 = false;  ///< a library may round f32 operands to TF32; sums and results are f32
};

/// A product that a library has prepared. The same bits for the same operands.
class GpuMatmul {
 public:
  virtual ~GpuMatmul() = default;
  virtual std::size_t workspace_bytes() const = 0;
  /// Enqueues it; `workspace` is aligned to 256 bytes.
  virtual void run(StreamHandle stream, const void* a, const void* b, void* out,
                   void* workspace) const = 0;
};

}  // namespace segfuse::runtime
