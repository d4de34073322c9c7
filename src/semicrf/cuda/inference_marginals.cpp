// Divergences of two models, and what is read off posteriors.

#include <fmt/core.h>

#include <algorithm>

#include "runtime/open_device.h"
#include "semicrf/cuda/engine_state.h"
#include "semicrf/cuda/inference_state.h"

namespace segfuse::semicrf {
namespace {

template <class T>
void check_frame_output(const char* name, const View<T, 2>& view, const gpu::Sizes& n) {
  if (view.extent(0) != n.batch || view.extent(1) != n.frames)
    throw UsageError(fmt::format("semicrf: {} has shape ({}, {}), expected (B, T) = ({}, {})", name,
                                 view.extent(0), view.extent(1), n.batch, n.frames));
}

void check_same(const gpu::Sizes& a, const gpu::Sizes& b) {
  if (a.batch != b.batch || a.frames != b.frames || a.classes != b.classes ||
      a.max_duration != b.max_duration || a.by_duration != b.by_duration)
    throw UsageError(fmt::format(
        "semicrf: the two models differ in shape: B, T, K, C are {}, {}, {}, {} and {}, {}, {}, "
        "{}{}",
        a.batch, a.frames, a.max_duration, a.classes, b.batch, b.frames, b.max_duration, b.classes,
        a.by_duration == b.by_duration ? "" : ", and one has transitions by duration"));
}

}  // namespace

template <class T>
void CudaInference::State::diverge(const Potentials<T>& p, const Potentials<T>& q,
                                   const View<double, 1>& cross_entropy,
                                   const View<double, 1>& divergence,
                                   const View<RowStatus, 1>& status, StreamHandle stream) {
  ScopeCall call = make_scope_call(p, {});
  const ScopeCall other = make_scope_call(q, {});
  const gpu::Sizes& n = call.sizes;
  check_same(n, other.sizes);
  call.scores[1] = other.scores[0];
  call.lengths[1] = other.lengths[0];
  call.models = 2;
  call.cross_entropy = row_output<double>("the cross-entropy", cross_entropy, n.batch);
  call.divergence = row_output<double>("the divergence", divergence, n.batch);
  call.model_status = row_output<unsigned char>("status", status, n.batch);
  if (n.batch == 0) return;
  gpu::Workspace workspace(*gpu, stream);
  plan_scope(workspace, call, {true, true, true, true});
  workspace.add(call.forbidden, n.batch);
  workspace.allocate();
  gpu->fill(call.forbidden, 0, sizeof(int) * static_cast<std::size_t>(n.batch), stream);
  forward<T>(call, stream);
  ScopeCall counting = call;
  counting.models = 1;
  backward(counting, stream);
  launch_each("find_forbidden", static_cast<std::int64_t>(n.frames) * n.classes, call, stream);
  launch(kernel("expected_scores"), {side(n.batch)}, {256}, call, stream);
}

template <class T>
void CudaInference::cross_entropy(const Potentials<T>& p, const Potentials<T>& q,
                                  const View<double, 1>& result, const View<RowStatus, 1>& status,
                                  void* caller) {
  const StreamHandle stream = runtime::legacy_if_null(caller);
  state_->diverge(p, q, result, {}, status, stream);
}

template <class T>
void CudaInference::kl(const Potentials<T>& p, const Potentials<T>& q,
                       const View<double, 1>& result, const View<RowStatus, 1>& status,
                       void* caller) {
  const StreamHandle stream = runtime::legacy_if_null(caller);
  state_->diverge(p, q, {}, result, status, stream);
}

template <class T>
void CudaInference::boundary_within(const Potentials<T>& potentials, const Scope& scope,
                                    std::int64_t tolerance, const View<T, 2>& probability,
                                    void* caller) {
  const StreamHandle stream = runtime::legacy_if_null(caller);
  State& s = *state_;
  ScopeCall call = make_scope_call(potentials, scope);
  const gpu::Sizes& n = call.sizes;
  if (tolerance < 0) throw UsageError(fmt::format("semicrf: tolerance {} is negative", tolerance));
  check_frame_output("the probability", probability, n);
  if (n.batch == 0 || n.frames == 0) return;
  gpu::MarginalOutputs& m = call.marginals;
  m.near = strided_out(probability);
  m.tolerance = static_cast<int>(std::min<std::int64_t>(tolerance, n.frames));
  m.most = std::min(2 * m.tolerance + 1, n.frames);
  const std::int64_t frames = static_cast<std::int64_t>(n.batch) * n.frames;
  gpu::Workspace workspace(*s.gpu, stream);
  plan_scope(workspace, call, {true, true, false, false});
  workspace.add(m.segments, frames * m.most);
  workspace.add(m.from, frames + n.batch);
  workspace.add(m.until, frames + n.batch);
  workspace.add(m.within, frames);
  workspace.allocate();
  s.forward<T>(call, stream);
  s.backward(call, stream);
  s.launch(s.kernel("short_segments"), {side(ceil_divide(n.frames, 4)), side(n.batch)}, {32, 4},
           call, stream);
  s.launch_each("long_segments", n.frames + 1, call, stream);
  s.launch(s.kernel("starts_within"), {side(ceil_divide(n.batch, 32))}, {32}, call, stream);
  s.launch(s.typed<T>("store_within"), {side(ceil_divide(n.frames, 128)), side(n.batch)}, {128},
           call, stream);
}

template <class T>
void CudaInference::expected_durations(const Potentials<T>& potentials, const Scope& scope,
                                       const View<T, 2>& counts, void* stream) {
  Gradients<T> gradients;
  gradients.duration = counts;
  log_partition(potentials, scope, {}, gradients, {}, {}, stream);
}

template <class T>
void CudaInference::max_marginal(const Potentials<T>& potentials, const Scope& scope,
                                 const View<std::int32_t, 2>& labels, std::int32_t ignore,
                                 void* caller) {
  const StreamHandle stream = runtime::legacy_if_null(caller);
  State& s = *state_;
  ScopeCall call = make_scope_call(potentials, scope);
  check_frame_output("the labels", labels, call.sizes);
  if (call.sizes.batch == 0 || call.sizes.frames == 0) return;
  call.marginals.label = labels.data();
  call.marginals.label_stride[0] = labels.stride(0);
  call.marginals.label_stride[1] = labels.stride(1);
  call.marginals.ignore = ignore;
  gpu::Workspace workspace(*s.gpu, stream);
  plan_scope(workspace, call, {true, true, false, false});
  workspace.allocate();
  s.forward<T>(call, stream);
  s.backward(call, stream);
  s.launch_each("likeliest_labels", call.sizes.frames, call, stream);
}

#define SEGFUSE_INSTANTIATE(T)                                                                   \
  template void CudaInference::cross_entropy(const Potentials<T>&, const Potentials<T>&,         \
                                             const View<double, 1>&, const View<RowStatus, 1>&,  \
                                             void*);                                             \
  template void CudaInference::kl(const Potentials<T>&, const Potentials<T>&,                    \
                                  const View<double, 1>&, const View<RowStatus, 1>&, void*);     \
  template void CudaInference::boundary_within(const Potentials<T>&, const Scope&, std::int64_t, \
                                               const View<T, 2>&, void*);                        \
  template void CudaInference::expected_durations(const Potentials<T>&, const Scope&,            \
                                                  const View<T, 2>&, void*);                     \
  template void CudaInference::max_marginal(const Potentials<T>&, const Scope&,                  \
                                            const View<std::int32_t, 2>&, std::int32_t, void*);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
