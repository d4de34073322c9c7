#pragma once
// More exact inference over the model of semicrf.h: constraints and partial labels, segments longer
// than K, sampling, the n best segmentations, divergences, and decoders that minimise a risk.
// docs/semicrf.md has the formulas. Letters, special values and errors are those of semicrf.h.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "segfuse/error.h"
#include "segfuse/semicrf.h"

namespace segfuse::semicrf {

/// Restricts the segmentations of a batch; every member may be empty. A segmentation must fulfil
/// all of them. Entries at or past a row's length are not read.
struct Constraints {
  View<const std::uint8_t, 3> allowed;       ///< (B, T, C): 0 forbids label c at frame t
  View<const std::uint8_t, 2> transition;    ///< (C, C) [from, to]: 0 forbids
  View<const std::int32_t, 1> min_duration;  ///< (C) fewest frames of a segment
  View<const std::int32_t, 1> max_duration;  ///< (C) most frames of a segment
  View<const std::int32_t, 2> label;         ///< (B, T) known label of a frame; negative: unknown
  View<const std::int8_t, 2> boundary;  ///< (B, T) 1: a segment starts here; 0: none; -1: unknown
};

/// Known labels and boundaries of every frame of given segmentations: full supervision, in the form
/// of constraints. Frames past a row's segments are unknown.
class KnownFrames {
 public:
  KnownFrames(const SegmentationsView& segmentations, std::int64_t frames);
  Constraints constraints() const;

 private:
  std::int64_t rows_;
  std::int64_t frames_;
  std::vector<std::int32_t> label_;
  std::vector<std::int8_t> boundary_;
};

/// The same scores with -inf where constraints forbid, for any function of Engine. Copies only the
/// inputs that change; the others, and the constraints, are borrowed. A frame where a segment must
/// start (boundary 1) cannot be written as a score: a UsageError; Inference takes such constraints.
template <class T>
class ConstrainedPotentials {
 public:
  ConstrainedPotentials(const Potentials<T>& potentials, const Constraints& constraints);
  ConstrainedPotentials(ConstrainedPotentials&&) noexcept = default;
  ConstrainedPotentials& operator=(ConstrainedPotentials&&) noexcept = default;
  /// Valid while this object and the inputs it was made from live.
  const Potentials<T>& potentials() const { return *potentials_; }

 private:
  StatePointer<std::unique_ptr<Potentials<T>>, "ConstrainedPotentials"> potentials_;
  std::vector<T> emission_;
  std::vector<T> transition_;
  std::vector<T> duration_;
  std::vector<T> start_;
};

/// The segmentations that a call of Inference sums over: by default all that the potentials allow.
struct Scope {
  Constraints constraints;
  /// (C), or empty: no segment is longer than K. With it a segment of label c may have d > K
  /// frames, at the score of K frames (contents of all d) plus (d - K) tail[c]: a geometric tail.
  /// Transitions that depend on duration take slice K-1 from K frames on. Limits on durations are
  /// at most K then, and a label with a max_duration has no tail.
  View<const double, 1> tail;
};

/// A direction along the scores of a model: views in the shapes of its potentials (lengths are not
/// read) and tail; an empty view is 0. Its entries for scores of -inf, or past a row's length, are
/// not used. A NaN or an infinity in it propagates and is not an error.
template <class T>
struct Direction {
  Potentials<T> scores;
  View<const double, 1> tail;  ///< (C)
};

/// What Inference::derivatives_along computes; an empty view is not computed. Rows without a path,
/// of an impossible gold or of length 0 have 0.
template <class T>
struct AlongResult {
  View<double, 1> derivative;    ///< (B) d value_b along the direction
  View<double, 1> curvature;     ///< (B) its derivative along `other`
  Direction<T> other;            ///< used by curvature only
  Gradients<T> product;          ///< sum_b weight_b * (Hessian of value_b) * direction
  View<double, 1> tail_product;  ///< (C) the component of the tail
};

/// Several segmentations of each row. Row b has those numbered list_pointer[b] .. [b+1]; each is
/// one row of `segmentations`.
struct SegmentationLists {
  std::vector<std::int64_t> list_pointer{0};  ///< (B+1)
  Segmentations segmentations;
  std::vector<double> score;  ///< of each
};

/// Further inference. Rows run in parallel; a row's results depend on that row alone, and every
/// result has the same bits for any number of threads. log_partition, partial_loss and posteriors
/// use an Engine if the scope has no tail and no boundaries; all else runs in the log domain, in
/// double, some ten times slower than Engine. Transitions that depend on duration cost
/// O(T K C^2). One call at a time.
class Inference {
 public:
  /// With its own worker threads; 0: as many as the cores this process may use.
  explicit Inference(int threads = 0);
  /// With the worker threads of a context, as Engine.
  explicit Inference(const Context& context);
  ~Inference();
  Inference(Inference&&) noexcept;
  Inference& operator=(Inference&&) noexcept;

