#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/thread_pool.h"
#include "segfuse/error.h"
#include "segfuse/semicrf.h"
#include "semicrf/gradients.h"
#include "semicrf/posteriors.h"
#include "semicrf/problem.h"
#include "semicrf/solver.h"

namespace segfuse::semicrf {

struct Engine::State {
  EngineOptions options;
  std::unique_ptr<ThreadPool> owned;
  ThreadPool* pool = nullptr;
  Model model;
  FactoredTables tables;
  WorkspacePool workspaces;
  GradientReducer reducer;

  /// Loads the shared scores; returns whether rows go through the reference recursion.
  template <class T>
  bool prepare(const Potentials<T>& potentials, const Dims& dims) {
    load_model(potentials, dims, model);
    const bool reference = options.algorithm == Algorithm::kReference || dims.by_duration;
    if (!reference) make_tables(model, tables);
    return reference;
  }

  /// Calls body(b, row, workspace) for rows [begin, end) in parallel.
  template <class T, class Body>
  void for_rows(const Potentials<T>& potentials, std::int64_t begin, std::int64_t end,
                const Body& body) {
    pool->run(end - begin, [&](std::int64_t task) {
      std::unique_ptr<Workspace> workspace = workspaces.take();
      const Row row = load_row(potentials, model.dims, begin + task, workspace->frames);
      body(begin + task, row, *workspace);
      workspaces.give_back(std::move(workspace));
    });
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

}  // namespace

Engine::Engine(int threads, EngineOptions options) : state_(std::make_unique<State>()) {
  state_->options = options;
  state_->owned = std::make_unique<ThreadPool>(threads);
  state_->pool = state_->owned.get();
}

Engine::Engine(ThreadPool& pool, EngineOptions options) : state_(std::make_unique<State>()) {
  state_->options = options;
  state_->pool = &pool;
}

Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

template <class T>
void Engine::State::run_loss(const Potentials<T>& potentials, const SegmentationsView* gold,
                             const LossResult& result, const Gradients<T>& gradients,
                             const View<const double, 1>& weights) {
  const Dims dims = check_potentials(potentials);
  check_gradients(gradients, dims);
  check_weights(weights, dims);
  check_vector("loss", result.loss.empty(), result.loss.extent(0), dims.batch);
  check_vector("log_partition", result.log_partition.empty(), result.log_partition.extent(0),
               dims.batch);
  check_vector("score", result.score.empty(), result.score.extent(0), dims.batch);
  check_vector("status", result.status.empty(), result.status.extent(0), dims.batch);
  if (gold != nullptr) check_segments(*gold, dims, potentials.lengths, true);
  const bool reference = prepare(potentials, dims);
  const bool want_gradients = wants_any(gradients);
  const bool want_transition = !gradients.transition.empty();
  const bool want_duration = !gradients.duration.empty();

  const auto solve_row = [&](std::int64_t b, const Row& row, Workspace& workspace, double* slot) {
    RowSolver solver(model, tables, reference, row, workspace);
    const double log_partition = solver.forward();
    RowStatus status = log_partition == kNegInf ? RowStatus::kNoPath : RowStatus::kOk;
    set(result.log_partition, b, log_partition);
    if (gold != nullptr) {
      const double score =
          score_row(model, row, *gold, gold->row_pointer(b), gold->row_pointer(b + 1));
      if (score == kNegInf && status == RowStatus::kOk) status = RowStatus::kImpossibleGold;
      set(result.score, b, score);
      // The gold score is one of the terms of the partition; only rounding can put it above.
      set(result.loss, b,
          status == RowStatus::kOk ? std::max(0.0, log_partition - score) : -kNegInf);
    }
    set(result.status, b, status);
    if (!want_gradients) return;
    const double weight = weights.empty() ? 1.0 : weights(b);
    if (status != RowStatus::kOk || weight == 0.0 || row.length == 0) {
      store_row_gradients<T>(gradients, dims, b, 0, nullptr, 0.0);
      reducer.skip(slot);
      return;
    }
    RowExpectations& e = solver.expectations(want_transition, want_duration);
    if (gold != nullptr) subtract_counts(dims, *gold, b, e);
    store_row_gradients(gradients, dims, b, row.length, &e, weight);
    reducer.fill(slot, e, row.length);
  };

  reducer.begin(dims, want_transition, want_duration);
  const std::int64_t wave = reducer.rows_per_wave();
  for (std::int64_t begin = 0; begin < dims.batch; begin += wave) {
    const std::int64_t end = std::min(begin + wave, dims.batch);
    for_rows(potentials, begin, end, [&](std::int64_t b, const Row& row, Workspace& workspace) {
      solve_row(b, row, workspace, reducer.slot(b - begin));
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
  const Dims dims = check_potentials(potentials);
  check_vector("score", false, score.extent(0), dims.batch);
  check_segments(segmentations, dims, potentials.lengths, true);
  load_model(potentials, dims, state_->model);
  state_->for_rows(potentials, 0, dims.batch, [&](std::int64_t b, const Row& row, Workspace&) {
    score(b) = score_row(state_->model, row, segmentations, segmentations.row_pointer(b),
                         segmentations.row_pointer(b + 1));
  });
}

template <class T>
void Engine::posteriors(const Potentials<T>& potentials, const Posteriors<T>& result) {
  const Dims dims = check_potentials(potentials);
  check_posteriors(result, dims);
  const bool reference = state_->prepare(potentials, dims);
  const bool want_entropy = !result.entropy.empty();
  state_->for_rows(
      potentials, 0, dims.batch, [&](std::int64_t b, const Row& row, Workspace& workspace) {
        RowSolver solver(state_->model, state_->tables, reference, row, workspace);
        const double log_partition = solver.forward();
        set(result.log_partition, b, log_partition);
        set(result.status, b, log_partition == kNegInf ? RowStatus::kNoPath : RowStatus::kOk);
        set(result.entropy, b, 0.0);
        if (log_partition == kNegInf || row.length == 0) {
          store_posteriors(result, dims, b, 0, nullptr);
          return;
        }
        const RowExpectations& e =
            solver.expectations(want_entropy, want_entropy || !result.duration.empty());
        store_posteriors(result, dims, b, row.length, &e);
        // An entropy is not negative; only rounding can make the difference so.
        if (want_entropy)
          result.entropy(b) = std::max(0.0, log_partition - expected_score(state_->model, row, e));
      });
}

template <class T>
void Engine::segment_posteriors(const Potentials<T>& potentials, const SegmentationsView& segments,
                                const View<double, 1>& probability) {
  const Dims dims = check_potentials(potentials);
  check_segments(segments, dims, potentials.lengths, false);
  check_vector("probability", false, probability.extent(0), segments.start.extent(0));
  const bool reference = state_->prepare(potentials, dims);
  state_->for_rows(
      potentials, 0, dims.batch, [&](std::int64_t b, const Row& row, Workspace& workspace) {
        const std::int64_t first = segments.row_pointer(b);
        const std::int64_t last = segments.row_pointer(b + 1);
        if (first == last) return;
        RowSolver solver(state_->model, state_->tables, reference, row, workspace);
        const bool possible = solver.forward() > kNegInf;
        if (possible) solver.expectations(false, false);
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
  const Dims dims = check_potentials(potentials);
  check_vector("score", result.score.empty(), result.score.extent(0), dims.batch);
  check_vector("status", result.status.empty(), result.status.extent(0), dims.batch);
  load_model(potentials, dims, state_->model);
  std::vector<Segmentations> rows(static_cast<std::size_t>(dims.batch));
  state_->for_rows(
      potentials, 0, dims.batch, [&](std::int64_t b, const Row& row, Workspace& workspace) {
        Segmentations& mine = rows[static_cast<std::size_t>(b)];
        const bool possible =
            row.length == 0 || viterbi_row(state_->model, row, workspace.viterbi, workspace.path);
        if (row.length > 0)
          for (const Segment& s : workspace.path) mine.append(s.start, s.duration, s.label);
        set(result.score, b,
            possible ? score_row(state_->model, row, mine.view(), 0, mine.segments()) : kNegInf);
        set(result.status, b, possible ? RowStatus::kOk : RowStatus::kNoPath);
      });
  best.clear();
  for (const Segmentations& row : rows) {
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

}  // namespace segfuse::semicrf
