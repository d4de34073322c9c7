#pragma once
// Semi-Markov conditional random fields: exact likelihoods, gradients, posteriors and decoding over
// every segmentation of a sequence. docs/semicrf.md has the formulas.
//
// A segmentation of a row of length L is a list of segments (start s, duration d, label y) that
// tile [0, L), 1 <= d <= K, 0 <= y < C. Its score is
//
//   initial[y_1] + final[y_n] + sum_{i>=2} transition[y_{i-1}, y_i]
//   + sum_i ( sum_{t=s_i}^{s_i+d_i-1} emission[t, y_i] + duration[d_i - 1, y_i]
//             + start[s_i, y_i] + end[s_i + d_i - 1, y_i] + segment_scores[s_i, d_i - 1, y_i] )
//   + sum_{i>=2} transition_scores[s_i, y_{i-1}, y_i]
//
// and its probability exp(score - log_partition). Letters: B rows, T frames, K longest duration,
// C classes. Scores are natural logarithms; -inf forbids. NaN or +inf inside a row is a DataError
// that names batch, time and class. Frames at or past a row's length are never read; gradients and
// posteriors there are 0. A row of length 0 has one segmentation, the empty one, of score 0.
// Wrong shapes are a UsageError. After an error the outputs are unspecified.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "segfuse/context.h"
#include "segfuse/error.h"

namespace segfuse::semicrf {

/// Elements of the caller's memory: a pointer, N extents, N strides (in elements, any sign or 0).
/// Owns nothing. A default view has no data: an absent input, or an output that is not requested.
template <class T, int N>
class View {
 public:
  using Axes = std::array<std::int64_t, static_cast<std::size_t>(N)>;

  View() = default;
  /// Row-major and contiguous.
  View(T* data, Axes extents) : data_(data), extents_(extents) {
    std::int64_t stride = 1;
    for (std::size_t axis = extents.size(); axis-- > 0;) {
      strides_[axis] = stride;
      stride *= extents[axis];
    }
  }
  View(T* data, Axes extents, Axes strides) : data_(data), extents_(extents), strides_(strides) {}
  /// All of a span or a vector (N = 1).
  template <class Range>
    requires(N == 1 && std::is_convertible_v<Range&, std::span<T>>)
  View(Range&& range)  // NOLINT: a list of numbers is a view
      : View(std::span<T>(range).data(), Axes{static_cast<std::int64_t>(range.size())}) {}
  /// A view of T is also a view of const T.
  template <class U>
    requires(std::is_same_v<const U, T> && !std::is_same_v<U, T>)
  View(const View<U, N>& other)  // NOLINT
      : View(other.data(), other.extents(), other.strides()) {}

  bool empty() const noexcept { return data_ == nullptr; }
  T* data() const noexcept { return data_; }
  const Axes& extents() const noexcept { return extents_; }
  const Axes& strides() const noexcept { return strides_; }
  std::int64_t extent(int axis) const { return extents_[static_cast<std::size_t>(axis)]; }
  std::int64_t stride(int axis) const { return strides_[static_cast<std::size_t>(axis)]; }

  /// The element at N indices; not checked.
  template <class... Index>
    requires(sizeof...(Index) == static_cast<std::size_t>(N))
  T& operator()(Index... index) const {
    std::size_t axis = 0;
    std::int64_t offset = 0;
    ((offset += strides_[axis++] * static_cast<std::int64_t>(index)), ...);
    return data_[offset];
  }

