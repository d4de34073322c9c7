// Log-partition, partial loss and posteriors within a scope.

#include "runtime/open_device.h"
#include "semicrf/cuda/inference_state.h"

#include "semicrf/cuda/engine_state.h"
#include "semicrf/model/posteriors.h"
#include "semicrf/model/scope.h"

namespace segfuse::semicrf {
namespace {

constexpr unsigned kStrideBlocks = 1024;  ///< of launches over all elements

void set_rows(ScopeCall& call, const LossResult& r) {
  const std::int64_t rows = call.sizes.batch;
  call.rows.loss = row_output<double>("loss", r.loss, rows);
  call.rows.log_partition = row_output<double>("log_partition", r.log_partition, rows);
  call.rows.score = row_output<double>("score", r.score, rows);
  call.rows.status = row_output<unsigned char>("status", r.status, rows);
}

template <int N, class T>
View<T, N> copy_like(const View<T, N>& view, const void* memory) {
  return memory == nullptr ? View<T, N>()
                           : View<T, N>(static_cast<T*>(const_cast<void*>(memory)), view.extents());
}

template <class T, int N>
std::int64_t bytes_of(const View<T, N>& view) {
  std::int64_t n = view.empty() ? 0 : static_cast<std::int64_t>(sizeof(T));
  for (const std::int64_t extent : view.extents()) n *= extent;
  return n;
}

void add_bytes(gpu::Workspace& workspace, void*& pointer, std::int64_t bytes) {
  workspace.add(reinterpret_cast<std::byte*&>(pointer), bytes);
}

}  // namespace

template <class T>
void CudaInference::State::plan_constrained(gpu::Workspace& workspace, ScopeCall& call) {
  const gpu::Sizes& n = call.sizes;
  const gpu::Known& x = call.known;
  const auto add = [&](void*& pointer, bool wanted, std::int64_t elements) {
    add_bytes(workspace, pointer, wanted ? elements * static_cast<std::int64_t>(sizeof(T)) : 0);
  };
  const std::int64_t frames = static_cast<std::int64_t>(n.batch) * n.frames;
  add(call.constrained.emission, x.allowed.data != nullptr || x.label.data != nullptr,
      frames * n.classes);
  add(call.constrained.transition, x.transition.data != nullptr,
      slices_of(n) * n.classes * n.classes);
  add(call.constrained.duration, x.min_duration.data != nullptr || x.max_duration.data != nullptr,
      static_cast<std::int64_t>(n.max_duration) * n.classes);
}

template <class T>
Potentials<T> CudaInference::State::write_constrained(const ScopeCall& call,
                                                      const Potentials<T>& potentials,
                                                      StreamHandle stream) {
  const gpu::Constrained& to = call.constrained;
  Potentials<T> p = potentials;
  if (to.emission != nullptr)
    p.emission = {static_cast<const T*>(to.emission), p.emission.extents()};
  if (to.transition != nullptr)
    p.transition = {static_cast<const T*>(to.transition), p.transition.extents()};
  if (to.duration != nullptr)
    p.duration = {static_cast<const T*>(to.duration), p.duration.extents()};
  if (to.emission != nullptr || to.transition != nullptr || to.duration != nullptr)
    launch(typed<T>("copy_constrained"), {kStrideBlocks}, {256}, call, stream);
  return p;
}

/// The same where the scope is a matter of scores: two calls of the engine.
template <class T>
void CudaInference::State::run_on_engine(ScopeCall& call, const Potentials<T>& potentials,
                                         bool partial, const LossResult& result,
                                         const Gradients<T>& gradients,
                                         const View<const double, 1>& weights,
                                         StreamHandle stream) {
  const std::int64_t rows = call.sizes.batch;
  gpu::Workspace workspace(*gpu, stream);
  plan_constrained<T>(workspace, call);
  gpu::GradientCopies& copies = call.copies;
  double* totals[2] = {nullptr, nullptr};
  if (partial) {
    call.models = 2;
    workspace.add(totals[0], rows);
    workspace.add(totals[1], rows);
    workspace.add(call.row_weight, rows);
    add_bytes(workspace, copies.emission, bytes_of(gradients.emission));
    add_bytes(workspace, copies.transition, bytes_of(gradients.transition));
    add_bytes(workspace, copies.duration, bytes_of(gradients.duration));
    add_bytes(workspace, copies.initial, bytes_of(gradients.initial));
    add_bytes(workspace, copies.final, bytes_of(gradients.final));
    add_bytes(workspace, copies.start, bytes_of(gradients.start));
    add_bytes(workspace, copies.end, bytes_of(gradients.end));
  }
  workspace.allocate();
  call.faults = faults.words();
  sizes = call.sizes;
  const Potentials<T> constrained = write_constrained(call, potentials, stream);
  if (!partial)
    return engine.log_partition<T>(constrained, {result.log_partition, result.status}, gradients,
                                   weights, stream.get());
  Gradients<T> second;
  second.emission = copy_like(gradients.emission, copies.emission);
  second.transition = copy_like(gradients.transition, copies.transition);
  second.duration = copy_like(gradients.duration, copies.duration);
  second.initial = copy_like(gradients.initial, copies.initial);
  second.final = copy_like(gradients.final, copies.final);
  second.start = copy_like(gradients.start, copies.start);
  second.end = copy_like(gradients.end, copies.end);
  if (rows == 0) return engine.log_partition<T>(potentials, {}, gradients, {}, stream.get());
  engine.log_partition<T>(constrained, {{totals[0], {rows}}, {}}, second, weights, stream.get());
  engine.log_partition<T>(potentials, {{totals[1], {rows}}, {}}, {}, {}, stream.get());
  call.lattice[0].log_partition = totals[0];
  call.lattice[1].log_partition = totals[1];
  launch(kernel("scope_rows"), {side(ceil_divide(rows, 128))}, {128}, call, stream);
  const View<const double, 1> counting(call.row_weight, {rows});
  engine.log_partition<T>(potentials, {}, gradients, counting, stream.get());
  launch(typed<T>("subtract_gradients"), {kStrideBlocks}, {256}, call, stream);
}

template <class T>
void CudaInference::State::run_gradients(const Potentials<T>& potentials, const Scope& scope,
                                         bool partial, const LossResult& result,
                                         const Gradients<T>& gradients,
                                         const View<double, 1>& tail_gradient,
                                         const View<const double, 1>& weights,
                                         StreamHandle stream) {
  ScopeCall call = make_scope_call(potentials, scope);
  Call common = make_call(potentials);
  const DeviceWanted wanted = want_gradients(potentials, gradients, common);
  set_weights(weights, common);
  call.gradients = common.gradients;
  call.weights = common.weights;
  call.weight_stride = common.weight_stride;
  call.tail_gradient = row_output<double>("the tail gradient", tail_gradient, call.sizes.classes);
  set_rows(call, result);
  call.models = partial ? 2 : 1;
  if (is_plain(scope)) {
    if (!tail_gradient.empty()) {  // nothing is beyond K
      ScopeCall none{};
      none.sizes = {0, 0, call.sizes.classes, 0, 0};
      none.tail_gradient = call.tail_gradient;
      store_shared<T>(none, stream);
    }
    return run_on_engine(call, potentials, partial, result, gradients, weights, stream);
  }
  if (call.sizes.batch == 0) return store_shared<T>(call, stream);
  const bool shared = wanted.transition || wanted.duration || wanted.ends || !tail_gradient.empty();
  const bool counted = shared || wanted.frames;
  gpu::Workspace workspace(*gpu, stream);
  plan_scope(workspace, call, {counted, counted, wanted.transition, wanted.duration});
  workspace.allocate();
  forward<T>(call, stream);
  if (!counted) return;
  backward(call, stream);
  if (wanted.frames) store_frames<T>(call, stream);
  if (shared) store_shared<T>(call, stream);
}

template <class T>
void CudaInference::log_partition(const Potentials<T>& potentials, const Scope& scope,
                                  const PartitionResult& result, const Gradients<T>& gradients,
                                  const View<double, 1>& tail_gradient,
                                  const View<const double, 1>& weights, void* caller) {
  const StreamHandle stream = runtime::legacy_if_null(caller);
  LossResult outputs;
  outputs.log_partition = result.log_partition;
  outputs.status = result.status;
  state_->run_gradients(potentials, scope, false, outputs, gradients, tail_gradient, weights,
                        stream);
}

template <class T>
void CudaInference::partial_loss(const Potentials<T>& potentials, const Scope& scope,
                                 const LossResult& result, const Gradients<T>& gradients,
                                 const View<double, 1>& tail_gradient,
                                 const View<const double, 1>& weights, void* caller) {
  const StreamHandle stream = runtime::legacy_if_null(caller);
  state_->run_gradients(potentials, scope, true, result, gradients, tail_gradient, weights, stream);
}

template <class T>
void CudaInference::posteriors(const Potentials<T>& potentials, const Scope& scope,
                               const Posteriors<T>& result, void* caller) {
  const StreamHandle stream = runtime::legacy_if_null(caller);
  State& s = *state_;
  ScopeCall call = make_scope_call(potentials, scope);
  Potentials<T> shapes = potentials;
  shapes.lengths = {};
  check_posteriors(result, check_potentials(shapes));
  if (is_plain(scope)) {
    gpu::Workspace workspace(*s.gpu, stream);
    State::plan_constrained<T>(workspace, call);
    workspace.allocate();
    call.faults = s.faults.words();
    s.sizes = call.sizes;
    s.engine.posteriors(s.write_constrained(call, potentials, stream), result, caller);
    return;
  }
  const std::int64_t rows = call.sizes.batch;
  if (rows == 0) return;
  LossResult outputs;
  outputs.log_partition = result.log_partition;
  outputs.status = result.status;
  set_rows(call, outputs);
  call.rows.entropy = row_output<double>("entropy", result.entropy, rows);
  call.gradients.emission = strided_out(result.label);
  call.gradients.start = strided_out(result.start);
  call.gradients.end = strided_out(result.end);
  call.gradients.boundary = strided_out(result.boundary);
  call.gradients.row_duration = strided_out(result.duration);
  const bool entropy = !result.entropy.empty();
  gpu::Workspace workspace(*s.gpu, stream);
  plan_scope(workspace, call, {true, true, entropy, entropy || !result.duration.empty()});
  workspace.allocate();
  s.forward<T>(call, stream);
  s.backward(call, stream);
  s.store_frames<T>(call, stream);
  const std::int64_t cells =
      static_cast<std::int64_t>(call.sizes.max_duration) * call.sizes.classes;
  if (!result.duration.empty())
    s.launch(s.typed<T>("store_row_durations"), {side(ceil_divide(cells, 128)), side(rows)}, {128},
             call, stream);
  if (entropy) s.launch(s.kernel("expected_scores"), {side(rows)}, {256}, call, stream);
}

#define SEGFUSE_INSTANTIATE(T)                                                                     \
  template void CudaInference::log_partition(                                                      \
      const Potentials<T>&, const Scope&, const PartitionResult&, const Gradients<T>&,             \
      const View<double, 1>&, const View<const double, 1>&, void*);                                \
  template void CudaInference::partial_loss(const Potentials<T>&, const Scope&, const LossResult&, \
                                            const Gradients<T>&, const View<double, 1>&,           \
                                            const View<const double, 1>&, void*);                  \
  template void CudaInference::posteriors(const Potentials<T>&, const Scope&,                      \
                                          const Posteriors<T>&, void*);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