  /// log sum exp(score(y)) over the scope, per row, and the gradients of sum_b weight_b *
  /// log_partition_b. The duration gradient's last row counts the segments of K frames and more;
  /// tail_gradient (C) the frames beyond K.
  template <class T>
  void log_partition(const Potentials<T>& potentials, const Scope& scope,
                     const PartitionResult& result, const Gradients<T>& gradients = {},
                     const View<double, 1>& tail_gradient = {},
                     const View<const double, 1>& weights = {});

  /// -log P(y fulfils the constraints) per row: log_partition without the constraints minus
  /// log_partition with them (`score` of the result). The loss for partial labels: with all labels
  /// and boundaries known it is -log p(gold). Gradients of sum_b weight_b * loss_b, the difference
  /// of two expectations. A row that cannot fulfil them is kImpossibleGold: loss +inf, gradient 0.
  template <class T>
  void partial_loss(const Potentials<T>& potentials, const Scope& scope, const LossResult& result,
                    const Gradients<T>& gradients = {}, const View<double, 1>& tail_gradient = {},
                    const View<const double, 1>& weights = {});

  /// First and second derivatives of log_partition, or of partial_loss, along a direction, for
  /// forward mode and Hessian-vector products. `direction` must be empty where the potentials and
  /// the scope are. Costs O(T (C^2 + K C)) per row, like log_partition.
  template <class T>
  void derivatives_along(const Potentials<T>& potentials, const Scope& scope, bool partial,
                         const Direction<T>& direction, const AlongResult<T>& result,
                         const View<const double, 1>& weights = {});

  /// Like Engine::posteriors, given that y is in the scope. The last row of `duration` counts the
  /// segments of K frames and more.
  template <class T>
  void posteriors(const Potentials<T>& potentials, const Scope& scope, const Posteriors<T>& result);

  /// n segmentations of each row drawn from p(y) within the scope, with their scores, exactly. Draw
  /// i of row b is a function of (the row's scores, seed, first_row + b, i) alone: `first_row` is
  /// the row's number where a caller splits a batch. Rows without a path have none.
  template <class T>
  void sample(const Potentials<T>& potentials, const Scope& scope, std::int64_t n,
              std::uint64_t seed, SegmentationLists& drawn, std::int64_t first_row = 0);

  /// The n best segmentations of each row within the scope, best first, or all when there are
  /// fewer. Ties as in Engine::viterbi: going from the last segment to the first, the smallest
  /// duration, then the smallest label. With n = 1 this is Viterbi within a scope. Costs one max
  /// pass, then O(K + C) for each new state that a listed path goes through.
  template <class T>
  void k_best(const Potentials<T>& potentials, const Scope& scope, std::int64_t n,
              SegmentationLists& best);

  /// -E_p[log q(y)] per row, in nats, of two models over the same rows: emission, lengths, K and
  /// the form of transitions must agree in shape. +inf if p allows a segmentation that q
  /// forbids, however improbable; 0 if p has no path (kNoPath). Its gradient with respect to q's
  /// inputs is E_q[counts] - E_p[counts].
  template <class T>
  void cross_entropy(const Potentials<T>& p, const Potentials<T>& q, const View<double, 1>& result,
                     const View<RowStatus, 1>& status = {});

