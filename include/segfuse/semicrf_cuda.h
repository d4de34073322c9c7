#pragma once
// The semi-Markov CRF of semicrf.h on a CUDA GPU: the same model, shapes and results, with views of
// device memory and everything enqueued on the caller's stream.
//
// Stream order: a call reads its inputs and writes its outputs in the order of `stream` (a CUstream
// or cudaStream_t; null is the legacy default stream). It returns without waiting for the device,
// so inputs and outputs must stay allocated until the stream has passed it. Workspaces come from a
// stream-ordered pool. Nothing is read back: what the device finds wrong in the numbers (NaN, +inf,
// a gold segmentation that does not tile its row, a length out of range) is kept, and thrown by the
// next check(). Wrong shapes are a UsageError at once; a device that fails is a DeviceError.
//
// Scores are stored as float, double, Half or BFloat16; arithmetic is in double. Kernels are
// compiled for the sizes (C, K) and the device by NVRTC at first use and cached on disk; B and T
// are free. The same inputs give the same bits on devices of one kind.

#include <memory>
#include <string>

#include "segfuse/semicrf.h"

namespace segfuse::runtime {
class Gpu;
}

namespace segfuse::semicrf {

/// Packed segmentations in device memory, to be written: room for B * T segments. All contiguous.
struct DeviceSegmentations {
  View<std::int64_t, 1> row_pointer;  ///< (B+1)
  View<std::int32_t, 1> start;        ///< (B*T); the first row_pointer[B] are written
  View<std::int32_t, 1> duration;     ///< (B*T)
  View<std::int32_t, 1> label;        ///< (B*T)
};

struct CudaOptions {
  Algorithm algorithm = Algorithm::kFast;  ///< kReference: the log-domain kernels for every row
  int lanes_per_class = 0;  ///< how passes are laid out: a power of two up to 32; 0: chosen
  /// Cut few long rows in time and run the parts at once. Parts that do not fit together are found
  /// and redone in one, so results are those of the uncut pass to rounding.
  bool chunked = true;
  std::int64_t warm_up = 0;  ///< frames by which parts overlap, at least K; 0: chosen (4 K)
};

/// One call at a time; several engines may share a device.
class CudaEngine {
 public:
  /// On the CUDA device with this ordinal. DeviceError says what is missing: driver, NVRTC, device.
  explicit CudaEngine(int device = 0, CudaOptions options = {});
  /// On any implementation of a GPU.
  explicit CudaEngine(std::shared_ptr<runtime::Gpu> gpu, CudaOptions options = {});
  /// "NVIDIA H200, NVRTC 13.0", or the sentence that says what is missing, which begins "CUDA:".
  static std::string describe_device(int device = 0);
  ~CudaEngine();
  CudaEngine(CudaEngine&&) noexcept;
  CudaEngine& operator=(CudaEngine&&) noexcept;

  /// As Engine::log_partition; all views, lengths and weights included, are of device memory.
  template <class T>
  void log_partition(const Potentials<T>& potentials, const PartitionResult& result,
                     const Gradients<T>& gradients = {}, const View<const double, 1>& weights = {},
                     void* stream = nullptr);

  /// As Engine::loss. The gold segmentations' views have the extents of what they hold: start,
  /// duration and label one of at least row_pointer[B] elements.
  template <class T>
  void loss(const Potentials<T>& potentials, const SegmentationsView& gold,
            const LossResult& result, const Gradients<T>& gradients = {},
            const View<const double, 1>& weights = {}, void* stream = nullptr);

  /// As Engine::posteriors.
  template <class T>
  void posteriors(const Potentials<T>& potentials, const Posteriors<T>& result,
                  void* stream = nullptr);

  /// As Engine::viterbi.
  template <class T>
  void viterbi(const Potentials<T>& potentials, const DeviceSegmentations& best,
               const ViterbiResult& result = {}, void* stream = nullptr);

  /// As the function of this name: segments from labels per frame (B, T), in device memory. A row
  /// with a label out of place, or with a run that is too long and must not be split, gets no
  /// segment and is a fault. Int is std::int32_t or std::int64_t.
  template <class Int>
  void segmentations_from_labels(const View<const Int, 2>& labels, const Lengths& lengths,
                                 const LabelRules& rules, const DeviceSegmentations& out,
                                 void* stream = nullptr);

  /// Waits for the stream; throws the DataError of the first fault that a call since the last
  /// check() met, naming input, batch, time and class.
  void check(void* stream = nullptr);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace segfuse::semicrf