 private:
  T* data_ = nullptr;
  Axes extents_{};
  Axes strides_{};
};

/// The same numbers with a leading axis of one: how a (C, C) transition is passed.
template <class T, int N>
View<T, N + 1> with_leading_axis(const View<T, N>& view) {
  typename View<T, N + 1>::Axes extents{1};
  typename View<T, N + 1>::Axes strides{0};
  for (std::size_t axis = 0; axis < view.extents().size(); ++axis) {
    extents[axis + 1] = view.extents()[axis];
    strides[axis + 1] = view.strides()[axis];
  }
  return {view.data(), extents, strides};
}

/// Row lengths (B), 0 <= length <= T, as either integer type. Empty: every row has T frames.
class Lengths {
 public:
  Lengths() = default;
  Lengths(View<const std::int64_t, 1> values) : wide_(values) {}    // NOLINT
  Lengths(View<const std::int32_t, 1> values) : narrow_(values) {}  // NOLINT
  bool empty() const noexcept { return wide_.empty() && narrow_.empty(); }
  std::int64_t size() const { return wide_.empty() ? narrow_.extent(0) : wide_.extent(0); }
  std::int64_t operator[](std::int64_t row) const {
    return wide_.empty() ? narrow_(row) : wide_(row);
  }
  /// The view that was passed; the other one is empty.
  const View<const std::int64_t, 1>& wide() const noexcept { return wide_; }
  const View<const std::int32_t, 1>& narrow() const noexcept { return narrow_; }

 private:
  View<const std::int64_t, 1> wide_;
  View<const std::int32_t, 1> narrow_;
};

/// Numbers stored in 16 bits: IEEE half precision. Only storage; all arithmetic is in double.
struct Half {
  std::uint16_t bits = 0;
  Half() = default;
  explicit Half(double value);  ///< to nearest even, by way of a float as on GPUs
  explicit operator double() const {
    const std::uint32_t magnitude = (bits & 0x7FFFU) << 13;
    const bool finite = (bits & 0x7C00U) != 0x7C00U;
    const float value = finite ? std::bit_cast<float>(magnitude) * 0x1p112F
                               : std::bit_cast<float>(magnitude | 0x7F800000U);
    return (bits & 0x8000U) != 0 ? -value : value;
  }
};

/// The same with the upper 16 bits of a float.
struct BFloat16 {
  std::uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(double value);  ///< to nearest even, by way of a float as on GPUs
  explicit operator double() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

/// The inputs of a model over a batch. T is float or double, for Engine and CudaEngine also Half or
/// BFloat16 (how the numbers are stored; sums are carried in double). Shapes are checked on every
/// call.
template <class T>
struct Potentials {
  View<const T, 3> emission;  ///< (B, T, C) scores of a frame under a label
  View<const T, 3>
      transition;             ///< (1, C, C) [., from, to]; (K, C, C): by the new segment's duration
  View<const T, 2> duration;  ///< (K, C); row d-1 is duration d
  View<const T, 1> initial;   ///< (C) or empty (0): label of the first segment
  View<const T, 1> final;     ///< (C) or empty (0): label of the last segment
  View<const T, 3> start;     ///< (B, T, C) or empty (0): a segment's first frame
  View<const T, 3> end;       ///< (B, T, C) or empty (0): a segment's last frame
  Lengths lengths;            ///< (B) or empty (T)
  /// (B, T, K, C) or empty (0): [., s, d-1, c] is for a segment of d frames that starts at s.
  /// Entries that reach beyond the row's length are never read.
  View<const T, 4> segment_scores{};
  /// (B, T, C, C), or (1, T, C, C) for all rows, or empty (0): [., s, from, to] is for a change at
  /// a segment that starts at s > 0. Both work on the CPU only; docs/semicrf.md lists the functions
  /// that take them.
  View<const T, 4> transition_scores{};
};

/// Derivatives of sum_b weight_b * value_b by each input, overwriting the former content; an empty
/// view is not computed. Shapes as in Potentials (transition with the same leading extent).
/// emission, start, end, segment_scores and transition_scores (B, T, C, C) hold each row's own
/// part; the others sum over rows, in row order, in double.
template <class T>
struct Gradients {
  View<T, 3> emission;
  View<T, 3> transition;
  View<T, 2> duration;
  View<T, 1> initial;
  View<T, 1> final;
  View<T, 3> start;
  View<T, 3> end;
  View<T, 4> segment_scores{};
  View<T, 4> transition_scores{};
};

/// The outcome for a row.
enum class RowStatus : std::uint8_t {
  kOk = 0,
  kNoPath = 1,          ///< no segmentation has a finite score: log_partition -inf, gradient 0
  kImpossibleGold = 2,  ///< the gold score is -inf: loss +inf, gradient 0
};

/// Packed segmentations of B rows, borrowed. Row b owns segments row_pointer[b] .. [b+1].
struct SegmentationsView {
  View<const std::int64_t, 1> row_pointer;  ///< (B+1), not decreasing, first element 0
  View<const std::int32_t, 1> start;        ///< (n) first frame
  View<const std::int32_t, 1> duration;     ///< (n) frames, at least 1
  View<const std::int32_t, 1> label;        ///< (n)
};

/// Packed segmentations of B rows, owned.
struct Segmentations {
  std::vector<std::int64_t> row_pointer{0};
  std::vector<std::int32_t> start;
  std::vector<std::int32_t> duration;
  std::vector<std::int32_t> label;