  /// The divergence E_p[log p(y) - log q(y)] per row, never negative; like cross_entropy.
  template <class T>
  void kl(const Potentials<T>& p, const Potentials<T>& q, const View<double, 1>& result,
          const View<RowStatus, 1>& status = {});

  /// P(some segment starts within `tolerance` frames of t), into `probability` (B, T). Several
  /// segments may, so this is not the sum of the boundary posteriors. It is 1 minus the probability
  /// that one segment covers the window and the frame before it, and 1 if the window
  /// reaches frame 0. Costs O(T tolerance C) beyond the posteriors.
  template <class T>
  void boundary_within(const Potentials<T>& potentials, const Scope& scope, std::int64_t tolerance,
                       const View<T, 2>& probability);

  /// The expected number of segments by duration and label, summed over rows, into `counts` (K, C).
  template <class T>
  void expected_durations(const Potentials<T>& potentials, const Scope& scope,
                          const View<T, 2>& counts);

  /// The most probable label of each single frame, into `labels` (B, T): fewest expected errors.
  /// Ties: the smallest label. Padding, and rows without a path, get `ignore`.
  template <class T>
  void max_marginal(const Potentials<T>& potentials, const Scope& scope,
                    const View<std::int32_t, 2>& labels, std::int32_t ignore = -100);

  /// The segmentation z with the best expected boundary F1, of those that have a path:
  ///   f1(z) = 2 E[found(z, y)] / (segments(z) + E[segments(y)]),
  /// found(z, y) being the segments of y that start within `tolerance` frames of a start of z
  /// (frame 0 is a start in both). Given its boundaries, z has the labels with the fewest expected
  /// wrong frames. Exact, up to rounding between equals. f1 (B) may be empty; rows without a path
  /// are empty, with f1 0; rows of length 0 have f1 1. Costs O(T (C^2 + K C)) a pass where
  /// scores are forbidden, O(T K) where none are, and a few passes; with a tail T in place of K.
  template <class T>
  void minimum_risk(const Potentials<T>& potentials, const Scope& scope, std::int64_t tolerance,
                    Segmentations& best, const View<double, 1>& f1 = {});

 private:
  struct State;
  StatePointer<std::unique_ptr<State>, "Inference"> state_;
};

struct OnlineOptions {
  /// 0: a segment is decided when all paths that may still become the best share it (exact).
  /// Otherwise at least K: boundaries older than this many frames are decided by the path that is
  /// best at that time, and the row continues from there. The result may then be worse than the
  /// best segmentation; best_score() is its score. log_partition() stays exact.
  std::int64_t max_delay = 0;
  /// If false, log_partition() is NaN, and a frame costs half.
  bool log_partition = true;
};

/// Scores of n frames, (n, C) each; start and end may be empty (0).
template <class T>
struct FrameScores {
  View<const T, 2> emission;
  View<const T, 2> start = {};
  View<const T, 2> end = {};
};

/// Decodes a row that arrives in pieces, of any size: the segments, their times of decision and the
/// log-partition do not depend on how a row is cut, and without max_delay the segments are those of
/// Engine::viterbi. Memory: 2 K + 64 frames, and two ints for each undecided frame and label. A
/// frame costs O(C^2 + K C). Transitions must not depend on durations.
class OnlineDecoder {
 public:
  /// Takes transition, duration, initial and final of `shared`, and copies them; tail as in Scope.
  template <class T>
  explicit OnlineDecoder(const Potentials<T>& shared, const OnlineOptions& options = {},
                         const View<const double, 1>& tail = {});
  ~OnlineDecoder();
  OnlineDecoder(OnlineDecoder&&) noexcept;
  OnlineDecoder& operator=(OnlineDecoder&&) noexcept;

  /// Takes the next n frames, (n, C) each; start and end may be empty (0). Appends segments that
  /// are decided now to the current row of `decided`. DataError for NaN and +inf; nothing of the
  /// piece is then taken.
  template <class T>
  void push(const View<const T, 2>& emission, Segmentations& decided,
            const View<const T, 2>& start = {}, const View<const T, 2>& end = {});

