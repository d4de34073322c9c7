#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/context/state.h"
#include "base/thread_pool.h"
#include "segfuse/error.h"
#include "segfuse/semicrf.h"
#include "semicrf/cpu/engine_over_pool.h"
#include "semicrf/cpu/solver.h"
#include "semicrf/exact/segment_list.h"
#include "semicrf/model/gradients.h"
#include "semicrf/model/posteriors.h"
#include "semicrf/model/problem.h"

namespace segfuse::semicrf {

struct Engine::State {
  EngineOptions options;
  Context context;
  ThreadPool* pool = nullptr;
  Model model;
  Method method;
  WorkspacePool workspaces;
  GradientReducer reducer;

  std::vector<std::int64_t> order;   ///< rows of a call, longest first
  std::vector<Segmentations> paths;  ///< of viterbi, by row

  /// Loads the shared scores.
  template <class T>
  void prepare(const Potentials<T>& potentials, const Dims& dims) {
    load_model(potentials, dims, model);
    method.prepare(model, options.algorithm == Algorithm::kReference);
  }

  /// Calls body(b, row, workspace) for rows [begin, end) in parallel.
  template <class T, class Body>
  void for_rows(const Potentials<T>& potentials, std::int64_t begin, std::int64_t end,
                const Body& body) {
    const auto task = [&](std::int64_t i) {
      std::unique_ptr<Workspace> workspace = workspaces.take();
      const Row row = load_row(potentials, model.dims, begin + i, workspace->frames, pool);
      body(begin + i, row, *workspace);
      workspaces.give_back(std::move(workspace));
    };
    if (end - begin == 1) return task(0);  // which may use the threads itself
    pool->run(end - begin, std::ref(task));
  }

  /// Calls body(rows, solvers, n) for groups of rows [begin, end) in parallel: rows of like lengths
  /// together, long ones first, and groups of one row where there are threads to spare.
  template <class T, class Body>
  void for_groups(const Potentials<T>& potentials, std::int64_t begin, std::int64_t end,
                  const Body& body) {
    order.resize(static_cast<std::size_t>(end - begin));
    std::iota(order.begin(), order.end(), begin);
    const auto length = [&](std::int64_t b) {
      return row_length(potentials.lengths, model.dims, b);
    };
    std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return std::pair(-length(a), a) < std::pair(-length(b), b);
    });
    const std::int64_t size = end - begin >= kLockstep * pool->size() ? kLockstep : 1;
    const auto task = [&](std::int64_t group) {
      const std::int64_t first = group * size;
      const std::int64_t n = std::min(size, end - begin - first);
      std::unique_ptr<Workspace> workspace[kLockstep];
      RowSolver solvers[kLockstep];
      for (std::int64_t i = 0; i < n; ++i) {
        workspace[i] = workspaces.take();
        const Row row =
            load_row(potentials, model.dims, order[first + i], workspace[i]->frames, pool);
        solvers[i] = RowSolver(model, method, row, *workspace[i]);
      }
      body(order.data() + first, solvers, n);
      for (std::int64_t i = 0; i < n; ++i) workspaces.give_back(std::move(workspace[i]));
    };
    const std::int64_t groups = (end - begin + size - 1) / size;
    if (groups < pool->size() && groups > 0 && !has_tables(potentials) &&
        is_chunked(model.dims, length(order[0]))) {
      for (std::int64_t group = 0; group < groups; ++group) task(group);  // threads within rows
    } else {
      pool->run(groups, std::ref(task));
    }
  }

  template <class T>
  void run_loss(const Potentials<T>& potentials, const SegmentationsView* gold,
                const LossResult& result, const Gradients<T>& gradients,
                const View<const double, 1>& weights);
};

namespace {

template <class T>
void set(const View<T, 1>& view, std::int64_t i, T value) {
  if (!view.empty()) view(i) = value;
}

/// Of a row in which no path was found: DataError if sums may have overflowed, as paths are lost
/// with them.
void refuse_lost_paths(const Row& row, const Dims& dims) {
  need_finite_sum(most_of_frames(row, dims));
}

double sum_of(const RowSolver& solver, const Dims& dims) {
  const double sum = need_finite_sum(solver.log_partition());
  if (sum == kNegInf) refuse_lost_paths(solver.row(), dims);
  return sum;
}

}  // namespace

