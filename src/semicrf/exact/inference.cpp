#include "semicrf/exact/inference.h"

#include <algorithm>

#include "semicrf/model/posteriors.h"

namespace segfuse::semicrf {
namespace {

void subtract(AlignedDoubles& from, const AlignedDoubles& what) {
  for (std::int64_t i = 0; i < from.size(); ++i) from[i] -= what[i];
}

/// Keeps the counts of tables with the constraints, for `Less` to take off those without.
class Kept : public TableCounts {
 public:
  Kept(const TableCounts& wanted, const Dims& dims, std::int64_t length, LatticeWorkspace& w)
      : dims_(dims), w_(w) {
    want_segments = wanted.want_segments;
    want_transitions = wanted.want_transitions;
    if (want_segments) w.segment_counts.assign(length * dims.max_duration * dims.stride, 0.0);
    if (want_transitions) w.change_counts.assign(length * dims.classes * dims.stride, 0.0);
  }
  void segments(std::int64_t s, std::int64_t n, double* counts) override {
    std::copy_n(counts, n * dims_.stride, of_segments(s));
  }
  void transitions(std::int64_t s, double* counts) override {
    std::copy_n(counts, dims_.classes * dims_.stride, of_changes(s));
  }
  double* of_segments(std::int64_t s) const {
    return w_.segment_counts.data() + s * dims_.max_duration * dims_.stride;
  }
  double* of_changes(std::int64_t s) const {
    return w_.change_counts.data() + s * dims_.classes * dims_.stride;
  }

 private:
  const Dims& dims_;
  LatticeWorkspace& w_;
};

/// Hands on what it gets less what was kept.
class Less : public TableCounts {
 public:
  Less(const Kept& kept, const Dims& dims, TableCounts& to) : kept_(kept), dims_(dims), to_(to) {
    want_segments = kept.want_segments;
    want_transitions = kept.want_transitions;
  }
  void segments(std::int64_t s, std::int64_t n, double* counts) override {
    const double* with = kept_.of_segments(s);
    for (std::int64_t i = 0; i < n * dims_.stride; ++i) counts[i] -= with[i];
    to_.segments(s, n, counts);
  }
  void transitions(std::int64_t s, double* counts) override {
    const double* with = kept_.of_changes(s);
    for (std::int64_t i = 0; i < dims_.classes * dims_.stride; ++i) counts[i] -= with[i];
    to_.transitions(s, counts);
  }

