// The launches of a call, in order.

#include <fmt/core.h>

#include <algorithm>
#include <bit>

#include "semicrf/cuda/engine_state.h"

namespace segfuse::semicrf {

template <class T>
void CudaEngine::State::prepare(const Call& call, StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  gpu->fill(call.lattice.flags, 0, sizeof(int) * static_cast<std::size_t>(n.batch), stream);
  gpu->fill(call.factors.exponents, 0, sizeof(int) * 4, stream);
  const unsigned lanes = std::min(32u, std::bit_ceil(static_cast<unsigned>(n.classes)));
  const unsigned frames_of_block = 256 / lanes;
  const std::int64_t frames = std::min(n.frames, call.part.frame_end) - call.part.frame;
  const std::int64_t blocks = ceil_divide(frames, frames_of_block);
  if (blocks > 0)
    launch(common<T>("prepare_frames"), {side(blocks), side(n.batch)}, {lanes, frames_of_block},
           call, stream);
  const std::int64_t shared =
      static_cast<std::int64_t>(n.classes) * (slices_of(n) * n.classes + n.max_duration);
  launch(common<T>("prepare_shared"),
         {side(std::min<std::int64_t>(ceil_divide(shared, 256), 1024))}, {256}, call, stream);
  launch(common<T>("prepare_ends"), {3}, {32}, call, stream);
}

/// Passes that several blocks share.
template <class T>
void CudaEngine::State::team_pass(const Call& call, unsigned chunks, unsigned directions,
                                  StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  const std::size_t all = std::size_t{2} * static_cast<std::size_t>(n.batch) *
                          static_cast<std::size_t>(call.chunks.count);
  const bool by_duration = n.by_duration != 0;
  if (by_duration)
    gpu->fill(call.team.counter, 0, sizeof(unsigned) * all, stream);
  else if (call.team.members > 1)
    gpu->fill(call.team.exchange, 0, 64 * all * static_cast<std::size_t>(n.classes), stream);
  gpu->launch(common<T>(by_duration ? "team_by_duration" : "wide_pass"),
              {{side(call.team.members) * chunks, side(n.batch), directions},
               by_duration ? Extent3{32, 16} : Extent3{side(call.team.threads)},
               static_cast<std::size_t>(call.team.shared_bytes),
               call.team.members > 1},
              call, stream);
}

/// What passes of teams need beside factors.
template <class T>
void CudaEngine::State::prepare_teams(const Call& call, StreamHandle stream) {
  const std::int64_t pairs = static_cast<std::int64_t>(call.sizes.classes) * call.sizes.classes;
  launch(common<T>("transpose_factors"),
         {side(std::min<std::int64_t>(ceil_divide(pairs, 256), 1024))}, {256}, call, stream);
}

/// The passes of a round, and what they find of their neighbours.
template <class T>
void CudaEngine::State::pass_chunks(const Call& call, unsigned directions, StreamHandle stream) {
  const unsigned rows = side(call.sizes.batch);
  const auto chunks = side(call.chunks.count);
  if (const std::optional<gpu::ScanShape> shape = shape_of(call))
    gpu->launch(scan(*shape), launch_of(*shape, {chunks, rows, directions}), call, stream);
  else
    team_pass<T>(call, chunks, directions, stream);
  if (chunks > 1)
    launch(common<T>("compare_chunks"), {chunks - 1, rows, directions}, {256}, call, stream);
}

template <class T>
void CudaEngine::State::join_chunks(const Call& call, unsigned directions, StreamHandle stream) {
  const unsigned rows = side(call.sizes.batch);
  if (call.chunks.carries > 0)
    launch(common<T>("carry_ratios"), {1, rows, directions}, {1}, call, stream);
  launch(common<T>("join_chunks"), {side(call.chunks.count), rows, directions}, {256}, call,
         stream);
}

/// Passes in the linear domain.
template <class T>
void CudaEngine::State::linear_pass(Call& call, const ChunkCuts& cuts, unsigned directions,
                                    StreamHandle stream) {
  const bool team = !shape_of(call);
  if (team && call.team.members == 0) {
    gpu->fill(call.lattice.flags, 1, sizeof(int) * static_cast<std::size_t>(call.sizes.batch),
              stream);
    return;
  }
  if (team) prepare_teams<T>(call, stream);
  for (const ChunkCut& cut : cuts) {
    apply(cut, call);
    pass_chunks<T>(call, directions, stream);
    if (cut.is_cut()) join_chunks<T>(call, directions, stream);
    ++call.chunks.round;
  }
}

template <class T>
void CudaEngine::State::pass(Call& call, const ChunkCuts& cuts, bool both, StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  const unsigned directions = both ? 2 : 1;
  if (n.by_duration != 0 && call.team.members > 0) return team_pass<T>(call, 1, directions, stream);
  if (n.by_duration != 0) {
    launch(common<T>("pass_by_duration"), {side(n.batch), directions}, {32, 16}, call, stream);
    return;
  }
  linear_pass<T>(call, cuts, directions, stream);
  // Rows in range leave at once.
  launch(common<T>("exact_pass"), {side(n.batch), 2}, {512}, call, stream,
         static_cast<std::size_t>(n.classes) * sizeof(double));
}

/// Counts of rows in the linear domain, in slots.
template <class T>
void CudaEngine::State::count_slots(const Call& call, const DeviceWanted& wanted, unsigned slots,
                                    StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  if (wanted.transition) {
    constexpr int kSide = 16;
    const int each = std::min(4, static_cast<int>(ceil_divide(n.classes, kSide)));
    const std::int64_t tiles = ceil_divide(n.classes, kSide * each);
    launch(common<T>(fmt::format("transition_counts_{}", each)), {slots, side(tiles), side(tiles)},
           {kSide * kSide}, call, stream);
  }
  if (wanted.duration) {
    constexpr std::int64_t kEach = 8;
    constexpr std::int64_t kSources = 32;
    const std::int64_t columns = std::min<std::int64_t>(32, ceil_divide(n.max_duration, kEach));
    const std::int64_t classes =
        std::min<std::int64_t>(n.classes, std::max<std::int64_t>(8, 256 / columns));
    const std::int64_t reach = kSources + kEach * columns;
    const std::int64_t doubles = (kSources + 2 * reach) * classes + 3 * reach;
    const auto bytes = static_cast<std::size_t>(doubles * 8 + classes * 4);
    launch(common<T>("duration_counts"),
           {slots, side(ceil_divide(n.classes, classes)),
            side(ceil_divide(n.max_duration, kEach * columns))},
           {side(classes), side(columns)}, call, stream, bytes);
  }
}

template <class T>
void CudaEngine::State::count(const Call& call, const DeviceWanted& wanted, StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  const bool shared = wanted.transition || wanted.duration;
  if (shared && n.by_duration != 0)
    launch(common<T>("counts_by_duration"), {side(call.slots), side(ceil_divide(n.classes, 32))},
           {32, 8}, call, stream);
  if (n.by_duration == 0) count_slots<T>(call, wanted, side(call.slots), stream);
  if (shared) {
    if (n.by_duration == 0)
      launch(common<T>("exact_counts"), {side(call.slots)}, {256}, call, stream);
    if (call.gold.row_pointer != nullptr)
      launch(common<T>("gold_counts"), {side(call.slot_groups)}, {256}, call, stream);
    if (wanted.by_row) return;
    reduce<T>(call, stream);
  }
}

/// Sums the slots into the gradients.
template <class T>
void CudaEngine::State::reduce(const Call& call, StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  const std::int64_t elements =
      static_cast<std::int64_t>(n.classes) * (slices_of(n) * n.classes + n.max_duration);
  launch(common<T>("reduce_shared"), {side(ceil_divide(elements, 32))}, {32, 8}, call, stream);
}

/// No rows: shared gradients are sums of nothing.
template <class T>
void CudaEngine::State::clear(Call& call, const DeviceWanted& wanted, StreamHandle stream) {
  double nothing = 0.0;  // its address says that it is not "not wanted"; no slot is read
  call.slots = call.slot_groups = 0;
  if (wanted.transition) call.transition_partial = &nothing;
  if (wanted.duration) call.duration_partial = &nothing;
  if (wanted.ends) ends<T>(call, stream);
  if (wanted.transition || wanted.duration) reduce<T>(call, stream);
}

template <class T>
void CudaEngine::State::cover_slices(const Call& call, unsigned slices, StreamHandle stream) {
  launch(common<T>("slice_cover"), {slices, side(call.sizes.batch)}, {256}, call, stream);
}

template <class T>
void CudaEngine::State::frames_of_slices(const Call& call, unsigned slices, StreamHandle stream) {
  constexpr std::size_t kStageBytes = (32 + 33 + 32) * 64 * sizeof(double);
  launch(common<T>("frame_gradients"), {slices, side(call.sizes.batch)}, {256}, call, stream,
         kStageBytes);
}

template <class T>
void CudaEngine::State::ends(const Call& call, StreamHandle stream) {
  launch(common<T>("end_gradients"), {side(ceil_divide(call.sizes.classes, 4)), 2}, {32, 4}, call,
         stream);
}

bool CudaEngine::State::teams_wanted(const Call& call) {
  return !shape_of(call) && options.algorithm == Algorithm::kFast && options.teams;
}

ChunkCuts CudaEngine::State::cuts_of(const Call& call) {
  const std::optional<gpu::ScanShape> shape = shape_of(call);
  const bool linear = shape || (teams_wanted(call) && call.sizes.by_duration == 0);
  return options.chunked && linear ? cut_into_chunks(call.sizes, shape, options.warm_up)
                                   : ChunkCuts{ChunkCut{}};
}

template <class T>
void CudaEngine::State::run(Call& call, const DeviceWanted& wanted, StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  sizes = n;
  if (n.batch == 0) return clear<T>(call, wanted, stream);
  cut_into_slices(call, wanted);
  const bool team = teams_wanted(call);
  ChunkCuts cuts = cuts_of(call);
  apply(cuts[0], call);
  if (team) plan_team(call, wanted, *gpu);
  if (team && call.team.members == 0) {
    cuts = {ChunkCut{}};
    apply(cuts[0], call);
  }
  gpu::Workspace workspace(*gpu, stream);
  plan_workspace(workspace, call, wanted, cuts);
  workspace.allocate();
  call.faults = faults.words();
  call.by_duration.direct = options.algorithm == Algorithm::kReference ? 1 : 0;

  prepare<T>(call, stream);
  pass<T>(call, cuts, wanted.any(), stream);
  if (call.gold.row_pointer != nullptr)
    launch(common<T>("gold_path"), {side(call.gold_parts), side(n.batch)}, {256}, call, stream);
  launch(common<T>("finish_rows"), {side(n.batch)}, {512}, call, stream);
  if (n.by_duration != 0 && (wanted.frames || wanted.boundary || wanted.ends || wanted.entropy) &&
      n.frames > 0)
    launch(common<T>("starts_by_duration"), {side(ceil_divide(n.frames, 8)), side(n.batch)},
           {32, 8}, call, stream);
  const unsigned slices = side(call.slices);
  if ((wanted.frames || wanted.entropy) && n.frames > 0) cover_slices<T>(call, slices, stream);
  if (wanted.frames && n.frames > 0) frames_of_slices<T>(call, slices, stream);
  if (wanted.boundary && n.frames > 0)
    launch(common<T>("boundary_posteriors"), {side(ceil_divide(n.frames, 128)), side(n.batch)},
           {128}, call, stream);
  if (wanted.ends) ends<T>(call, stream);
  count<T>(call, wanted, stream);
  if (wanted.by_row) count_by_row<T>(call, wanted, stream);
}

template <class T>
void CudaEngine::State::count_by_row(const Call& call, const DeviceWanted& wanted,
                                     StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  if (call.gradients.row_duration.data != nullptr)
    launch(common<T>("row_durations"),
           {side(ceil_divide(static_cast<std::int64_t>(n.max_duration) * n.classes, 256)),
            side(n.batch)},
           {256}, call, stream);
  if (!wanted.entropy) return;
  const auto threads = side(std::min<std::int64_t>(256, ceil_divide(n.classes, 32) * 32));
  launch(common<T>("expected_frames"), {side(call.slices), side(n.batch)}, {threads}, call, stream);
  launch(common<T>("row_entropy"), {side(n.batch)}, {256}, call, stream);
}

#define SEGFUSE_INSTANTIATE(T)                                                                \
  template void CudaEngine::State::run<T>(Call&, const DeviceWanted&, StreamHandle);          \
  template void CudaEngine::State::prepare<T>(const Call&, StreamHandle);                     \
  template void CudaEngine::State::prepare_teams<T>(const Call&, StreamHandle);               \
  template void CudaEngine::State::pass_chunks<T>(const Call&, unsigned, StreamHandle);       \
  template void CudaEngine::State::join_chunks<T>(const Call&, unsigned, StreamHandle);       \
  template void CudaEngine::State::cover_slices<T>(const Call&, unsigned, StreamHandle);      \
  template void CudaEngine::State::frames_of_slices<T>(const Call&, unsigned, StreamHandle);  \
  template void CudaEngine::State::ends<T>(const Call&, StreamHandle);                        \
  template void CudaEngine::State::count_slots<T>(const Call&, const DeviceWanted&, unsigned, \
                                                  StreamHandle);                              \
  template void CudaEngine::State::reduce<T>(const Call&, StreamHandle);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
SEGFUSE_INSTANTIATE(Half)
SEGFUSE_INSTANTIATE(BFloat16)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
