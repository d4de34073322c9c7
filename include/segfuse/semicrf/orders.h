#pragma once
// Alignment: the best segmentation whose labels have a given order, and its probabilities.
// docs/semicrf.md has the formulas. Letters, special values and errors as in semicrf.h.

#include <cstdint>
#include <span>
#include <vector>

#include "segfuse/semicrf.h"

namespace segfuse::semicrf {

/// The orders of labels that a row may have: the paths through an acyclic graph, from a node that
/// may be first to one that may be last. Each node of a path is one segment.
struct LabelOrders {
  struct Node {
    std::int32_t label = 0;
    bool first = false;
    bool last = false;
    std::vector<std::int32_t> next;  ///< numbers of nodes, all greater than this node's own
  };
  std::vector<Node> nodes;
};

/// The same orders, with one path for each. Nodes that no path reaches are left out. UsageError for
/// a graph that is not as described, or whose result has more than `most` nodes and edges.
LabelOrders one_path_each(const LabelOrders& orders, std::int64_t most = std::int64_t{1} << 22);

/// Which segments may be longer than their label's longest duration: they then consist of pieces,
/// with the model's transition from the label to itself between them.
enum class PieceRule : std::uint8_t {
  kOne,        ///< none
  kAfterFull,  ///< a piece may follow one of the label's longest duration
  kAny,        ///< a piece may follow any piece
};

/// A segment of an alignment.
struct AlignedSegment {
  std::int64_t start = 0;     ///< first frame
  std::int64_t duration = 0;  ///< frames
  std::int32_t label = 0;
  double posterior = 0;  ///< P(the row has exactly this segment), given the orders
  double label_posterior =
      0;  ///< mean over its frames of P(frame has this label), given the orders
};

/// One row's result.
struct Alignment {
  RowStatus status = RowStatus::kOk;     ///< or kNoPath: no segments, both scores -inf
  std::vector<AlignedSegment> segments;  ///< tile the row
  double score = 0;                      ///< of the best pieces
  double log_partition = 0;              ///< log sum exp(score) over all pieces in these orders
};

enum class AlignAlgorithm {
  kFast,       ///< sums in scaled numbers, logarithms where those might be inexact
  kReference,  ///< logarithms throughout: slow, for comparison
};

struct AlignOptions {
  std::vector<PieceRule> pieces{};  ///< (C); empty: kOne for all
  /// A row that needs more memory for its tables is a DataError.
  std::int64_t most_bytes = std::int64_t{4} << 30;
  AlignAlgorithm algorithm = AlignAlgorithm::kFast;
};

/// Aligns each row with its orders: a Viterbi pass, and forward and backward sums over the same
/// lattice of nodes x frames; O(T N K) for N nodes, where frames that cannot matter at a node
/// are left out. Exact. Ties: going from the last piece to the first, the smallest duration, then
/// the smallest label, then a piece of the same segment. Transitions must not depend on durations.
/// `orders` has one element a row. Rows run in parallel on the context's threads; a row's result
/// depends on that row alone and is the same bits for any number of threads.
template <class T>
std::vector<Alignment> align(const Context& context, const Potentials<T>& potentials,
                             std::span<const LabelOrders> orders, const AlignOptions& options = {});

/// The fewest and the most frames that segments in these orders can have; the most is -1 where
/// there is no limit. Both are 0 where there is no node.
struct FrameRange {
  std::int64_t fewest = 0;
  std::int64_t most = 0;
};
/// `shortest` and `longest` (C): frames of one piece of each label.
FrameRange frames_of(const LabelOrders& orders, std::span<const std::int64_t> shortest,
                     std::span<const std::int64_t> longest, std::span<const PieceRule> pieces = {});

}  // namespace segfuse::semicrf