Engine::Engine(int threads, EngineOptions options)
    : Engine(Context().with(options::kThreads, std::int64_t{threads}), options) {}

Engine::Engine(const Context& context, EngineOptions options)
    : Engine(EngineOverPool::make(context.state().pool(), options)) {
  state_->context = context;  // which the pool lives in
}

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}

Engine EngineOverPool::make(ThreadPool& pool, EngineOptions options) {
  auto state = std::make_unique<Engine::State>();
  state->options = options;
  state->pool = &pool;
  return Engine(std::move(state));
}

Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

template <class T>
void Engine::State::run_loss(const Potentials<T>& potentials, const SegmentationsView* gold,
                             const LossResult& result, const Gradients<T>& gradients,
                             const View<const double, 1>& weights) {
  const Dims dims = check_with_tables(potentials);
  check_gradients(gradients, dims);
  check_weights(weights, dims);
  check_vector("loss", result.loss.empty(), result.loss.extent(0), dims.batch);
  check_vector("log_partition", result.log_partition.empty(), result.log_partition.extent(0),
               dims.batch);
  check_vector("score", result.score.empty(), result.score.extent(0), dims.batch);
  check_vector("status", result.status.empty(), result.status.extent(0), dims.batch);
  if (gold != nullptr) check_segments(*gold, dims, potentials.lengths, true);
  prepare(potentials, dims);
  const bool want_gradients = wants_any(gradients);

  // The row's numbers; whether it has gradients.
  const auto report_row = [&](std::int64_t b, const RowSolver& solver) {
    const double log_partition = sum_of(solver, dims);
    RowStatus status = log_partition == kNegInf ? RowStatus::kNoPath : RowStatus::kOk;
    set(result.log_partition, b, log_partition);
    if (gold != nullptr) {
      const double score = need_finite_sum(
          score_row(model, solver.row(), *gold, gold->row_pointer(b), gold->row_pointer(b + 1)));
      if (score == kNegInf && status == RowStatus::kOk) status = RowStatus::kImpossibleGold;
      set(result.score, b, score);
      // The gold score is one of the terms of the partition; only rounding can put it above.
      set(result.loss, b,
          status == RowStatus::kOk ? std::max(0.0, log_partition - score) : -kNegInf);
    }
    set(result.status, b, status);
    return status == RowStatus::kOk && solver.row().length > 0 &&
           (weights.empty() || weights(b) != 0.0);
  };

  const Wanted wanted{.transition = !gradients.transition.empty(),
                      .duration = !gradients.duration.empty(),
                      .boundaries = !gradients.start.empty() || !gradients.end.empty()};
  const bool want_tables =
      !gradients.segment_scores.empty() || !gradients.transition_scores.empty();
  reducer.begin(dims, wanted.transition, wanted.duration, !gradients.transition_scores.empty());
  const std::int64_t wave = reducer.rows_per_wave();
  for (std::int64_t begin = 0; begin < dims.batch; begin += wave) {
    const std::int64_t end = std::min(begin + wave, dims.batch);
    for_groups(
        potentials, begin, end, [&](const std::int64_t* rows, RowSolver* solvers, std::int64_t n) {
          RowSolver* active[kLockstep] = {solvers, solvers + 1};
          solve_forward(active, n, *pool);
          std::int64_t row_of[kLockstep];
          std::int64_t count = 0;
          for (std::int64_t i = 0; i < n; ++i) {
            const bool counts = report_row(rows[i], solvers[i]) && want_gradients;
            if (counts) {
              row_of[count] = rows[i];
              active[count++] = solvers + i;
            } else if (want_gradients) {
              store_row_gradients<T>(gradients, dims, rows[i], 0, nullptr, 0.0);
              TableGradients<T>(gradients, dims, rows[i]).clear(0, nullptr);
              reducer.skip(reducer.slot(rows[i] - begin));
            }
          }
          if (count == 0) return;
          Wanted of_rows = wanted;
          std::optional<TableGradients<T>> tables[kLockstep];
          for (std::int64_t i = 0; want_tables && i < count; ++i) {
            const std::int64_t b = row_of[i];
            of_rows.tables[i] = &tables[i].emplace(gradients, dims, b);
            tables[i]->clear(active[i]->row().length, reducer.table(reducer.slot(b - begin)));
            tables[i]->begin(weights.empty() ? 1.0 : weights(b), gold);
          }
          solve_expectations(active, count, of_rows, *pool);
          for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t b = row_of[i];
            RowExpectations& e = active[i]->expectations();
            if (gold != nullptr) subtract_counts(dims, *gold, b, e);
            store_row_gradients(gradients, dims, b, active[i]->row().length, &e,
                                weights.empty() ? 1.0 : weights(b), pool);
            reducer.fill(reducer.slot(b - begin), e, active[i]->row().length);
          }
        });
    if (want_gradients) reducer.reduce(begin, end, weights);
  }
  reducer.store(gradients);
}

