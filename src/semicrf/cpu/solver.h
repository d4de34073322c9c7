#pragma once
// One row under either algorithm, and the workspaces that rows in flight use.

#include <memory>
#include <vector>

#include "base/mutex.h"
#include "semicrf/cpu/best/viterbi.h"
#include "semicrf/cpu/reference.h"
#include "semicrf/cpu/sum/chunked.h"
#include "semicrf/cpu/sum/factored.h"
#include "semicrf/cpu/sum/scaled.h"
#include "semicrf/exact/lattice.h"
#include "semicrf/model/problem.h"

namespace segfuse::semicrf {

/// Everything one row needs while it is worked on.
struct Workspace {
  RowBuffers frames;
  ScaledState scaled;
  ChunkedState chunked;
  FactoredState factored;
  ReferenceState reference;
  Lattice lattice;
  RowExpectations expectations;
  ViterbiState viterbi;
  std::vector<Segment> path;
};

/// Workspaces that are not in use. Which one a row gets never shows in its results.
class WorkspacePool {
 public:
  std::unique_ptr<Workspace> take() {
    const MutexLock lock(mutex_);
    if (free_.empty()) return std::make_unique<Workspace>();
    auto workspace = std::move(free_.back());
    free_.pop_back();
    return workspace;
  }
  void give_back(std::unique_ptr<Workspace> workspace) {
    const MutexLock lock(mutex_);
    free_.push_back(std::move(workspace));
  }

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_ SEGFUSE_GUARDED_BY(mutex_);
};

/// How rows are solved, and what the shared scores become for it.
class Method {
 public:
  void prepare(const Model& model, bool reference) {
    const MutexLock lock(mutex_);
    reference_ = reference;
    factored_ready_ = false;
    if (!reference) make_scaled_tables(model, scaled_);
  }
  bool reference() const { return reference_; }
  const ScaledTables& scaled() const { return scaled_; }
  /// Made when the first row asks for them: most calls never do.
  const FactoredTables& factored(const Model& model) const {
    const MutexLock lock(mutex_);
    if (!factored_ready_) make_tables(model, factored_);
    factored_ready_ = true;
    return factored_;
  }

 private:
  bool reference_ = false;
  ScaledTables scaled_;
  mutable Mutex mutex_;
  mutable bool factored_ready_ SEGFUSE_GUARDED_BY(mutex_) = false;
  mutable FactoredTables factored_;
};

/// What solve_expectations computes.
struct Wanted {
  bool transition = false;
  bool duration = false;
  bool boundaries = false;              ///< start and end beyond the row's first and last frame
  bool segments = false;                ///< RowSolver::segment will be called
  TableCounts* tables[kLockstep] = {};  ///< for each row: RowExpectations::tables
};

/// The model's posterior over one row. Call in order: solve_forward, solve_expectations, segment.
class RowSolver {
 public:
  RowSolver() = default;
  RowSolver(const Model& model, const Method& method, const Row& row, Workspace& workspace)
      : method_(&method),
        workspace_(&workspace),
        scaled_{.model = &model,
                .tables = &method.scaled(),
                .row = row,
                .state = &workspace.scaled,
                .out = &workspace.expectations,
                .part = {.end = row.length, .total = row.length}} {}

  /// 0 for an empty row, -inf without a path.
  double log_partition() const { return scaled_.log_partition; }
  RowExpectations& expectations() { return workspace_->expectations; }
  const Row& row() const { return scaled_.row; }
  /// log P(segment).
  double segment(std::int64_t start, std::int64_t duration, std::int64_t label) const;

  /// The log-partitions of up to kLockstep rows.
  friend void solve_forward(RowSolver* const* rows, std::int64_t n, ThreadPool& pool);
  /// Expected counts of up to kLockstep rows that are not empty and have a path.
  friend void solve_expectations(RowSolver* const* rows, std::int64_t n, const Wanted& wanted,
                                 ThreadPool& pool);

 private:
  enum class Path { kReference, kScaled, kChunked, kFactored, kLattice };
  LatticeInput lattice_input() const { return {*scaled_.model, scaled_.row}; }
  void leave_scaled_path();
  void leave_chunked_path();

  const Method* method_ = nullptr;
  Workspace* workspace_ = nullptr;
  ScaledRow scaled_;
  Path path_ = Path::kReference;
};

void solve_forward(RowSolver* const* rows, std::int64_t n, ThreadPool& pool);
void solve_expectations(RowSolver* const* rows, std::int64_t n, const Wanted& wanted,
                        ThreadPool& pool);

}  // namespace segfuse::semicrf