  std::int64_t rows() const {
    return row_pointer.empty() ? 0 : static_cast<std::int64_t>(row_pointer.size()) - 1;
  }
  std::int64_t segments() const { return static_cast<std::int64_t>(start.size()); }
  void append(std::int64_t first_frame, std::int64_t frames, std::int64_t segment_label);
  /// Ends the current row; segments appended next belong to the next one.
  void end_row();
  void clear();
  SegmentationsView view() const { return {row_pointer, start, duration, label}; }
  operator SegmentationsView() const { return view(); }  // NOLINT
  bool operator==(const Segmentations&) const = default;
};

/// What to do with a run of equal labels longer than max_duration.
enum class LongRuns {
  kError,  ///< DataError that names the row and frame
  kSplit,  ///< the fewest segments that fit, lengths differing by at most one, longer ones first
};

struct LabelRules {
  std::int64_t max_duration = 0;  ///< K
  std::int64_t classes = 0;       ///< C
  std::int64_t ignore = -100;     ///< marks padding after a row's last frame
  LongRuns long_runs = LongRuns::kError;
};

/// Segments from per-frame labels (B, T): the maximal runs of equal labels. Without lengths a row
/// ends at the first `ignore`. A label outside [0, classes) inside a row (an `ignore` included), or
/// one other than `ignore` after an `ignore`, is a DataError. Int is std::int32_t or std::int64_t.
template <class Int>
Segmentations segmentations_from_labels(const View<const Int, 2>& labels, const Lengths& lengths,
                                        const LabelRules& rules);

/// The inverse: fills labels (B, T) with each frame's label, and `ignore` after the last segment.
template <class Int>
void labels_from_segmentations(const SegmentationsView& segmentations, const View<Int, 2>& labels,
                               std::type_identity_t<Int> ignore = -100);

/// A semi-Markov chain to draw from, as log scores that need no normalisation.
struct Prior {
  View<const double, 1> initial;     ///< (C); empty: all labels alike
  View<const double, 2> transition;  ///< (C, C) [from, to]
  View<const double, 2> duration;    ///< (K, C)
};

/// Appends one row to `out`: label_1 ~ softmax(initial), d_i ~ softmax(duration[:, label_i]),
/// label_{i+1} ~ softmax(transition[label_i, :]); whole segments until at least `min_frames`
/// frames. A function of (prior, min_frames, seed, stream) alone. UsageError when a drawn label has
/// no possible duration or successor.
void sample_prior(const Prior& prior, std::int64_t min_frames, std::uint64_t seed,
                  std::uint64_t stream, Segmentations& out);

/// Per-row outputs of Engine::log_partition; each (B) or empty.
struct PartitionResult {
  View<double, 1> log_partition;
  View<RowStatus, 1> status;
};

/// Per-row outputs of Engine::loss; each (B) or empty.
struct LossResult {
  View<double, 1> loss;  ///< log_partition - score, never negative
  View<double, 1> log_partition;
  View<double, 1> score;  ///< of the gold segmentation
  View<RowStatus, 1> status;
};

/// Per-row outputs of Engine::viterbi; each (B) or empty.
struct ViterbiResult {
  View<double, 1> score;  ///< of the best segmentation; -inf when there is none
  View<RowStatus, 1> status;
};

/// Outputs of Engine::posteriors; each may be empty. Rows without a path hold 0 (entropy too).
template <class T>
struct Posteriors {
  View<T, 3> label;         ///< (B, T, C) P(frame t has label c); sums to 1 over c inside the row
  View<T, 3> start;         ///< (B, T, C) P(a segment of label c starts at t)
  View<T, 3> end;           ///< (B, T, C) P(t is the last frame of a segment of label c)
  View<T, 2> boundary;      ///< (B, T) P(some segment starts at t); 1 at t = 0
  View<T, 3> duration;      ///< (B, K, C) expected number of segments of duration k+1 and label c
  View<double, 1> entropy;  ///< (B) of the distribution over segmentations, in nats
  View<double, 1> log_partition;  ///< (B)
  View<RowStatus, 1> status;      ///< (B)
};

enum class Algorithm {
  kFast,       ///< O(T (C^2 + K C)) a row; O(T K C^2) with duration-dependent transitions
  kReference,  ///< the plain recursion, O(T K C^2), double throughout: slow, for comparison
};

struct EngineOptions {
  Algorithm algorithm = Algorithm::kFast;
};

/// Runs the model. Views point to host memory, and a call has written its outputs when it returns.
/// Rows run in parallel; a row's results depend on that row alone, and every result is the same
/// bits for any number of threads. Workspaces are kept between calls. One call at a time.
class Engine {
 public:
  /// With its own worker threads; 0: as many as the cores this process may use.
  explicit Engine(int threads = 0, EngineOptions options = {});
  /// With the worker threads of a context, which others may use at the same time.
  explicit Engine(const Context& context, EngineOptions options = {});
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  /// log sum_y exp(score(y)) per row. The gradients are those of sum_b weight_b * log_partition_b,
  /// that is, weighted expected counts. weights: (B), finite; empty: 1.
  template <class T>
  void log_partition(const Potentials<T>& potentials, const PartitionResult& result,
                     const Gradients<T>& gradients = {}, const View<const double, 1>& weights = {});