template <class T>
void Engine::log_partition(const Potentials<T>& potentials, const PartitionResult& result,
                           const Gradients<T>& gradients, const View<const double, 1>& weights) {
  LossResult outputs;
  outputs.log_partition = result.log_partition;
  outputs.status = result.status;
  state_->run_loss(potentials, nullptr, outputs, gradients, weights);
}

template <class T>
void Engine::loss(const Potentials<T>& potentials, const SegmentationsView& gold,
                  const LossResult& result, const Gradients<T>& gradients,
                  const View<const double, 1>& weights) {
  state_->run_loss(potentials, &gold, result, gradients, weights);
}

template <class T>
void Engine::score(const Potentials<T>& potentials, const SegmentationsView& segmentations,
                   const View<double, 1>& score) {
  const Dims dims = check_with_tables(potentials);
  check_vector("score", false, score.extent(0), dims.batch);
  check_segments(segmentations, dims, potentials.lengths, true);
  load_model(potentials, dims, state_->model);
  state_->for_rows(potentials, 0, dims.batch, [&](std::int64_t b, const Row& row, Workspace&) {
    score(b) =
        need_finite_sum(score_row(state_->model, row, segmentations, segmentations.row_pointer(b),
                                  segmentations.row_pointer(b + 1)));
  });
}

template <class T>
void Engine::posteriors(const Potentials<T>& potentials, const Posteriors<T>& result) {
  const Dims dims = check_with_tables(potentials);
  check_posteriors(result, dims);
  State& state = *state_;
  state.prepare(potentials, dims);
  const bool want_entropy = !result.entropy.empty();
  const Wanted wanted{.transition = want_entropy,
                      .duration = want_entropy || !result.duration.empty(),
                      .boundaries = want_entropy || !result.start.empty() || !result.end.empty() ||
                                    !result.boundary.empty()};
  const auto solve = [&](const std::int64_t* rows, RowSolver* solvers, std::int64_t n) {
    RowSolver* active[kLockstep] = {solvers, solvers + 1};
    solve_forward(active, n, *state.pool);
    std::int64_t row_of[kLockstep];
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double log_partition = sum_of(solvers[i], dims);
      set(result.log_partition, rows[i], log_partition);
      set(result.status, rows[i], log_partition == kNegInf ? RowStatus::kNoPath : RowStatus::kOk);
      set(result.entropy, rows[i], 0.0);
      if (log_partition == kNegInf || solvers[i].row().length == 0) {
        store_posteriors(result, dims, rows[i], 0, nullptr);
      } else {
        row_of[count] = rows[i];
        active[count++] = solvers + i;
      }
    }
    if (count == 0) return;
    Wanted of_rows = wanted;
    std::optional<ExpectedTables> tables[kLockstep];
    for (std::int64_t i = 0; want_entropy && has_tables(potentials) && i < count; ++i)
      of_rows.tables[i] = &tables[i].emplace(active[i]->row(), dims);
    solve_expectations(active, count, of_rows, *state.pool);
    for (std::int64_t i = 0; i < count; ++i) {
      const RowExpectations& e = active[i]->expectations();
      const Row& row = active[i]->row();
      store_posteriors(result, dims, row_of[i], row.length, &e);
      // An entropy is not negative; only rounding can make the difference so.
      if (want_entropy)
        result.entropy(row_of[i]) =
            std::max(0.0, active[i]->log_partition() - expected_score(state.model, row, e) -
                              (tables[i] ? tables[i]->value() : 0.0));
    }
  };
  state.for_groups(potentials, 0, dims.batch, solve);
}

