#pragma once
// The lattice of one alignment: nodes of an acyclic graph by frames. Nodes are worked on one by
// one, each over the frames that it can have: a segment's frames add up by differences of sums from
// the row's beginning, so that all durations of a node are one sliding sum. Frames are left out at
// a node where even the greatest rest (rest_bound.h) adds up to a part of e^-40 of all.

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "segfuse/semicrf/orders.h"
#include "semicrf/align/band_window.h"
#include "semicrf/align/duration_window.h"
#include "semicrf/align/rest_bound.h"
#include "semicrf/model/problem.h"

namespace segfuse::semicrf {

/// What a row's segments of one label score.
struct LabelColumn {
  bool used = false;
  bool forbids = false;  ///< there are frames that it may not have
  PieceRule rule = PieceRule::kOne;
  double self = kNegInf;            ///< the transition between pieces
  std::vector<double> content;      ///< (L+1) sums of the finite scores of frames before t
  std::vector<double> start;        ///< (L)
  std::vector<double> end;          ///< (L+1) of a segment that ends at t; [0] is not used
  std::vector<std::int64_t> since;  ///< (L+1) the earliest start of a segment that ends at t
  std::vector<std::int64_t> until;  ///< (L+1) the latest end of a segment that starts at t
  DurationTable durations;

  bool in_pieces() const { return rule != PieceRule::kOne; }
  /// The frames of [s, e) and its last frame's score.
  double frames(std::int64_t s, std::int64_t e) const {
    return (content[static_cast<std::size_t>(e)] + end[static_cast<std::size_t>(e)]) -
           content[static_cast<std::size_t>(s)];
  }
};

/// Where a node's pieces may start and end, both ends included; empty where no path leads.
struct NodeFrames {
  std::int64_t enter = 0;        ///< the earliest start
  std::int64_t last_enter = -1;  ///< the latest start of a first piece
  std::int64_t last_start = -1;  ///< the latest start of any piece
  std::int64_t first_end = 0;
  std::int64_t last_end = -1;
  bool empty() const { return last_enter < enter || last_end < first_end; }
};

/// Scores of some boundaries [first, first + size); -inf elsewhere.
class Stretch {
 public:
  void reset(std::int64_t first, std::int64_t last) {
    first_ = first;
    values_.assign(static_cast<std::size_t>(std::max<std::int64_t>(0, last - first + 1)), kNegInf);
  }
  void assign(std::int64_t first, std::span<const double> values) {
    first_ = first;
    values_.assign(values.begin(), values.end());
  }
  /// The next one.
  void append(double value) { values_.push_back(value); }
  /// Those from `first` to `last`, in memory of their size.
  void trim(std::int64_t first, std::int64_t last) {
    if (first == first_ && last - first + 1 == size()) return;
    const std::int64_t from = std::max(first, first_);
    const std::int64_t end = std::min(last + 1, first_ + std::ssize(values_));
    std::vector<double> kept(static_cast<std::size_t>(std::max<std::int64_t>(0, last - first + 1)),
                             kNegInf);
    if (from < end)
      std::copy(values_.begin() + (from - first_), values_.begin() + (end - first_),
                kept.begin() + (from - first));
    values_ = std::move(kept);
    first_ = first;
  }
  std::int64_t first() const { return first_; }
  std::int64_t size() const { return std::ssize(values_); }
  /// From boundary t on.
  const double* from(std::int64_t t) const { return values_.data() + (t - first_); }
  double at(std::int64_t t) const {
    const std::int64_t i = t - first_;
    return i < 0 || i >= std::ssize(values_) ? kNegInf : values_[static_cast<std::size_t>(i)];
  }
  /// Does nothing elsewhere.
  void set(std::int64_t t, double value) {
    const std::int64_t i = t - first_;
    if (i >= 0 && i < std::ssize(values_)) values_[static_cast<std::size_t>(i)] = value;
  }

 private:
  std::int64_t first_ = 0;
  std::vector<double> values_;
};

class AlignLattice {
 public:
  /// What is below e^-kMargin of a sum is below the rounding of its last digit.
  static constexpr double kMargin = 40.0;

  /// `orders` has one path for each order. All calls throw DataError where they need more memory
  /// than the options allow.
  AlignLattice(const Model& model, const Row& row, const LabelOrders& orders,
               const AlignOptions& options);

  /// The best segmentation, with its score; kNoPath where there is none.
  void find_best(Alignment& alignment);
  /// Fills the posteriors of its segments, and log_partition.
  void find_posteriors(Alignment& alignment);

