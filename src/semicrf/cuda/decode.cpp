// Calls that give segmentations: the best one, and those of labels per frame.

#include <algorithm>

#include "semicrf/cuda/engine_state.h"

namespace segfuse::semicrf {
namespace {

/// Parts in which ways back are followed at once.
void cut_ways_back(Call& call) {
  const gpu::Sizes& n = call.sizes;
  const int windows = 2 * std::min(n.max_duration, 1 << 20);
  call.best.part_frames = call.best.part_overlap = std::max(64, windows);
  call.best.parts = static_cast<int>(
      std::clamp<std::int64_t>(ceil_divide(n.frames, call.best.part_frames), 1, gpu::kMaxWays));
}

/// `recovered`: pointers back are, from values.
void plan_best(gpu::Workspace& workspace, Call& call, bool recovered) {
  const gpu::Sizes& n = call.sizes;
  const std::int64_t rows = n.batch;
  const std::int64_t lattice = rows * (n.frames + 1) * n.classes;
  const std::int64_t window = static_cast<std::int64_t>(n.max_duration) * n.classes;
  const std::int64_t chunks = call.chunks.count > 1 ? rows * call.chunks.count : 0;
  const std::int64_t parts = rows * call.best.parts;
  workspace.add(call.lattice.alpha, lattice);
  workspace.add(call.lattice.gamma, lattice);
  workspace.add(call.lattice.flags, rows);
  const bool team = call.team.members > 0;
  const std::int64_t passes = rows * call.chunks.count;
  workspace.add(call.team.into, team ? std::int64_t{n.classes} * n.classes : 0);
  workspace.add(call.team.counter, team ? passes : 0);
  workspace.add(call.team.exchange, team ? 8 * passes * n.classes : 0);
  workspace.add(call.pending,
                call.team.window_shared != 0 ? 0 : 2 * (team ? passes : rows) * window);
  workspace.add(call.best.magnitude, rows + 1);
  workspace.add(call.best.base, recovered ? rows * (n.frames + 1) : 0);
  workspace.add(call.best.duration, lattice);
  workspace.add(call.best.label, lattice);
  workspace.add(call.best.ring, 2 * chunks * window);
  workspace.add(call.best.ring_base, 2 * chunks * n.max_duration);
  workspace.add(call.best.wrong, chunks);
  workspace.add(call.best.entry, 2 * parts);
  workspace.add(call.best.exit, 2 * parts);
  workspace.add(call.best.part_count, parts);
  workspace.add(call.best.part_first, parts);
  workspace.add(call.best.part_score, parts);
  workspace.add(call.best.count, rows);
  workspace.add(call.best.trace, 3 * rows * n.frames);
}

}  // namespace

/// Faults of the scores, and their sizes.
template <class T>
void CudaEngine::State::measure(const Call& call, StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  const auto rows = static_cast<std::size_t>(n.batch);
  gpu->fill(call.best.magnitude, 0, sizeof(int) * (rows + 1), stream);
  gpu->fill(call.lattice.flags, 0, sizeof(int) * rows, stream);
  constexpr std::int64_t kThreads = 256;
  constexpr std::int64_t kScores = 16;  // of a thread, unless there are very many
  const std::int64_t blocks = ceil_divide(std::int64_t{n.frames} * n.classes, kThreads * kScores);
  if (n.frames > 0)
    launch(common<T>("measure_frames"), {side(std::min<std::int64_t>(blocks, 4096)), side(n.batch)},
           {kThreads}, call, stream);
  const std::int64_t shared = slices_of(n) * n.classes * n.classes;
  launch(common<T>("measure_shared"),
         {side(std::min<std::int64_t>(ceil_divide(shared, 256), 1024))}, {256}, call, stream);
}

/// Passes that keep their state in registers, and pointers back from what they found.
template <class T>
void CudaEngine::State::best_in_registers(Call& call, const gpu::ScanShape& shape,
                                          StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  const GpuKernel kernel = best_scan<T>(shape);
  const Extent3 rows{side(n.batch)};
  const auto chunks = side(call.chunks.count);
  gpu->launch(kernel, launch_of(shape, {rows.x, chunks}), call, stream);
  if (chunks > 1) {
    launch(common<T>("compare_best"), {rows.x, chunks - 1}, {256}, call, stream);
    call.chunks.round = 1;
    gpu->launch(kernel, launch_of(shape, rows), call, stream);
  }
  if (n.frames > 0) recover<T>(call, stream);
}

/// Pointers back, from what a pass in registers found.
template <class T>
void CudaEngine::State::recover(const Call& call, StreamHandle stream) {
  constexpr std::int64_t kThreads = 128;
  const gpu::Sizes& n = call.sizes;
  const std::int64_t cells = ceil_divide(n.frames, gpu::kRecovered) * std::int64_t{n.classes};
  launch(common<T>("recover_durations"), {side(ceil_divide(cells, kThreads)), side(n.batch)},
         {kThreads}, call, stream);
  const std::int64_t half = ceil_divide(n.classes, 2);
  const std::int64_t parts = ceil_divide(half, std::int64_t{gpu::kThreadsOfLabels});
  const std::int64_t columns = ceil_divide(half, parts);
  const std::int64_t groups = std::max<std::int64_t>(1, gpu::kThreadsOfLabels / columns);
  const std::int64_t boundaries = groups * gpu::kBoundariesOfLabel;
  const std::int64_t labels = std::min(gpu::kLabelsAtOnce, n.classes);
  launch(common<T>("recover_labels"),
         {side(ceil_divide(n.frames, boundaries)), side(n.batch), side(parts)},
         {side(ceil_divide(columns * groups, 32) * 32)}, call, stream,
         static_cast<std::size_t>(labels * (2 * columns + (boundaries | 1))) * sizeof(double));
}

/// Passes that several blocks share.
template <class T>
void CudaEngine::State::best_of_team(Call& call, StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  const auto blocks =
      side(std::min<std::int64_t>(ceil_divide(std::int64_t{n.classes} * n.classes, 256), 1024));
  launch(common<T>("transpose_scores"), {blocks}, {256}, call, stream);
  const auto pass = [&](unsigned chunks) {
    const std::size_t passes = static_cast<std::size_t>(n.batch) * chunks;
    gpu->fill(call.team.counter, 0, sizeof(unsigned) * passes, stream);
    if (call.team.members > 1)
      gpu->fill(call.team.exchange, 0, 64 * passes * static_cast<std::size_t>(n.classes), stream);
    gpu->launch(common<T>("wide_best"),
                {{side(call.team.members), side(n.batch), chunks},
                 {side(call.team.threads)},
                 static_cast<std::size_t>(call.team.shared_bytes),
                 call.team.members > 1},
                call, stream);
  };
  pass(side(call.chunks.count));
  if (call.chunks.count == 1) return;
  launch(common<T>("compare_best"), {side(n.batch), side(call.chunks.count - 1)}, {256}, call,
         stream);
  call.chunks.round = 1;
  pass(1);
}

template <class T>
void CudaEngine::State::decode(Call& call, StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  sizes = n;
  if (n.batch == 0) {
    gpu->fill(call.best.row_pointer, 0, sizeof(std::int64_t), stream);
    return;
  }
  std::optional<gpu::ScanShape> shape;
  if (options.algorithm == Algorithm::kFast && n.by_duration == 0) {
    shape = best_shape_of<T>(call);
    if (options.chunked && (shape || options.teams)) cut_best_pass(call, shape, options.warm_up);
    if (!shape && options.teams) plan_best_team(call, sizeof(T) == sizeof(double), *gpu);
  }
  cut_ways_back(call);
  gpu::Workspace workspace(*gpu, stream);
  plan_best(workspace, call, shape.has_value());
  workspace.allocate();
  call.faults = faults.words();
  measure<T>(call, stream);
  const Extent3 rows{side(n.batch)};
  if (shape) {
    best_in_registers<T>(call, *shape, stream);
  } else if (call.team.members > 0) {
    best_of_team<T>(call, stream);
  } else if (n.by_duration != 0) {
    launch(common<T>("best_pass_by_duration"), rows, {32, 16}, call, stream);
  } else {
    launch(common<T>("best_pass"), rows, {512}, call, stream);
  }
  const Extent3 parts{rows.x, side(call.best.parts)};
  launch(common<T>("best_trace"), parts, {256}, call, stream);
  launch(common<T>("best_join"), rows, {32}, call, stream);
  launch(common<T>("best_pointers"), {1}, {256}, call, stream);
  launch(common<T>("best_pack"), parts, {64}, call, stream);
  if (call.best.score.data != nullptr) launch(common<T>("best_total"), rows, {32}, call, stream);
}

void CudaEngine::State::segment(Call& call, StreamHandle stream) {
  sizes = call.sizes;
  if (sizes.batch == 0) {
    gpu->fill(call.best.row_pointer, 0, sizeof(std::int64_t), stream);
    return;
  }
  gpu::Workspace workspace(*gpu, stream);
  workspace.add(call.best.count, sizes.batch);
  workspace.allocate();
  call.faults = faults.words();
  launch(of_labels("count_labels"), {side(sizes.batch)}, {256}, call, stream);
  launch(of_labels("best_pointers"), {1}, {256}, call, stream);
  launch(of_labels("pack_labels"), {side(sizes.batch)}, {256}, call, stream);
}

#define SEGFUSE_INSTANTIATE(T) template void CudaEngine::State::decode<T>(Call&, StreamHandle);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
SEGFUSE_INSTANTIATE(Half)
SEGFUSE_INSTANTIATE(BFloat16)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