 private:
  const Kept& kept_;
  const Dims& dims_;
  TableCounts& to_;
};

/// Counts without the constraints less counts with them, into w.without and w.tail_count.
const RowExpectations& difference_of_counts(const ScopedModel& constrained, const ScopedModel& all,
                                            const Wanted& wanted, LatticeWorkspace& w,
                                            TableCounts& tables) {
  Kept kept(tables, all.model.dims, w.scoped.row.length, w);
  Less less(kept, all.model.dims, tables);
  const RowExpectations& with = counts_of(constrained, w.scoped, wanted, w, &kept);
  w.without.tables = &less;
  w.without.want_transition = wanted.transition;
  w.without.want_duration = wanted.duration;
  AlignedDoubles tail;
  tail.assign(all.model.dims.stride, 0.0);
  lattice_backward(lattice_of(all, w.other), w.second, &w.without, tail.data());
  subtract(w.without.label, with.label);
  subtract(w.without.start, with.start);
  subtract(w.without.end, with.end);
  if (wanted.transition) subtract(w.without.transition, with.transition);
  if (wanted.duration) subtract(w.without.duration, with.duration);
  subtract(tail, w.tail_count);
  std::swap(tail, w.tail_count);
  return w.without;
}

void check_results(const LossResult& r, const Dims& dims) {
  check_vector("loss", r.loss.empty(), r.loss.extent(0), dims.batch);
  check_vector("log_partition", r.log_partition.empty(), r.log_partition.extent(0), dims.batch);
  check_vector("score", r.score.empty(), r.score.extent(0), dims.batch);
  check_vector("status", r.status.empty(), r.status.extent(0), dims.batch);
}

/// Writes one row's numbers; `all` is the log-partition without the constraints.
RowStatus store_loss(const LossResult& r, std::int64_t b, double all, double constrained) {
  RowStatus status = RowStatus::kOk;
  if (all == kNegInf)
    status = RowStatus::kNoPath;
  else if (constrained == kNegInf)
    status = RowStatus::kImpossibleGold;
  // The constrained sum is part of the whole; only rounding can put it above.
  const double loss = status == RowStatus::kOk ? std::max(0.0, all - constrained) : -kNegInf;
  set_element(r.loss, b, loss);
  set_element(r.log_partition, b, all);
  set_element(r.score, b, constrained);
  set_element(r.status, b, status);
  return status;
}

/// Memory in the shapes of the gradients that are wanted.
template <class T>
class GradientCopy {
 public:
  explicit GradientCopy(const Gradients<T>& like) : like_(like) {
    make(like.emission, views_.emission);
    make(like.transition, views_.transition);
    make(like.duration, views_.duration);
    make(like.initial, views_.initial);
    make(like.final, views_.final);
    make(like.start, views_.start);
    make(like.end, views_.end);
  }
  const Gradients<T>& views() const { return views_; }
  /// Takes the copy's elements off those of the original.
  void subtract() const {
    subtract(like_.emission, views_.emission);
    subtract(like_.transition, views_.transition);
    subtract(like_.duration, views_.duration);
    subtract(like_.initial, views_.initial);
    subtract(like_.final, views_.final);
    subtract(like_.start, views_.start);
    subtract(like_.end, views_.end);
  }

 private:
  template <int N>
  void make(const View<T, N>& like, View<T, N>& view) {
    if (like.empty()) return;
    std::int64_t size = 1;
    for (const std::int64_t extent : like.extents()) size *= extent;
    // A view without data is absent, so an empty shape gets an element too.
    memory_.emplace_back(static_cast<std::size_t>(std::max<std::int64_t>(size, 1)));
    view = {memory_.back().data(), like.extents()};
  }
  template <int N>
  static View<T, 3> in_three(const View<T, N>& view) {
    std::array<std::int64_t, 3> extents{1, 1, 1};
    std::array<std::int64_t, 3> strides{0, 0, 0};
    std::copy_n(view.extents().begin(), N, extents.begin() + 3 - N);
    std::copy_n(view.strides().begin(), N, strides.begin() + 3 - N);
    return {view.data(), extents, strides};
  }
  template <int N>
  static void subtract(const View<T, N>& from, const View<T, N>& what) {
    if (from.empty()) return;
    const View<T, 3> a = in_three(from);
    const View<T, 3> b = in_three(what);
    for (std::int64_t i = 0; i < a.extent(0); ++i)
      for (std::int64_t j = 0; j < a.extent(1); ++j)
        for (std::int64_t k = 0; k < a.extent(2); ++k) a(i, j, k) -= b(i, j, k);
  }