 private:
  struct Before {
    std::int32_t node;
    double transition;
  };
  struct Piece {  // of the best path
    std::int32_t node = -1;
    std::int64_t start = -1;
    bool goes_on = false;  ///< the next piece is of the same segment
    bool full = false;     ///< it has the label's longest duration
    bool operator==(const Piece&) const = default;
  };

  void load(const Model& model, const Row& row, const AlignOptions& options);
  void load_column(const Row& row, std::int64_t stride, std::int64_t label);
  void find_frames();
  /// Where the node's pieces may start and end, given what was kept of the nodes before it.
  NodeFrames frames_now(std::int32_t node) const;
  void keep(std::int32_t node, std::int64_t first_end, std::int64_t last_end);
  const LabelColumn& column(std::int32_t node) const {
    return columns_[static_cast<std::size_t>(orders_.nodes[static_cast<std::size_t>(node)].label)];
  }

  template <bool kMax>
  const RestBound* bound_for() const {
    if (kMax && score_bound_) return &*score_bound_;
    return bound_ ? &*bound_ : nullptr;
  }
  template <bool kMax>
  static double join(double a, double b) {
    return kMax ? std::max(a, b) : log_add(a, b);
  }
  /// Prefixes that a first piece of the node at t may follow.
  template <bool kMax>
  double enter(std::int32_t node, std::int64_t t) const;
  /// Those that end at t in a piece of the node after which another may stand.
  double repeat(std::int32_t node, std::int64_t t) const;
  template <bool kMax>
  void forward(std::int32_t node);
  /// Whether many frames of the node can be worked on at a time: a piece's start does not depend on
  /// ends of less than a full length before.
  bool is_band(std::int32_t node) const {
    return scaled_ && column(node).rule != PieceRule::kAny && !column(node).forbids;
  }
  template <bool kMax>
  void forward_band(std::int32_t node);
  template <bool kMax>
  void repeat_band(std::int32_t node, std::int64_t from);
  /// enter() at `first` and what follows.
  template <bool kMax>
  void enter_band(std::int32_t node, std::int64_t first, std::span<double> out) const;
  template <bool kMax>
  double total() const;
  /// Forward over all nodes, but for paths of less; the total.
  template <bool kMax>
  double run_forward(double least);
  /// Forward without what is more than `margin` below the result, which is `known` at least. How
  /// far the result is below the bound is guessed, and what is found says whether that was right.
  template <bool kMax>
  double forward_within(double guess, double margin, double known);
  /// Suffixes from t after the node's last piece.
  double leave(std::int32_t node, std::int64_t t) const;
  /// Also adds what the node does to the probabilities of its label, and leaves out of its frames
  /// those that add less than e^-kMargin to them.
  void backward(std::int32_t node, double log_partition);
  void backward_band(std::int32_t node, double log_partition);
  /// leave() at `first` and what follows.
  void leave_band(std::int32_t node, std::int64_t first, std::span<double> out) const;

  std::vector<Piece> best_of(const std::vector<Piece>& pieces, std::int64_t t) const;
  void add_pieces_before(const Piece& piece, std::vector<Piece>& found) const;
  /// All pieces that [s, e) of a label may consist of.
  double inner(const LabelColumn& label, std::int64_t s, std::int64_t e);
  double posterior(const AlignedSegment& segment, double log_partition);

  const LabelOrders& orders_;
  std::int64_t length_;
  bool scaled_;
  std::vector<double> initial_;                      // (C)
  std::vector<double> final_;                        // (C)
  std::vector<LabelColumn> columns_;                 // by label; filled where used
  std::vector<std::vector<std::int32_t>> nodes_of_;  // by label
  std::vector<std::vector<Before>> before_;          // by node
  std::vector<std::vector<double>> after_;           // by node: transitions to those that follow
  std::vector<NodeFrames> reach_;                    // what durations allow
  std::vector<NodeFrames> frames_;                   // and what the last pass kept of that
  std::optional<RestBound> bound_;                   // of sums; none: nothing is left out
  std::optional<RestBound> score_bound_;             // of scores, for the best path
  double least_ = kNegInf;                           // paths of less are left out
  std::int64_t most_cells_;
  std::int64_t cells_ = 0;       // that the pass has kept
  std::vector<Stretch> value_;   // prefixes up to the end of a piece of the node
  std::vector<Stretch> inside_;  // forward: what stands before a piece that starts at t, with its
                                 // start score; backward: suffixes from that piece on
  std::vector<std::vector<double>> changes_;  // by label: (L+1) differences of P(frame has it)
  DurationWindow window_;
  BandWindow band_;
  std::vector<double> starts_;  // of one node
  std::vector<double> ends_;
  std::vector<double> shares_;
};

}  // namespace segfuse::semicrf
