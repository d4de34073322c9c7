// Decoding of rows that arrive in pieces: memory that lives from piece to piece, and its launches.

#include <fmt/core.h>

#include <algorithm>

#include "runtime/open_device.h"
#include "semicrf/cuda/inference_state.h"
#include "semicrf/cuda/kernels/online/arguments.h"

namespace segfuse::semicrf {

using gpu::OnlineCall;
using gpu::OnlineState;

struct CudaOnlineDecoder::State {
  std::shared_ptr<gpu::Queue> gpu;
  StreamHandle stream;
  OnlineCall call{};
  std::map<std::string, GpuKernel> kernels;
  std::unique_ptr<gpu::Workspace> memory;
  std::unique_ptr<gpu::Workspace> history;
  std::int64_t rows = 0;            ///< of the history
  std::int64_t first = 0;           ///< the boundary of its first row
  std::int64_t frames = 0;          ///< that were pushed
  std::vector<std::int32_t> taken;  ///< decided segments that the caller has not requested

  State(const runtime::DeviceAccess& device, StreamHandle s, const Context& context)
      : gpu(std::make_shared<gpu::Queue>(device, context)), stream(s) {}

  GpuKernel kernel(const std::string& entry) {
    GpuKernel& kernel = kernels[entry];
    if (kernel.handle == nullptr) kernel = gpu->kernel(gpu::online_program(), entry);
    return kernel;
  }
  template <class T>
  GpuKernel typed(const std::string& entry) {
    GpuKernel& kernel = kernels[entry + ":" + kInputName<T>];
    if (kernel.handle == nullptr) kernel = gpu->kernel(gpu::online_program(kInputName<T>), entry);
    return kernel;
  }
  void launch(GpuKernel kernel, Extent3 grid, Extent3 block) {
    gpu->launch(kernel, {grid, block}, call, stream);
  }
  void on_all_elements(GpuKernel kernel, std::int64_t n) {
    launch(kernel, {side(std::clamp<std::int64_t>(ceil_divide(n, 256), 1, 1024))}, {256});
  }

