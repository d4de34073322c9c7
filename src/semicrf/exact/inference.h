#pragma once
// What the parts of Inference share: its state, and rows as lattices.

#include <cmath>
#include <memory>
#include <vector>

#include "base/context/state.h"
#include "base/mutex.h"
#include "base/thread_pool.h"
#include "semicrf/exact/lattice.h"
#include "semicrf/model/gradients.h"
#include "semicrf/model/scope.h"

namespace segfuse::semicrf {

/// Everything one row needs while it is worked on.
struct LatticeWorkspace {
  ScopedRow scoped;
  ScopedRow other;
  Lattice lattice;
  Lattice second;
  RowExpectations expectations;
  RowExpectations without;
  AlignedDoubles tail_count;
  AlignedDoubles segment_counts;  ///< (L, K, stride) of a table, with the constraints
  AlignedDoubles change_counts;   ///< (L, C, stride)
};

template <class T>
void set_element(const View<T, 1>& view, std::int64_t i, T value) {
  if (!view.empty()) view(i) = value;
}

/// Loads the shared scores within a scope.
template <class T>
void load_scoped(const Potentials<T>& potentials, const Scope& scope, const Dims& dims,
                 ScopedModel& scoped) {
  load_model(potentials, dims, scoped.model);
  if (!scope.tail.empty()) {
    scoped.tail.assign(dims.stride, kNegInf);
    for (std::int64_t c = 0; c < dims.classes; ++c) scoped.tail[c] = scope.tail(c);
  }
  constrain_model(scope.constraints, scoped);
}

template <class T>
void load_scoped_row(const Potentials<T>& potentials, const Constraints& constraints,
                     const Dims& dims, std::int64_t b, ScopedRow& scoped) {
  scoped.row = load_row(potentials, dims, b, scoped.buffers);
  constrain_row(constraints, dims, b, scoped);
}

inline LatticeInput lattice_of(const ScopedModel& model, const ScopedRow& row) {
  return {model.model, row.row, model.tail_or_null(), row.forced_or_null()};
}

/// Forward pass of a row of any length.
inline double forward_of(const ScopedModel& model, const ScopedRow& row, Lattice& lattice) {
  if (row.row.length == 0) return lattice.log_partition = 0.0;
  return lattice_forward(lattice_of(model, row), Sum::kLog, lattice);
}

/// Which outputs a call wants of the expected counts.
struct Wanted {
  bool any;
  bool transition;
  bool duration;
};

/// The expected counts of one row after its forward pass; the tail's are in w.tail_count, and those
/// of its tables go to `tables`.
inline const RowExpectations& counts_of(const ScopedModel& model, const ScopedRow& row,
                                        const Wanted& wanted, LatticeWorkspace& w,
                                        TableCounts* tables = nullptr) {
  w.expectations.tables = tables;
  w.expectations.want_transition = wanted.transition;
  w.expectations.want_duration = wanted.duration;
  w.tail_count.assign(model.model.dims.stride, 0.0);
  lattice_backward(lattice_of(model, row), w.lattice, &w.expectations, w.tail_count.data());
  return w.expectations;
}

/// gradient[c] = sum_b weight_b * counts[b, c], in row order.
void store_tail(const View<double, 1>& gradient, const std::vector<double>& counts,
                const Dims& dims, const View<const double, 1>& weights);

struct Inference::State {
  Context context;
  ThreadPool* pool = nullptr;
  Mutex mutex;
  std::vector<std::unique_ptr<LatticeWorkspace>> free SEGFUSE_GUARDED_BY(mutex);
  GradientReducer reducer;
  Engine engine;

  explicit State(const Context& shared)
      : context(shared), pool(&context.state().pool()), engine(context) {}

  /// Calls body(b, workspace) for rows [begin, end) in parallel.
  template <class Body>
  void for_rows(std::int64_t begin, std::int64_t end, const Body& body) {
    pool->run(end - begin, [&](std::int64_t task) {
      std::unique_ptr<LatticeWorkspace> workspace = take();
      body(begin + task, *workspace);
      const MutexLock lock(mutex);
      free.push_back(std::move(workspace));
    });
  }
  std::unique_ptr<LatticeWorkspace> take() {
    const MutexLock lock(mutex);
    if (free.empty()) return std::make_unique<LatticeWorkspace>();
    auto workspace = std::move(free.back());
    free.pop_back();
    return workspace;
  }

  template <class T>
  void run_gradients(const Potentials<T>& potentials, const Scope& scope, bool partial,
                     const LossResult& result, const Gradients<T>& gradients,
                     const View<double, 1>& tail_gradient, const View<const double, 1>& weights);
  template <class T>
  void run_on_engine(const Potentials<T>& potentials, const Scope& scope, bool partial,
                     const LossResult& result, const Gradients<T>& gradients,
                     const View<const double, 1>& weights);
};

}  // namespace segfuse::semicrf