  const Gradients<T>& like_;
  Gradients<T> views_;
  std::vector<std::vector<T>> memory_;
};

}  // namespace

void store_tail(const View<double, 1>& gradient, const std::vector<double>& counts,
                const Dims& dims, const View<const double, 1>& weights) {
  if (gradient.empty()) return;
  for (std::int64_t c = 0; c < dims.classes; ++c) {
    double sum = 0.0;
    for (std::int64_t b = 0; b < dims.batch; ++b)
      sum += (weights.empty() ? 1.0 : weights(b)) *
             counts[static_cast<std::size_t>(b * dims.classes + c)];
    gradient(c) = sum;
  }
}

Inference::Inference(int threads)
    : Inference(Context().with(options::kThreads, std::int64_t{threads})) {}
Inference::Inference(const Context& context) : state_(std::make_unique<State>(context)) {}

Inference::~Inference() = default;
Inference::Inference(Inference&&) noexcept = default;
Inference& Inference::operator=(Inference&&) noexcept = default;

/// The same where the scope is a matter of scores: two calls of the engine.
template <class T>
void Inference::State::run_on_engine(const Potentials<T>& potentials, const Scope& scope,
                                     bool partial, const LossResult& result,
                                     const Gradients<T>& gradients,
                                     const View<const double, 1>& weights) {
  const ConstrainedPotentials<T> constrained(potentials, scope.constraints);
  if (!partial)
    return engine.log_partition<T>(constrained.potentials(), {result.log_partition, result.status},
                                   gradients, weights);
  const std::int64_t rows = potentials.emission.extent(0);
  std::vector<double> inside(static_cast<std::size_t>(rows));
  std::vector<double> all(inside.size());
  std::vector<double> counting(inside.size());
  std::vector<RowStatus> status(inside.size());
  const GradientCopy<T> copy(gradients);
  engine.log_partition<T>(constrained.potentials(), {inside, status}, copy.views(), weights);
  for (std::size_t b = 0; b < counting.size(); ++b) {
    const double weight = weights.empty() ? 1.0 : weights(static_cast<std::int64_t>(b));
    counting[b] = status[b] == RowStatus::kOk ? weight : 0.0;
  }
  engine.log_partition<T>(potentials, {all, {}}, gradients, counting);
  for (std::int64_t b = 0; b < rows; ++b)
    store_loss(result, b, all[static_cast<std::size_t>(b)], inside[static_cast<std::size_t>(b)]);
  copy.subtract();
}

template <class T>
void Inference::State::run_gradients(const Potentials<T>& potentials, const Scope& scope,
                                     bool partial, const LossResult& result,
                                     const Gradients<T>& gradients,
                                     const View<double, 1>& tail_gradient,
                                     const View<const double, 1>& weights) {
  const Dims dims = check_with_tables(potentials);
  check_gradients(gradients, dims);
  check_weights(weights, dims);
  check_scope(scope, dims, potentials.lengths);
  check_results(result, dims);
  check_vector("the tail gradient", tail_gradient.empty(), tail_gradient.extent(0), dims.classes);
  if (is_plain(scope) && !has_tables(potentials)) {
    for (std::int64_t c = 0; !tail_gradient.empty() && c < dims.classes; ++c)
      tail_gradient(c) = 0.0;
    return run_on_engine(potentials, scope, partial, result, gradients, weights);
  }
  ScopedModel model;
  ScopedModel all;
  load_scoped(potentials, scope, dims, model);
  if (partial) load_scoped(potentials, {{}, scope.tail}, dims, all);
  const Wanted wanted{wants_any(gradients) || !tail_gradient.empty(), !gradients.transition.empty(),
                      !gradients.duration.empty()};
  std::vector<double> tails(static_cast<std::size_t>(dims.batch * dims.classes), 0.0);

  const auto solve_row = [&](std::int64_t b, LatticeWorkspace& w, double* slot) {
    load_scoped_row(potentials, scope.constraints, dims, b, w.scoped);
    const std::int64_t length = w.scoped.row.length;
    const double constrained = forward_of(model, w.scoped, w.lattice);
    if (partial) load_scoped_row(potentials, {}, dims, b, w.other);
    const double total = partial ? forward_of(all, w.other, w.second) : constrained;
    const RowStatus status = store_loss(result, b, total, constrained);
    if (!wanted.any) return;
    const double weight = weights.empty() ? 1.0 : weights(b);
    TableGradients<T> tables(gradients, dims, b);
    if (status != RowStatus::kOk || weight == 0.0 || length == 0) {
      store_row_gradients<T>(gradients, dims, b, 0, nullptr, 0.0);
      tables.clear(0, nullptr);
      return reducer.skip(slot);
    }
    tables.clear(length, reducer.table(slot));
    tables.begin(weight, nullptr);
    const RowExpectations& e = partial ? difference_of_counts(model, all, wanted, w, tables)
                                       : counts_of(model, w.scoped, wanted, w, &tables);
    store_row_gradients(gradients, dims, b, length, &e, weight);
    reducer.fill(slot, e, length);
    std::copy_n(w.tail_count.data(), dims.classes, tails.data() + b * dims.classes);
  };

  reducer.begin(dims, wanted.transition, wanted.duration, !gradients.transition_scores.empty());
  const std::int64_t wave = reducer.rows_per_wave();
  for (std::int64_t begin = 0; begin < dims.batch; begin += wave) {
    const std::int64_t end = std::min(begin + wave, dims.batch);
    for_rows(begin, end, [&](std::int64_t b, LatticeWorkspace& w) {
      solve_row(b, w, reducer.slot(b - begin));
    });
    if (wanted.any) reducer.reduce(begin, end, weights);
  }
  reducer.store(gradients);
  store_tail(tail_gradient, tails, dims, weights);
}

template <class T>
void Inference::log_partition(const Potentials<T>& potentials, const Scope& scope,
                              const PartitionResult& result, const Gradients<T>& gradients,
                              const View<double, 1>& tail_gradient,
                              const View<const double, 1>& weights) {
  LossResult outputs;
  outputs.log_partition = result.log_partition;
  outputs.status = result.status;
  state_->run_gradients(potentials, scope, false, outputs, gradients, tail_gradient, weights);
}

template <class T>
void Inference::partial_loss(const Potentials<T>& potentials, const Scope& scope,
                             const LossResult& result, const Gradients<T>& gradients,
                             const View<double, 1>& tail_gradient,
                             const View<const double, 1>& weights) {
  state_->run_gradients(potentials, scope, true, result, gradients, tail_gradient, weights);
}

template <class T>
void Inference::posteriors(const Potentials<T>& potentials, const Scope& scope,
                           const Posteriors<T>& result) {
  const Dims dims = check_with_tables(potentials);
  check_scope(scope, dims, potentials.lengths);
  check_posteriors(result, dims);
  if (is_plain(scope)) {
    const ConstrainedPotentials<T> constrained(potentials, scope.constraints);
    return state_->engine.posteriors(constrained.potentials(), result);
  }
  ScopedModel model;
  load_scoped(potentials, scope, dims, model);
  const bool want_entropy = !result.entropy.empty();
  const Wanted wanted{true, want_entropy, want_entropy || !result.duration.empty()};
  state_->for_rows(0, dims.batch, [&](std::int64_t b, LatticeWorkspace& w) {
    load_scoped_row(potentials, scope.constraints, dims, b, w.scoped);
    const double log_partition = forward_of(model, w.scoped, w.lattice);
    set_element(result.log_partition, b, log_partition);
    set_element(result.status, b, log_partition == kNegInf ? RowStatus::kNoPath : RowStatus::kOk);
    set_element(result.entropy, b, 0.0);
    const Row& row = w.scoped.row;
    if (log_partition == kNegInf || row.length == 0)
      return store_posteriors(result, dims, b, 0, nullptr);
    ExpectedTables tables(row, dims);
    const RowExpectations& e =
        counts_of(model, w.scoped, wanted, w, want_entropy ? &tables : nullptr);
    store_posteriors(result, dims, b, row.length, &e);
    if (!want_entropy) return;
    double score = expected_score(model.model, row, e) + tables.value();
    for (std::int64_t c = 0; model.tail.size() > 0 && c < dims.classes; ++c)
      if (model.tail[c] > kNegInf) score += w.tail_count[c] * model.tail[c];
    // An entropy is not negative; only rounding can make the difference so.
    result.entropy(b) = std::max(0.0, log_partition - score);
  });
}

#define SEGFUSE_INSTANTIATE(T)                                                                  \
  template void Inference::log_partition(const Potentials<T>&, const Scope&,                    \
                                         const PartitionResult&, const Gradients<T>&,           \
                                         const View<double, 1>&, const View<const double, 1>&); \
  template void Inference::partial_loss(const Potentials<T>&, const Scope&, const LossResult&,  \
                                        const Gradients<T>&, const View<double, 1>&,            \
                                        const View<const double, 1>&);                          \
  template void Inference::posteriors(const Potentials<T>&, const Scope&, const Posteriors<T>&);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
