#pragma once
// The semi-Markov CRF of semicrf.h on a CUDA GPU: the same model, shapes and results, with views of
// device memory and everything enqueued on the caller's stream.
//
// Stream order: a call reads its inputs and writes its outputs in the order of `stream` (a CUstream
// or cudaStream_t; null is the legacy default stream). It returns without waiting for the device,
// so inputs and outputs must stay allocated until the stream has passed it. Workspaces come from
// the heap that the device's programs use (docs/memory.md), in the order of the stream; while a
// stream is captured, from the device's pool. CUDA's per-thread default stream is refused: it is a
// different stream in each thread. A stream of calls is not destroyed while the device is used:
// its memory is reused in its order. Nothing is read back: what the device finds wrong in the
// numbers (NaN, +inf, a gold segmentation that does not tile its row, a length out of range) is
// kept, and thrown by the next check(). Wrong shapes are a UsageError at once; a device that fails
// is a DeviceError.
//
// Scores are stored as float, double, Half or BFloat16; arithmetic is in double. Kernels are
// compiled for the sizes (C, K) and the device by NVRTC at first use and cached on disk; B and T
// are free. The same inputs give the same bits on devices of one kind, and the results for a row
// depend on that row alone: not on the rows beside it or the frames they are padded to, nor on
// what else is requested. Gradients of shared inputs are sums over rows.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "segfuse/context.h"
#include "segfuse/error.h"
#include "segfuse/semicrf_tools.h"

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
  int lanes_per_class =
      0;  ///< lanes per class in passes: a power of two up to 32; 0: chosen automatically
  int blocks_per_pass = 0;  ///< blocks of a cluster that share a pass in registers, where there are
                            ///< clusters; 0: chosen automatically, 1: none
  int durations_per_lane = 0;  ///< with lanes_per_class: those in registers; 0: all
  /// Cut long rows in time and run the parts at once. Parts that do not fit together are found
  /// and redone, so results are those of the uncut pass to rounding; best paths are the same.
  bool chunked = true;
  /// Several blocks share a pass that is too much for one. False: one block each, for comparison.
  bool teams = true;
  std::int64_t warm_up = 0;  ///< frames by which parts overlap, at least K; 0: chosen (2 K)
  Context context = {};      ///< whose folder of compiled code is used
};

/// One call at a time; several engines may share a device.
class CudaEngine {
 public:
  /// On the CUDA device with this ordinal. DeviceError says what is missing: driver, NVRTC, device.
  explicit CudaEngine(int device = 0, CudaOptions options = {});
  /// "NVIDIA H200, NVRTC 13.0", or, if no device can be used, a message that starts with "CUDA:".
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
  /// segment and is a fault. `frames` (B), where wanted, gets the frames of each row: its length,
  /// or those before its first `ignore`. Int is std::int32_t or std::int64_t.
  template <class Int>
  void segmentations_from_labels(const View<const Int, 2>& labels, const Lengths& lengths,
                                 const LabelRules& rules, const DeviceSegmentations& out,
                                 const View<std::int64_t, 1>& frames = {}, void* stream = nullptr);

  /// The same where a segment begins at a row's first frame and wherever begins[b, t] is not 0. A
  /// label that changes elsewhere is a fault.
  template <class Int>
  void segmentations_from_marked_labels(const View<const Int, 2>& labels,
                                        const View<const std::uint8_t, 2>& begins,
                                        const Lengths& lengths, const LabelRules& rules,
                                        const DeviceSegmentations& out,
                                        const View<std::int64_t, 1>& frames = {},
                                        void* stream = nullptr);

  /// Waits for the stream; throws the DataError of the first fault that a call since the last
  /// check() met, naming input, batch, time and class.
  void check(void* stream = nullptr);

  /// Runs calls of this engine without enqueuing anything or looking at addresses: compiles their
  /// kernels, and returns the bytes of the largest workspace that one of them takes.
  std::size_t measure(const std::function<void()>& calls);

  struct State;  ///< the library's own

 private:
  friend struct OverDevice;
  friend class SplitCudaEngine;
  explicit CudaEngine(std::unique_ptr<State> state);
  StatePointer<std::unique_ptr<State>, "CudaEngine"> state_;
};

