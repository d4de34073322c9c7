// Samples and the n best segmentations.

#include <fmt/core.h>

#include <algorithm>

#include "runtime/open_device.h"
#include "semicrf/cuda/inference_state.h"

namespace segfuse::semicrf {
namespace {

/// Where lists of at most n segmentations a row go.
void set_lists(ScopeCall& call, const DeviceSegmentationLists& out, std::int64_t n) {
  constexpr std::int64_t kMaxLists = 1 << 30;
  const std::int64_t rows = call.sizes.batch;
  if (n > kMaxLists / std::max<std::int64_t>(1, rows))
    throw UsageError(
        fmt::format("semicrf: {} segmentations of each of {} rows; at most {} in one call", n, rows,
                    kMaxLists));
  const std::int64_t lists = rows * n;
  const std::int64_t room = out.start.extent(0);
  call.lists.list_pointer = reinterpret_cast<long long*>(
      whole_output("the lists' list_pointer", out.list_pointer, rows + 1));
  call.lists.row_pointer = reinterpret_cast<long long*>(
      whole_output("the lists' row_pointer", out.row_pointer, lists + 1));
  call.lists.start = whole_output("the lists' start", out.start, room);
  call.lists.duration = whole_output("the lists' duration", out.duration, room);
  call.lists.label = whole_output("the lists' label", out.label, room);
  call.lists.score = whole_output("the lists' score", out.score, lists);
  call.lists.room = room;
  call.lists.each = static_cast<int>(n);
  if (out.list_pointer.empty() || out.row_pointer.empty() ||
      (room > 0 && (out.start.empty() || out.duration.empty() || out.label.empty())))
    throw UsageError(
        "semicrf: lists on the device need list_pointer, row_pointer, start, duration and label "
        "arrays");
}

/// The number of segmentations of T frames, or n where there are more.
std::int64_t segmentations_up_to(const gpu::Sizes& sizes, bool tailed, std::int64_t n) {
  std::vector<std::int64_t> count{1};
  for (std::int64_t t = 1; t <= sizes.frames; ++t) {
    const std::int64_t longest = tailed ? t : std::min<std::int64_t>(t, sizes.max_duration);
    std::int64_t sum = 0;
    for (std::int64_t k = 1; k <= longest && sum < n; ++k)
      sum += count[static_cast<std::size_t>(t - k)];
    // count and n are below 2^30, and classes too.
    count.push_back(std::min(n, std::min(sum, n) * sizes.classes));
    if (count.back() == n) return n;
  }
  return count.back();
}

void plan_lists(gpu::Workspace& workspace, ScopeCall& call) {
  const std::int64_t rows = call.sizes.batch;
  workspace.add(call.lists.made, rows);
  workspace.add(call.lists.count, rows * call.lists.each);
}

void plan_best(gpu::Workspace& workspace, ScopeCall& call) {
  const gpu::Sizes& n = call.sizes;
  gpu::BestLists& b = call.best;
  const bool tailed = call.known.tail.data != nullptr;
  const bool by_duration = n.by_duration != 0;
  b.each = static_cast<int>(segmentations_up_to(n, tailed, call.lists.each));
  b.choices = std::max(n.classes, n.max_duration * (by_duration ? n.classes : 1)) + 1;
  const std::int64_t rows = n.batch;
  const std::int64_t labels = rows * n.classes;
  const std::int64_t states = labels * (n.frames + 1);
  const std::int64_t window = labels * n.max_duration;
  workspace.add(b.arrive, states * b.each);
  workspace.add(b.arrived, states);
  workspace.add(b.enter, by_duration ? 0 : window * b.each);
  workspace.add(b.entered, by_duration ? 0 : window);
  workspace.add(b.open, tailed ? 2 * labels * b.each : 0);
  workspace.add(b.opened, tailed ? 2 * labels : 0);
  workspace.add(b.last, rows * b.each);
  workspace.add(b.heads, labels * b.choices);
  workspace.add(b.content, window);
}

/// No rows: one list pointer and one row pointer, both 0.
void clear_lists(gpu::Queue& queue, const ScopeCall& call, StreamHandle stream) {
  queue.fill(call.lists.list_pointer, 0, sizeof(std::int64_t), stream);
  queue.fill(call.lists.row_pointer, 0, sizeof(std::int64_t), stream);
}

}  // namespace

template <class T>
void CudaInference::sample(const Potentials<T>& potentials, const Scope& scope, std::int64_t n,
                           std::uint64_t seed, const DeviceSegmentationLists& drawn,
                           std::int64_t first_row, void* caller) {
  const StreamHandle stream = runtime::legacy_if_null(caller);
  if (n < 0)
    throw UsageError(fmt::format("semicrf: found {} samples to draw, expected 0 or more", n));
  State& s = *state_;
  ScopeCall call = make_scope_call(potentials, scope);
  set_lists(call, drawn, n);
  if (call.sizes.batch == 0) return clear_lists(*s.gpu, call, stream);
  call.seed = seed;
  call.first_row = first_row;
  gpu::Workspace workspace(*s.gpu, stream);
  plan_scope(workspace, call, {});
  plan_lists(workspace, call);
  workspace.allocate();
  s.forward<T>(call, stream);
  s.launch_each("count_draws", std::max<std::int64_t>(n, 1), call, stream);
  s.launch(s.kernel("list_pointers"), {1}, {256}, call, stream);
  s.launch_each("write_draws", n, call, stream);
}

template <class T>
void CudaInference::k_best(const Potentials<T>& potentials, const Scope& scope, std::int64_t n,
                           const DeviceSegmentationLists& best, void* caller) {
  const StreamHandle stream = runtime::legacy_if_null(caller);
  if (n < 1)
    throw UsageError(
        fmt::format("semicrf: found {} best segmentations to list, expected 1 or more", n));
  State& s = *state_;
  ScopeCall call = make_scope_call(potentials, scope);
  set_lists(call, best, n);
  if (call.sizes.batch == 0) return clear_lists(*s.gpu, call, stream);
  gpu::Workspace workspace(*s.gpu, stream);
  plan_loaded(workspace, call);
  plan_lists(workspace, call);
  plan_best(workspace, call);
  workspace.allocate();
  s.load<T>(call, stream);
  s.launch(s.kernel(call.sizes.by_duration != 0 ? "best_lists_by_duration" : "best_lists"),
           {side(call.sizes.batch)}, row_block(call.sizes, 256), call, stream);
  s.launch(s.kernel("best_last"), {side(call.sizes.batch)}, {32}, call, stream);
  s.launch_each("count_best", call.best.each, call, stream);
  s.launch(s.kernel("list_pointers"), {1}, {256}, call, stream);
  s.launch_each("write_best", call.best.each, call, stream);
}

#define SEGFUSE_INSTANTIATE(T)                                                                     \
  template void CudaInference::sample(const Potentials<T>&, const Scope&, std::int64_t,            \
                                      std::uint64_t, const DeviceSegmentationLists&, std::int64_t, \
                                      void*);                                                      \
  template void CudaInference::k_best(const Potentials<T>&, const Scope&, std::int64_t,            \
                                      const DeviceSegmentationLists&, void*);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