template <class T>
void Engine::segment_posteriors(const Potentials<T>& potentials, const SegmentationsView& segments,
                                const View<double, 1>& probability) {
  const Dims dims = check_with_tables(potentials);
  check_segments(segments, dims, potentials.lengths, false);
  check_vector("probability", false, probability.extent(0), segments.start.extent(0));
  State& state = *state_;
  state.prepare(potentials, dims);
  state.for_rows(
      potentials, 0, dims.batch, [&](std::int64_t b, const Row& row, Workspace& workspace) {
        const std::int64_t first = segments.row_pointer(b);
        const std::int64_t last = segments.row_pointer(b + 1);
        if (first == last) return;
        RowSolver solver(state.model, state.method, row, workspace);
        RowSolver* const one = &solver;
        solve_forward(&one, 1, *state.pool);
        const bool possible = sum_of(solver, dims) > kNegInf;
        if (possible) solve_expectations(&one, 1, {.segments = true}, *state.pool);
        for (std::int64_t i = first; i < last; ++i)
          probability(i) = possible
                               ? std::exp(solver.segment(segments.start(i), segments.duration(i),
                                                         segments.label(i)))
                               : 0.0;
      });
}

template <class T>
void Engine::viterbi(const Potentials<T>& potentials, Segmentations& best,
                     const ViterbiResult& result) {
  const Dims dims = check_with_tables(potentials);
  check_vector("score", result.score.empty(), result.score.extent(0), dims.batch);
  check_vector("status", result.status.empty(), result.status.extent(0), dims.batch);
  State& state = *state_;
  load_model(potentials, dims, state.model);
  if (std::ssize(state.paths) < dims.batch)
    state.paths.resize(static_cast<std::size_t>(dims.batch));
  const auto decode = [&](std::int64_t b, const Row& row, Workspace& workspace) {
    Segmentations& mine = state.paths[static_cast<std::size_t>(b)];
    mine.clear();
    bool possible = row.length == 0;
    if (row.length > 0 && row.has_tables()) {
      for (const Piece& s : best_path({state.model, row}, workspace.lattice))
        mine.append(s.start, s.duration, s.label);
      possible = mine.segments() > 0;
    } else if (row.length > 0) {
      possible = viterbi_row(state.model, row, workspace.viterbi, *state.pool, workspace.path);
      for (const Segment& s : workspace.path) mine.append(s.start, s.duration, s.label);
      if (!possible) refuse_lost_paths(row, dims);
    }
    set(result.score, b,
        possible ? need_finite_sum(score_row(state.model, row, mine.view(), 0, mine.segments()))
                 : kNegInf);
    set(result.status, b, possible ? RowStatus::kOk : RowStatus::kNoPath);
  };
  if (dims.batch < state.pool->size() && !has_tables(potentials) &&
      can_cut_best(dims, dims.frames)) {
    for (std::int64_t b = 0; b < dims.batch; ++b)  // threads within rows
      state.for_rows(potentials, b, b + 1, decode);
  } else {
    state.for_rows(potentials, 0, dims.batch, decode);
  }
  best.clear();
  for (std::int64_t b = 0; b < dims.batch; ++b) {
    const Segmentations& row = state.paths[static_cast<std::size_t>(b)];
    best.start.insert(best.start.end(), row.start.begin(), row.start.end());
    best.duration.insert(best.duration.end(), row.duration.begin(), row.duration.end());
    best.label.insert(best.label.end(), row.label.begin(), row.label.end());
    best.end_row();
  }
}

#define SEGFUSE_INSTANTIATE(T)                                                                  \
  template void Engine::log_partition(const Potentials<T>&, const PartitionResult&,             \
                                      const Gradients<T>&, const View<const double, 1>&);       \
  template void Engine::loss(const Potentials<T>&, const SegmentationsView&, const LossResult&, \
                             const Gradients<T>&, const View<const double, 1>&);                \
  template void Engine::score(const Potentials<T>&, const SegmentationsView&,                   \
                              const View<double, 1>&);                                          \
  template void Engine::posteriors(const Potentials<T>&, const Posteriors<T>&);                 \
  template void Engine::segment_posteriors(const Potentials<T>&, const SegmentationsView&,      \
                                           const View<double, 1>&);                             \
  template void Engine::viterbi(const Potentials<T>&, Segmentations&, const ViterbiResult&);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
SEGFUSE_INSTANTIATE(Half)
SEGFUSE_INSTANTIATE(BFloat16)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