/// Frames of a row, from `begin` to before `end`.
struct FrameSpan {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// The shape of a whole row: its sizes, and which scores it has.
struct RowShape {
  std::int64_t frames = 0;
  std::int64_t classes = 0;
  std::int64_t max_duration = 0;
  bool edges = false;        ///< start or end scores, or both
  bool by_duration = false;  ///< transitions (K, C, C)
};

/// The partition of one long row over several devices, with its gradients. It has the bits of a
/// CudaEngine with the whole row on one device of that kind. The row is divided in time. Devices
/// exchange data through the host: a few numbers for each chunk of the passes, and the partial sums
/// of gradients. One call at a time.
class SplitCudaEngine {
 public:
  /// On the CUDA devices with these ordinals, which must be of one kind.
  explicit SplitCudaEngine(const std::vector<int>& devices, CudaOptions options = {});
  ~SplitCudaEngine();
  SplitCudaEngine(SplitCudaEngine&&) noexcept;
  SplitCudaEngine& operator=(SplitCudaEngine&&) noexcept;

  /// The part of a row that a device holds.
  struct Share {
    FrameSpan reads;   ///< frames whose scores it reads: its own and some around them
    FrameSpan writes;  ///< its own frames, whose gradients it writes; these tile the row
  };
  /// One share for each device. If a row cannot be split, it belongs to the first one, and the
  /// others' ranges are empty. Such are rows that are too short, transitions by duration, and sizes
  /// for which C^2 or K C times the row's slices exceeds 2^25; there are at most 2048 slices
  /// (docs/semicrf_engines.md).
  std::vector<Share> shares(const RowShape& row) const;

  struct Partition {
    double log_partition = 0.0;
    RowStatus status = RowStatus::kOk;
    bool split = false;  ///< false: it was computed on the first device
  };
  /// log Z of the row. `parts` has for each device emission, start and end (1, n, C) of the frames
  /// that it reads, and all other scores, without lengths. `gradients` is empty or has emission,
  /// start and end (1, n, C) of the frames that each device writes, and the others on the first
  /// device; all contiguous. `streams` has a stream of each device, or is empty: their legacy
  /// default streams. Waits for the result. If parts of the row do not agree, or the row leaves the
  /// range of doubles, it is gathered and computed on the first device: the same bits, but slower.
  /// Throws DataError like check().
  template <class T>
  Partition log_partition(const RowShape& row, const std::vector<Potentials<T>>& parts,
                          const std::vector<Gradients<T>>& gradients = {},
                          const std::vector<void*>& streams = {});

 private:
  friend struct OverDevice;
  struct State;
  explicit SplitCudaEngine(std::unique_ptr<State> state);
  StatePointer<std::unique_ptr<State>, "SplitCudaEngine"> state_;
};

// The further inference of semicrf_tools.h: the same names, meanings and tie rules.
// What only the device can know (scores, lengths, known labels and boundaries, limits on durations,
// the values of a tail) is checked there, and the next check() throws it as a DataError.
//
// log_partition, partial_loss and posteriors go through a CudaEngine where the scope has no tail
// and no boundaries, else, as all other functions, through passes in the log domain, in double, one
// block a row: O(T (C^2 + K C)) exponentials, O(T K C^2) where transitions depend on durations.
// Workspaces hold a few doubles for each frame and label, and C^2 + K C (K C^2 where transitions
// depend on durations) for each row.

/// Several segmentations of each row, at most n, in device memory, to be written. All contiguous.
/// Segmentations that need more segments than there is room for are not written: a fault.
struct DeviceSegmentationLists {
  View<std::int64_t, 1> list_pointer;  ///< (B+1)
  View<std::int64_t, 1> row_pointer;   ///< (B n + 1); the first list_pointer[B] + 1 are written
  View<std::int32_t, 1> start;         ///< (M) for M segments in all; the first are written
  View<std::int32_t, 1> duration;      ///< (M)
  View<std::int32_t, 1> label;         ///< (M)
  View<double, 1> score;               ///< (B n) or empty; the first list_pointer[B] are written
};

/// Further inference on a device. One call at a time. T is float or double.
class CudaInference {
 public:
  /// On the CUDA device with this ordinal; as CudaEngine.
  explicit CudaInference(int device = 0, CudaOptions options = {});
  ~CudaInference();
  CudaInference(CudaInference&&) noexcept;
  CudaInference& operator=(CudaInference&&) noexcept;

  /// As Inference::log_partition.
  template <class T>
  void log_partition(const Potentials<T>& potentials, const Scope& scope,
                     const PartitionResult& result, const Gradients<T>& gradients = {},
                     const View<double, 1>& tail_gradient = {},
                     const View<const double, 1>& weights = {}, void* stream = nullptr);

  /// As Inference::partial_loss.
  template <class T>
  void partial_loss(const Potentials<T>& potentials, const Scope& scope, const LossResult& result,
                    const Gradients<T>& gradients = {}, const View<double, 1>& tail_gradient = {},
                    const View<const double, 1>& weights = {}, void* stream = nullptr);

