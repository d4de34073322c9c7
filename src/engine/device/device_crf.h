#pragma once
// The semi-Markov CRF operations of the IR over the CUDA engine of segfuse/semicrf_cuda.h, with
// workspaces that a plan has set aside.

#include <memory>
#include <optional>
#include <vector>

#include "engine/device/accelerator.h"
#include "engine/exec/array.h"
#include "segfuse/semicrf_cuda.h"

namespace segfuse::engine {

/// Sizes of a loss.
struct CrfSizes {
  DType dtype = DType::kF32;  ///< of the scores: f32 or f64
  std::int64_t batch = 0, frames = 0, classes = 0, max_duration = 0;
};

/// Memory that a call needs besides operands and results, in bytes.
struct CrfMemory {
  std::size_t row_pointer = 0;
  std::size_t segments = 0;  ///< each of start, duration and label
  std::size_t values = 0;    ///< a double a row
  std::size_t workspace = 0;
};

/// Addresses of that memory.
struct CrfScratch {
  std::byte* row_pointer = nullptr;
  std::byte* start = nullptr;
  std::byte* duration = nullptr;
  std::byte* label = nullptr;
  std::byte* values = nullptr;
  std::byte* workspace = nullptr;
};

class DeviceCrf {
 public:
  DeviceCrf(Accelerator& accelerator, const Context& context);
  ~DeviceCrf();
  DeviceCrf(const DeviceCrf&) = delete;
  DeviceCrf& operator=(const DeviceCrf&) = delete;

  /// What loss() (or loss_grad()) with such operands needs. Compiles the kernels. The arrays'
  /// addresses are not looked at; those of unwanted gradients are null.
  CrfMemory measure_loss(std::span<const Array> operands, const Array& loss);
  CrfMemory measure_loss_grad(std::span<const Array> operands, std::span<const Array> gradients);

  /// Operands and results as ops.def says, in device memory. Enqueues; what the device finds wrong
  /// is thrown by check().
  void loss(std::span<const Array> operands, const Array& loss, const CrfScratch& scratch,
            runtime::StreamHandle stream);
  /// A gradient without data is not wanted.
  void loss_grad(std::span<const Array> operands, std::span<const Array> gradients,
                 const CrfScratch& scratch, runtime::StreamHandle stream);

  /// Waits for the stream. DataError of the first fault since the last check().
  void check(runtime::StreamHandle stream);

 private:
  class Memory;
  /// Made when a program that has a CRF is planned.
  semicrf::CudaEngine& engine();
  template <class Call>
  CrfMemory measure(std::span<const Array> operands, const Call& call);
  template <class T>
  void loss_of(std::span<const Array> operands, const Array& loss, const CrfScratch& scratch,
               runtime::StreamHandle stream);
  template <class T>
  void loss_grad_of(std::span<const Array> operands, std::span<const Array> gradients,
                    const CrfScratch& scratch, runtime::StreamHandle stream);
  semicrf::DeviceSegmentations gold(std::span<const Array> operands, std::size_t scores,
                                    const CrfScratch& scratch, runtime::StreamHandle stream);
  void convert(DType from, DType to, const void* source, void* target, std::int64_t count,
               runtime::StreamHandle stream);
  CrfMemory memory_for(std::span<const Array> operands) const;

  Accelerator& accelerator_;
  semicrf::CudaOptions options_;
  std::shared_ptr<Memory> memory_;
  std::optional<semicrf::CudaEngine> engine_;
};

}  // namespace segfuse::engine
