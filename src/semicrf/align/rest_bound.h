#pragma once
// At most how much the rest of a row can add to an alignment, by the label before it.

#include <cstdint>
#include <vector>

#include "segfuse/semicrf/orders.h"
#include "semicrf/model/problem.h"

namespace segfuse::semicrf {

/// Of all segmentations of a row whose neighbouring labels are neighbours somewhere in the orders.
/// Those in one of the orders are among them, so what these have is not more.
struct RestBound {
  double whole = kNegInf;  ///< of the row
  /// By label of the orders, empty for others: (L + 1) of the frames from t on, after a segment of
  /// the label that ends at t > 0.
  std::vector<std::vector<double>> after;
};

/// Logs of sums. `in_pieces` (C): whether a piece of the label may follow another.
RestBound bound_of_sums(const Model& model, const Row& row, const LabelOrders& orders,
                        const std::vector<bool>& in_pieces);
/// The largest scores, but for rounding: a millionth a frame.
RestBound bound_of_scores(const Model& model, const Row& row, const LabelOrders& orders,
                          const std::vector<bool>& in_pieces);

}  // namespace segfuse::semicrf
