// What the calls of CudaInference have in common: checks of shapes, workspaces, passes.

#include <algorithm>

#include "runtime/open_device.h"
#include "semicrf/cuda/engine_state.h"
#include "semicrf/cuda/inference_state.h"
#include "semicrf/model/scope.h"

namespace segfuse::semicrf {

template <class T>
ScopeCall make_scope_call(const Potentials<T>& potentials, const Scope& scope) {
  const Call common = make_call(potentials);
  Dims dims;
  dims.batch = common.sizes.batch;
  dims.frames = common.sizes.frames;
  dims.classes = common.sizes.classes;
  const Constraints& x = scope.constraints;
  check_constraint_shapes(x, dims);
  if (!scope.tail.empty()) check_vector("tail", false, scope.tail.extent(0), dims.classes);
  ScopeCall call{};
  call.sizes = common.sizes;
  call.scores[0] = call.scores[1] = common.scores;
  call.lengths[0] = call.lengths[1] = common.lengths;
  call.known = {strided(x.allowed),      strided(x.transition), strided(x.min_duration),
                strided(x.max_duration), strided(x.label),      strided(x.boundary),
                strided(scope.tail)};
  call.models = 1;
  return call;
}

void plan_loaded(gpu::Workspace& workspace, ScopeCall& call) {
  const gpu::Sizes& n = call.sizes;
  const std::int64_t frames = static_cast<std::int64_t>(n.batch) * n.frames;
  const std::int64_t cells = frames * n.classes;
  const bool tailed = call.known.tail.data != nullptr;
  for (int which = 0; which < call.models; ++which) {
    const bool bounded = which == 0 && call.known.boundary.data != nullptr;
    gpu::Loaded& x = call.loaded[which];
    workspace.add(x.emission, cells);
    workspace.add(x.start, call.scores[which].start.data != nullptr || bounded ? cells : 0);
    workspace.add(x.end, call.scores[which].end.data != nullptr ? cells : 0);
    workspace.add(x.transition, slices_of(n) * n.classes * n.classes);
    workspace.add(x.duration, static_cast<std::int64_t>(n.max_duration) * n.classes);
    workspace.add(x.initial, n.classes);
    workspace.add(x.final, n.classes);
    workspace.add(x.tail, tailed ? n.classes : 0);
    workspace.add(x.forced, bounded ? frames : 0);
  }
}

void plan_scope(gpu::Workspace& workspace, ScopeCall& call, const ScopeArrays& arrays) {
  plan_loaded(workspace, call);
  const gpu::Sizes& n = call.sizes;
  const std::int64_t rows = n.batch;
  const std::int64_t cells = rows * n.frames * n.classes;
  const std::int64_t boundaries = rows * (n.frames + 1);
  const std::int64_t values = boundaries * n.classes;
  const std::int64_t window = rows * n.max_duration * n.classes;
  const std::int64_t labels = rows * n.classes;
  const std::int64_t pairs = slices_of(n) * n.classes * n.classes;
  const bool tailed = call.known.tail.data != nullptr;
  for (int which = 0; which < call.models; ++which) {
    gpu::LogLattice& l = call.lattice[which];
    workspace.add(l.value, values);
    workspace.add(l.source, n.by_duration != 0 ? 0 : cells);
    workspace.add(l.open, tailed ? values : 0);
    workspace.add(l.base, boundaries);
    workspace.add(l.log_partition, rows);
    workspace.add(l.content, window);
    workspace.add(l.entered, n.by_duration != 0 ? window : 0);
    workspace.add(l.sink, arrays.backward ? values : 0);
    workspace.add(l.open_rest, arrays.backward && tailed ? values : 0);
    workspace.add(l.rest_base, arrays.backward ? boundaries : 0);
    workspace.add(l.terms, arrays.backward ? window : 0);
    workspace.add(l.inner, arrays.backward ? labels : 0);
    workspace.add(l.rest, arrays.backward ? labels : 0);
    gpu::RowCounts& counts = call.counts[which];
    workspace.add(counts.label, arrays.counts ? cells : 0);
    workspace.add(counts.start, arrays.counts ? cells : 0);
    workspace.add(counts.end, arrays.counts ? cells : 0);
    workspace.add(counts.tail, arrays.counts ? labels : 0);
    workspace.add(counts.covered, arrays.counts ? labels : 0);
    workspace.add(counts.transition, arrays.transitions ? rows * pairs : 0);
    workspace.add(counts.duration, arrays.durations ? window : 0);
  }
  workspace.add(call.row_weight, rows);
}

template <class T>
void CudaInference::State::load(ScopeCall& call, StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  sizes = n;
  call.faults = faults.words();
  constexpr std::int64_t kFramesOfBlock = 8;
  const auto models = side(call.models);
  if (n.frames > 0)
    launch(typed<T>("load_frames"),
           {side(ceil_divide(n.frames, kFramesOfBlock)), side(n.batch), models},
           {32, kFramesOfBlock}, call, stream);
  const std::int64_t shared =
      static_cast<std::int64_t>(n.classes) * (slices_of(n) * n.classes + n.max_duration + n.batch);
  launch(typed<T>("load_shared"),
         {side(std::min<std::int64_t>(ceil_divide(shared, 256), 1024)), models}, {256}, call,
         stream);
}

template <class T>
void CudaInference::State::forward(ScopeCall& call, StreamHandle stream) {
  load<T>(call, stream);
  const gpu::Sizes& n = call.sizes;
  launch(kernel("scope_forward"), {side(n.batch), side(call.models)}, row_block(n), call, stream);
  launch(kernel("scope_rows"), {side(ceil_divide(n.batch, 128))}, {128}, call, stream);
}

void CudaInference::State::backward(const ScopeCall& call, StreamHandle stream) {
  launch(kernel("scope_backward"), {side(call.sizes.batch), side(call.models)},
         row_block(call.sizes), call, stream);
}

template <class T>
void CudaInference::State::store_frames(const ScopeCall& call, StreamHandle stream) {
  constexpr std::int64_t kFramesOfBlock = 8;
  const gpu::Sizes& n = call.sizes;
  if (n.frames > 0)
    launch(typed<T>("store_frames"), {side(ceil_divide(n.frames, kFramesOfBlock)), side(n.batch)},
           {32, kFramesOfBlock}, call, stream);
}

template <class T>
void CudaInference::State::store_shared(const ScopeCall& call, StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  const std::int64_t elements =
      static_cast<std::int64_t>(n.classes) * (slices_of(n) * n.classes + n.max_duration);
  launch(typed<T>("store_shared"), {side(std::min<std::int64_t>(ceil_divide(elements, 128), 4096))},
         {128}, call, stream);
}

CudaInference::CudaInference(int device, CudaOptions options)
    : state_(std::make_unique<State>(runtime::access_cuda(device), options)) {}
CudaInference::CudaInference(std::unique_ptr<State> state) : state_(std::move(state)) {}
template <>
CudaInference OverDevice::make(const runtime::DeviceAccess& device, const CudaOptions& options) {
  return CudaInference(std::make_unique<CudaInference::State>(device, options));
}
CudaInference::~CudaInference() = default;
CudaInference::CudaInference(CudaInference&&) noexcept = default;
CudaInference& CudaInference::operator=(CudaInference&&) noexcept = default;

void CudaInference::check(void* caller) {
  const StreamHandle stream = runtime::legacy_if_null(caller);
  State& s = *state_;
  check_faults(*s.gpu, s.faults.words(), s.sizes, stream);
  s.engine.check(caller);
}

#define SEGFUSE_INSTANTIATE(T)                                                         \
  template ScopeCall make_scope_call(const Potentials<T>&, const Scope&);              \
  template void CudaInference::State::load<T>(ScopeCall&, StreamHandle);               \
  template void CudaInference::State::forward<T>(ScopeCall&, StreamHandle);            \
  template void CudaInference::State::store_frames<T>(const ScopeCall&, StreamHandle); \
  template void CudaInference::State::store_shared<T>(const ScopeCall&, StreamHandle);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
