#include "semicrf/cpu/solver.h"

namespace segfuse::semicrf {

/// The scores do not fit the linear domain: the row is done again with logarithms.
void RowSolver::leave_scaled_path() {
  const Model& model = *scaled_.model;
  if (model.dims.by_duration || method_->reference()) {
    path_ = Path::kReference;
    scaled_.log_partition = reference_forward(model, scaled_.row, workspace_->reference);
    return;
  }
  path_ = Path::kFactored;
  scaled_.log_partition =
      factored_forward(model, method_->factored(model), scaled_.row, workspace_->factored);
}

/// The parts of a long row do not come to agree: it is done in one piece.
void RowSolver::leave_chunked_path() {
  path_ = Path::kScaled;
  ScaledRow* const row = &scaled_;
  scaled_forward(&row, 1);
  if (!scaled_.ok) leave_scaled_path();
}

void solve_forward(RowSolver* const* rows, std::int64_t n, ThreadPool& pool) {
  using Path = RowSolver::Path;
  ScaledRow* together[kLockstep];
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    RowSolver& x = *rows[i];
    if (x.scaled_.row.length == 0) {
      x.scaled_.log_partition = 0.0;
    } else if (x.scaled_.row.has_tables() && !x.method_->reference()) {
      x.path_ = Path::kLattice;
      x.scaled_.log_partition =
          lattice_forward(x.lattice_input(), Sum::kLog, x.workspace_->lattice);
    } else if (x.method_->reference() || !x.method_->scaled().in_range) {
      x.leave_scaled_path();
    } else if (is_chunked(x.scaled_.model->dims, x.scaled_.row.length)) {
      x.path_ = Path::kChunked;
      if (!chunked_forward(x.scaled_, x.workspace_->chunked, pool)) x.leave_chunked_path();
    } else {
      x.path_ = Path::kScaled;
      together[count++] = &x.scaled_;
    }
  }
  if (count == 0) return;
  scaled_forward(together, count);
  for (std::int64_t i = 0; i < n; ++i)
    if (rows[i]->path_ == Path::kScaled && rows[i]->scaled_.row.length > 0 && !rows[i]->scaled_.ok)
      rows[i]->leave_scaled_path();
}

void solve_expectations(RowSolver* const* rows, std::int64_t n, const Wanted& wanted,
                        ThreadPool& pool) {
  using Path = RowSolver::Path;
  ScaledRow* together[kLockstep];
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    RowSolver& x = *rows[i];
    RowExpectations& out = x.workspace_->expectations;
    out.want_transition = wanted.transition;
    out.want_duration = wanted.duration;
    out.want_boundaries = wanted.boundaries;
    out.tables = wanted.tables[i];
    x.scaled_.keep_backward = wanted.segments;
    if (x.path_ == Path::kChunked && !chunked_expectations(x.scaled_, x.workspace_->chunked, pool))
      x.leave_chunked_path();
    if (x.path_ == Path::kScaled) together[count++] = &x.scaled_;
  }
  if (count > 0) scaled_expectations(together, count);
  for (std::int64_t i = 0; i < n; ++i) {
    RowSolver& x = *rows[i];
    const ScaledRow& s = x.scaled_;
    if (x.path_ == Path::kScaled && !s.ok) x.leave_scaled_path();
    if (x.path_ == Path::kFactored)
      factored_expectations(*s.model, x.method_->factored(*s.model), s.row, x.workspace_->factored,
                            *s.out);
    if (x.path_ == Path::kLattice)
      lattice_backward(x.lattice_input(), x.workspace_->lattice, s.out, nullptr);
    if (x.path_ == Path::kReference)
      reference_expectations(*s.model, s.row, s.log_partition, x.workspace_->reference, *s.out);
  }
}

double RowSolver::segment(std::int64_t start, std::int64_t duration, std::int64_t label) const {
  const ScaledRow& s = scaled_;
  switch (path_) {
    case Path::kReference:
      return reference_segment(*s.model, s.row, s.log_partition, workspace_->reference, start,
                               duration, label);
    case Path::kFactored:
      return factored_segment(*s.model, s.row, workspace_->factored, start, duration, label);
    case Path::kLattice:
      return lattice_segment(lattice_input(), workspace_->lattice, start, duration, label);
    case Path::kChunked: return chunked_segment(s, workspace_->chunked, start, duration, label);
    case Path::kScaled: break;
  }
  return scaled_segment(s, start, duration, label);
}

}  // namespace segfuse::semicrf