  /// -log p(gold) per row, and the gradients of sum_b weight_b * loss_b. A gold segmentation must
  /// tile its row with durations <= K and labels < C (else DataError).
  template <class T>
  void loss(const Potentials<T>& potentials, const SegmentationsView& gold,
            const LossResult& result, const Gradients<T>& gradients = {},
            const View<const double, 1>& weights = {});

  /// score(y) per row into `score` (B), without the normaliser.
  template <class T>
  void score(const Potentials<T>& potentials, const SegmentationsView& segmentations,
             const View<double, 1>& score);

  template <class T>
  void posteriors(const Potentials<T>& potentials, const Posteriors<T>& result);

  /// P(segment is part of the segmentation) for each of n listed segments, into `probability` (n).
  /// The list need not tile the rows.
  template <class T>
  void segment_posteriors(const Potentials<T>& potentials, const SegmentationsView& segments,
                          const View<double, 1>& probability);

  /// The best segmentation of each row, into `best` (replaced). Ties: going from the last segment
  /// to the first, the smallest duration, then the smallest label. A row without a path is empty.
  template <class T>
  void viterbi(const Potentials<T>& potentials, Segmentations& best,
               const ViterbiResult& result = {});

 private:
  friend struct EngineOverPool;
  struct State;
  explicit Engine(std::unique_ptr<State> state);
  StatePointer<std::unique_ptr<State>, "Engine"> state_;
};

}  // namespace segfuse::semicrf