  /// Ends the row: appends the remaining segments, ends the row of `decided`, and is ready for
  /// another. Returns kNoPath if no path leads to the end; the rest is then not appended.
  RowStatus finish(Segmentations& decided);

  std::int64_t frames() const;          ///< that have arrived
  std::int64_t decided_frames() const;  ///< that the decided segments cover
  double log_partition() const;         ///< of the row, if it ended now
  double best_score() const;            ///< of the best path, if the row ended now

 private:
  struct State;
  StatePointer<std::unique_ptr<State>, "OnlineDecoder"> state_;
};

/// Posterior probabilities of a segment.
struct SegmentPosterior {
  double segment = 0;  ///< P(exactly this segment); 0 if it has more than K frames
  double label = 0;    ///< mean over its frames of P(frame has this label), each rounded to T
  double start = 0;    ///< P(a segment starts within the tolerance of its start), rounded to T
};

/// A store, such as a file, to which numbers are appended and from which they are read again.
class NumberStore {
 public:
  virtual ~NumberStore() = default;
  virtual void append(std::span<const double> numbers) = 0;
  /// Reads the numbers from index `first` on.
  virtual void read(std::int64_t first, std::span<double> numbers) = 0;
};

/// The posterior of a row that may be too long for memory: forward over pieces as they arrive, then
/// backward over blocks of frames that the caller reads again. Results do not depend on the sizes
/// of pieces or blocks. They agree with those of Engine and Inference up to rounding (2^-32 in a
/// logarithm at one of 512 boundaries or fewer). Rows that begin with the same frames have the same
/// bits there, up to the point where later frames still have an effect (docs/semicrf.md). Memory: a
/// working set of a block and 2 K frames, and K frames of each block. Transitions must not depend
/// on durations.
class BlockPosterior {
 public:
  /// Takes transition, duration, initial and final of `shared`, and copies them. A block has
  /// `block` frames, or K if that is more. The K frames of each block are stored in `kept`, which
  /// must be empty and outlive this object, or in memory if it is null. `must_start` (T) is copied:
  /// in a row of T frames a segment begins at each frame whose entry is not 0. All probabilities
  /// are conditional on that, and the bits then depend on all of the row.
  template <class T>
  explicit BlockPosterior(const Potentials<T>& shared, std::int64_t block = 8192,
                          NumberStore* kept = nullptr,
                          const View<const std::uint8_t, 1>& must_start = {});
  ~BlockPosterior();
  BlockPosterior(BlockPosterior&&) noexcept;
  BlockPosterior& operator=(BlockPosterior&&) noexcept;

  /// Takes the next frames.
  template <class T>
  void push(const FrameScores<T>& scores);
  std::int64_t frames() const;   ///< that have arrived
  double log_partition() const;  ///< of the row, if it ended now; 0 without frames
  std::int64_t bytes() const;    ///< of memory in use

  /// Returns frames [first, first + n) again. Ranges come in descending order and overlap by 2 K;
  /// the result must stay valid until the next call.
  template <class T>
  using Reader = std::function<FrameScores<T>(std::int64_t first, std::int64_t n)>;
  /// Called for each frame t, from the last to the first, with P(t has the label) for each label
  /// and P(a segment starts at t), rounded to T.
  using FrameVisitor =
      std::function<void(std::int64_t t, std::span<const double> label, double boundary)>;
  /// Ends the row, which must have a path and at least one frame. Returns the posteriors of
  /// `segments`, which must tile the row. The last block is not read again.
  template <class T>
  std::vector<SegmentPosterior> describe(const SegmentationsView& segments, std::int64_t tolerance,
                                         const Reader<T>& read, const FrameVisitor& visit = {});
  /// The score of the described segments; -inf if one has more than K frames. If K is 1, a segment
  /// of several frames counts as that many segments.
  double score() const;

 private:
  struct State;
  StatePointer<std::unique_ptr<State>, "BlockPosterior"> state_;
};

}  // namespace segfuse::semicrf