  template <class T>
  void begin(const Potentials<T>& shared, const Scope& scope);
  void plan(bool tailed);
  void make_room(std::int64_t n);
  OnlineState fetch();
};

/// The window, and what is one per class.
void CudaOnlineDecoder::State::plan(bool tailed) {
  const std::int64_t classes = call.sizes.classes;
  const std::int64_t longest = call.sizes.max_duration;
  gpu::Workspace& w = *memory;
  w.add(call.shared.transition, classes * classes);
  w.add(call.shared.duration, longest * classes);
  w.add(call.shared.initial, classes);
  w.add(call.shared.final, classes);
  w.add(call.shared.tail, tailed ? classes : 0);
  for (gpu::LogLattice* l : {&call.sum, &call.best}) {
    w.add(l->value, (call.capacity + 1) * classes);
    w.add(l->source, call.capacity * classes);
    w.add(l->open, tailed ? (call.capacity + 1) * classes : 0);
    w.add(l->base, call.capacity + 1);
    w.add(l->content, longest * classes);
  }
  w.add(call.longer, (longest + 1) * classes);
  w.add(call.open_frames, classes);
  w.add(call.state, 1);
  w.add(call.faults, gpu::kFaults);
}

template <class T>
void CudaOnlineDecoder::State::begin(const Potentials<T>& shared, const Scope& scope) {
  ScopeCall load = make_scope_call(shared, scope);
  call.sizes = load.sizes;
  call.capacity = 2 * call.sizes.max_duration + 64;
  memory = std::make_unique<gpu::Workspace>(*gpu, stream);
  plan(!scope.tail.empty());
  memory->allocate();
  gpu->fill(call.faults, 0xff, gpu::kFaults * sizeof(unsigned long long), stream);
  load.loaded[0] = call.shared;
  load.faults = call.faults;
  const std::int64_t elements = static_cast<std::int64_t>(call.sizes.classes) *
                                (call.sizes.classes + call.sizes.max_duration);
  gpu->launch(gpu->kernel(gpu::scope_program(kInputName<T>), "load_shared"),
              {{side(std::min<std::int64_t>(ceil_divide(elements, 256), 1024))}, {256}}, load,
              stream);
  launch(kernel("online_begin"), {1}, {256});
}

/// The state as it is when the stream has come here; its decided segments are put aside.
OnlineState CudaOnlineDecoder::State::fetch() {
  OnlineState state{};
  gpu->read(&state, call.state, sizeof state, stream);
  if (state.decided_count == 0) return state;
  const std::size_t old = taken.size();
  const auto more = static_cast<std::size_t>(3 * state.decided_count);
  taken.resize(old + more);
  gpu->read(taken.data() + old, call.log, more * sizeof(std::int32_t), stream);
  gpu->fill(&call.state->decided_count, 0, sizeof(int), stream);
  return state;
}

/// Rows of the history for n more frames.
void CudaOnlineDecoder::State::make_room(std::int64_t n) {
  if (frames + n + 1 - first <= rows) return;
  constexpr std::int64_t kMin = 256;
  constexpr std::int64_t kMaxFrames = 1 << 30;
  if (frames + n >= kMaxFrames)
    throw UsageError(fmt::format("semicrf: a row of {} frames; on the device it must be below {}",
                                 frames + n, kMaxFrames));
  const std::int64_t decided = rows == 0 ? 0 : fetch().decided.t;
  rows = std::max(kMin, 2 * (frames + n + 1 - decided));
  const std::unique_ptr<gpu::Workspace> old = std::move(history);
  call.old_duration = call.duration;
  call.old_before = call.before;
  history = std::make_unique<gpu::Workspace>(*gpu, stream);
  history->add(call.duration, rows * call.sizes.classes);
  history->add(call.before, rows * call.sizes.classes);
  history->add(call.marked, rows * call.sizes.classes);
  history->add(call.log, 3 * rows);
  history->allocate();
  first = decided;
  if (old == nullptr) return;
  call.frames_before = static_cast<int>(decided);
  on_all_elements(kernel("online_move"), (frames + 1 - decided) * call.sizes.classes);
  launch(kernel("online_moved"), {1}, {1});
}

template <class T>
CudaOnlineDecoder OverDevice::online(const runtime::DeviceAccess& device,
                                     const Potentials<T>& shared, const OnlineOptions& options,
                                     const View<const double, 1>& tail, void* stream,
                                     const Context& context) {
  Potentials<T> p = shared_scores(shared);
  if (p.transition.extent(0) > 1)
    throw UsageError("semicrf: online decoding takes transitions that do not depend on duration");
  const std::int64_t longest = shared.duration.extent(0);
  if (options.max_delay != 0 && options.max_delay < longest)
    throw UsageError(
        fmt::format("semicrf: a delay of {} frames is shorter than the longest duration, {}",
                    options.max_delay, longest));
  constexpr std::int64_t kMaxInt = 1 << 30;
  auto state =
      std::make_unique<CudaOnlineDecoder::State>(device, runtime::legacy_if_null(stream), context);
  state->call.max_delay = static_cast<int>(std::min(options.max_delay, kMaxInt));
  state->begin(p, {{}, tail});
  return CudaOnlineDecoder(std::move(state));
}

template <class T>
CudaOnlineDecoder::CudaOnlineDecoder(int device, const Potentials<T>& shared,
                                     const OnlineOptions& options,
                                     const View<const double, 1>& tail, void* stream,
                                     const Context& context)
    : CudaOnlineDecoder(OverDevice::online(runtime::access_cuda(device), shared, options, tail,
                                           stream, context)) {}
CudaOnlineDecoder::CudaOnlineDecoder(std::unique_ptr<State> state) : state_(std::move(state)) {}

CudaOnlineDecoder::~CudaOnlineDecoder() = default;
CudaOnlineDecoder::CudaOnlineDecoder(CudaOnlineDecoder&&) noexcept = default;
CudaOnlineDecoder& CudaOnlineDecoder::operator=(CudaOnlineDecoder&&) noexcept = default;

template <class T>
void CudaOnlineDecoder::push(const View<const T, 2>& emission, const View<const T, 2>& start,
                             const View<const T, 2>& end) {
  State& s = *state_;
  OnlineCall& call = s.call;
  const std::int64_t classes = call.sizes.classes;
  const std::int64_t n = emission.extent(0);
  const auto check_shape = [&](const char* name, const View<const T, 2>& view, bool optional) {
    if (view.empty() && (optional || n == 0)) return;
    if (view.extent(0) != n || view.extent(1) != classes)
      throw UsageError(fmt::format("semicrf: {} has shape ({}, {}), expected ({}, {})", name,
                                   view.extent(0), view.extent(1), n, classes));
  };
  check_shape("emission", emission, false);
  check_shape("start", start, true);
  check_shape("end", end, true);
  if (n == 0) return;
  s.make_room(n);
  call.scores.emission = strided(emission);
  call.scores.start = strided(start);
  call.scores.end = strided(end);
  call.sizes.frames = static_cast<int>(n);
  call.frames_before = static_cast<int>(s.frames);
  gpu::Workspace piece(*s.gpu, s.stream);
  piece.add(call.emission, n * classes);
  piece.add(call.start, start.empty() ? 0 : n * classes);
  piece.add(call.end, end.empty() ? 0 : n * classes);
  piece.allocate();
  s.on_all_elements(s.typed<T>("online_load"), n * classes);
  s.launch(s.kernel("online_push"), {1}, row_block(call.sizes));
  s.frames += n;
}

void CudaOnlineDecoder::take(Segmentations& decided) {
  State& s = *state_;
  s.fetch();
  for (std::size_t i = 0; i < s.taken.size(); i += 3)
    decided.append(s.taken[i], s.taken[i + 1], s.taken[i + 2]);
  s.taken.clear();
}

RowStatus CudaOnlineDecoder::finish(Segmentations& decided) {
  State& s = *state_;
  s.launch(s.kernel("online_finish"), {1}, {256});
  const OnlineState state = s.fetch();
  take(decided);
  decided.end_row();
  s.frames = 0;
  s.first = 0;
  return state.status == 0 ? RowStatus::kOk : RowStatus::kNoPath;
}

std::int64_t CudaOnlineDecoder::frames() const { return state_->frames; }
std::int64_t CudaOnlineDecoder::decided_frames() { return state_->fetch().decided.t; }
double CudaOnlineDecoder::log_partition() { return state_->fetch().log_partition; }
double CudaOnlineDecoder::best_score() { return state_->fetch().best_score; }

void CudaOnlineDecoder::check() {
  gpu::Sizes sizes = state_->call.sizes;
  sizes.frames = 1 << 30;
  check_faults(*state_->gpu, state_->call.faults, sizes, state_->stream);
}

#define SEGFUSE_INSTANTIATE(T)                                                                   \
  template CudaOnlineDecoder OverDevice::online(                                                 \
      const runtime::DeviceAccess&, const Potentials<T>&, const OnlineOptions&,                  \
      const View<const double, 1>&, void*, const Context&);                                      \
  template CudaOnlineDecoder::CudaOnlineDecoder(int, const Potentials<T>&, const OnlineOptions&, \
                                                const View<const double, 1>&, void*,             \
                                                const Context&);                                 \
  template void CudaOnlineDecoder::push(const View<const T, 2>&, const View<const T, 2>&,        \
                                        const View<const T, 2>&);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