  /// As Inference::posteriors.
  template <class T>
  void posteriors(const Potentials<T>& potentials, const Scope& scope, const Posteriors<T>& result,
                  void* stream = nullptr);

  /// As Inference::sample. The random numbers are the CPU's, and choices are offered in the same
  /// order: a draw is the CPU's unless a number falls between two values of one probability, about
  /// 1e-15 apart, that the two machines' exponentials give.
  template <class T>
  void sample(const Potentials<T>& potentials, const Scope& scope, std::int64_t n,
              std::uint64_t seed, const DeviceSegmentationLists& drawn, std::int64_t first_row = 0,
              void* stream = nullptr);

  /// As Inference::k_best. Every state keeps its n best ways: time O(T n (K + C) C / 32) by a warp,
  /// memory 24 B T n C bytes.
  template <class T>
  void k_best(const Potentials<T>& potentials, const Scope& scope, std::int64_t n,
              const DeviceSegmentationLists& best, void* stream = nullptr);

  /// As Inference::cross_entropy.
  template <class T>
  void cross_entropy(const Potentials<T>& p, const Potentials<T>& q, const View<double, 1>& result,
                     const View<RowStatus, 1>& status = {}, void* stream = nullptr);

  /// As Inference::kl.
  template <class T>
  void kl(const Potentials<T>& p, const Potentials<T>& q, const View<double, 1>& result,
          const View<RowStatus, 1>& status = {}, void* stream = nullptr);

  /// As Inference::boundary_within. Needs a workspace of B T (2 tolerance + 1) doubles.
  template <class T>
  void boundary_within(const Potentials<T>& potentials, const Scope& scope, std::int64_t tolerance,
                       const View<T, 2>& probability, void* stream = nullptr);

  /// As Inference::expected_durations.
  template <class T>
  void expected_durations(const Potentials<T>& potentials, const Scope& scope,
                          const View<T, 2>& counts, void* stream = nullptr);

  /// As Inference::max_marginal.
  template <class T>
  void max_marginal(const Potentials<T>& potentials, const Scope& scope,
                    const View<std::int32_t, 2>& labels, std::int32_t ignore = -100,
                    void* stream = nullptr);

  /// Waits for the stream; throws the DataError of the first fault since the last check().
  void check(void* stream = nullptr);

 private:
  friend struct OverDevice;
  struct State;
  explicit CudaInference(std::unique_ptr<State> state);
  StatePointer<std::unique_ptr<State>, "CudaInference"> state_;
};

/// Decodes a row that arrives in pieces, as OnlineDecoder, on one device and one stream: the same
/// algorithm, ties and times of decision, whatever the pieces. Memory: 2 K + 64 frames, and three
/// ints for each undecided frame and label, but at least twice as many as the largest piece.
class CudaOnlineDecoder {
 public:
  /// `shared` and `tail` are in device memory, and are copied in stream order.
  template <class T>
  CudaOnlineDecoder(int device, const Potentials<T>& shared, const OnlineOptions& options = {},
                    const View<const double, 1>& tail = {}, void* stream = nullptr,
                    const Context& context = {});
  ~CudaOnlineDecoder();
  CudaOnlineDecoder(CudaOnlineDecoder&&) noexcept;
  CudaOnlineDecoder& operator=(CudaOnlineDecoder&&) noexcept;

  /// Takes the next n frames, (n, C) each, of device memory. Waits for the stream only when the
  /// room for undecided frames is used up, each time they have grown by half of it.
  template <class T>
  void push(const View<const T, 2>& emission, const View<const T, 2>& start = {},
            const View<const T, 2>& end = {});

  /// Waits for the stream; appends the segments that were decided since the last call.
  void take(Segmentations& decided);
  /// Waits for the stream; as OnlineDecoder::finish.
  RowStatus finish(Segmentations& decided);

  std::int64_t frames() const;    ///< that were pushed
  std::int64_t decided_frames();  ///< that the decided segments cover; waits, as those below
  double log_partition();         ///< of the row, if it ended now
  double best_score();            ///< of the best path, if the row ended now

  /// Waits for the stream; throws the DataError of the first fault since the last check().
  void check();

 private:
  friend struct OverDevice;
  struct State;
  explicit CudaOnlineDecoder(std::unique_ptr<State> state);
  StatePointer<std::unique_ptr<State>, "CudaOnlineDecoder"> state_;
};

}  // namespace segfuse::semicrf
