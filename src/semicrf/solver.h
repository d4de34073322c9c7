#pragma once
// One row under either algorithm, and the workspaces that rows in flight use.

#include <memory>
#include <mutex>
#include <vector>

#include "semicrf/cpu/factored.h"
#include "semicrf/cpu/viterbi.h"
#include "semicrf/problem.h"
#include "semicrf/reference.h"

namespace segfuse::semicrf {

/// Everything one row needs while it is worked on.
struct Workspace {
  RowBuffers frames;
  FactoredState factored;
  ReferenceState reference;
  RowExpectations expectations;
  ViterbiState viterbi;
  std::vector<Segment> path;
};

/// Workspaces that are not in use. Which one a row gets never shows in its results.
class WorkspacePool {
 public:
  std::unique_ptr<Workspace> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Workspace>();
    auto workspace = std::move(free_.back());
    free_.pop_back();
    return workspace;
  }
  void give_back(std::unique_ptr<Workspace> workspace) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(workspace));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_;
};

/// The model's posterior over one row. Call in order: forward, expectations, segment.
class RowSolver {
 public:
  RowSolver(const Model& model, const FactoredTables& tables, bool reference, const Row& row,
            Workspace& workspace)
      : model_(model), tables_(tables), row_(row), workspace_(workspace), reference_(reference) {}

  /// The log-partition: 0 for an empty row, -inf without a path.
  double forward() {
    if (row_.length == 0) {
      log_partition_ = 0.0;
    } else if (reference_) {
      log_partition_ = reference_forward(model_, row_, workspace_.reference);
    } else {
      log_partition_ = factored_forward(model_, tables_, row_, workspace_.factored);
    }
    return log_partition_;
  }

  /// After a finite forward() of a row that is not empty.
  RowExpectations& expectations(bool want_transition, bool want_duration) {
    RowExpectations& out = workspace_.expectations;
    out.want_transition = want_transition;
    out.want_duration = want_duration;
    if (reference_) {
      reference_expectations(model_, row_, log_partition_, workspace_.reference, out);
    } else {
      factored_expectations(model_, tables_, row_, workspace_.factored, out);
    }
    return out;
  }

  /// log P(segment); after expectations().
  double segment(std::int64_t start, std::int64_t duration, std::int64_t label) const {
    if (reference_)
      return reference_segment(model_, row_, log_partition_, workspace_.reference, start, duration,
                               label);
    return factored_segment(model_, row_, workspace_.factored, start, duration, label);
  }

 private:
  const Model& model_;
  const FactoredTables& tables_;
  const Row& row_;
  Workspace& workspace_;
  bool reference_;
  double log_partition_ = 0.0;
};

}  // namespace segfuse::semicrf
