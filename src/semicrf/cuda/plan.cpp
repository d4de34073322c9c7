// How a call is laid out: slices and chunks of time, the arrays of its workspace, and its passes.

#include <algorithm>
#include <limits>

#include "semicrf/cuda/engine_state.h"

namespace segfuse::semicrf {
namespace {

constexpr std::int64_t kPartialBytes = std::int64_t{256} << 20;
constexpr std::int64_t kWantedSlots =
    528;  ///< blocks that sum shared counts: four for each of 132 processors

/// A block's products in a step that pay for waiting for the others'.
constexpr std::int64_t kProductsOfTurn = 1024;
constexpr std::int64_t kDurationParts = 16;  // kLinkParts of kernels/by_duration/pass.cuh

/// Frames after which it does not show where a pass began, as a rule.
std::int64_t warm_up_frames(const gpu::Sizes& sizes, std::int64_t wanted) {
  const std::int64_t chosen = std::max<std::int64_t>(64, std::int64_t{2} * sizes.max_duration);
  return ceil_divide(wanted != 0 ? wanted : chosen, 4) * 4;
}

/// Products that are kept of the ratios of so many chunks.
std::int64_t carries_of(std::int64_t chunks) {
  return chunks > gpu::kChunksOfCarry ? ceil_divide(chunks, gpu::kChunksOfCarry) : 0;
}

/// No chunks.
void leave_whole(Call& call, std::int64_t warm_up) {
  call.chunks = {};
  apply({.warm_up = static_cast<int>(warm_up)}, call);
  call.chunks.steps = call.chunks.least;
}

/// Doubles that a block of a team works with.
struct TeamMemory {
  std::int64_t alone;   ///< `always` of a team of one: fits shared memory, or there is no team
  std::int64_t always;  ///< in shared memory
  std::int64_t state, window, matrix;
};

TeamMemory memory_of_sums(const Call& call) {
  const std::int64_t own = call.team.per_member;
  const std::int64_t classes = call.sizes.classes;
  return {classes, classes, 6 * own, 2 * own * call.sizes.max_duration, own * call.sizes.classes};
}

TeamMemory memory_by_duration(const Call& call) {
  const std::int64_t classes = call.sizes.classes;
  const std::int64_t longest = call.sizes.max_duration;
  const std::int64_t cells = call.team.per_member * ceil_divide(longest, kDurationParts) * classes;
  const std::int64_t always = (6 + 2 * kDurationParts + 1) * classes + kDurationParts + 1;
  return {always, always, 2 * cells, 2 * longest * classes, cells * classes};
}

/// Transitions and durations are held as floats where they are stored in no more.
TeamMemory memory_of_best(const Call& call, bool doubles) {
  const std::int64_t own = call.team.per_member;
  const std::int64_t classes = call.sizes.classes;
  const std::int64_t window = own * call.sizes.max_duration;
  const auto held = [&](std::int64_t scores) { return doubles ? scores : ceil_divide(scores, 2); };
  const std::int64_t shared = classes + (classes + 1) / 2;
  return {shared + 6 * classes, shared + 6 * own, 0, window + (window + 1) / 2 + held(window),
          held(own * classes)};
}

TeamMemory memory_of(const Call& call) {
  return call.sizes.by_duration != 0 ? memory_by_duration(call) : memory_of_sums(call);
}

/// What fits goes to shared memory; no team where there are too many classes for the device.
/// Whether there is one must not depend on how many members it has.
void place_team(Call& call, const TeamMemory& memory, std::int64_t shared_bytes) {
  gpu::Team& team = call.team;
  team.state_shared = team.window_shared = team.matrix_shared = 0;
  std::int64_t bytes = memory.always * 8;
  if (memory.alone * 8 > shared_bytes) {
    team.members = 0;
    return;
  }
  const auto place = [&](int& part, std::int64_t doubles) {
    if (bytes + doubles * 8 > shared_bytes) return;
    part = 1;
    bytes += doubles * 8;
  };
  place(team.state_shared, memory.state);
  place(team.window_shared, memory.window);
  place(team.matrix_shared, memory.matrix);
  team.shared_bytes = static_cast<int>(bytes);
}

/// A part of the classes for each block: as many blocks as there may be, and as a step's products
/// pay for waiting.
void deal_classes(Call& call, std::int64_t most, std::int64_t worth) {
  const std::int64_t classes = call.sizes.classes;
  const std::int64_t useful = ceil_divide(classes * (classes + call.sizes.max_duration), worth);
  const std::int64_t each =
      ceil_divide(classes, std::min({std::max<std::int64_t>(1, most), useful, classes}));
  call.team.per_member = static_cast<int>(each);
  call.team.members = static_cast<int>(ceil_divide(classes, each));
  constexpr std::int64_t kWarp = 32;
  constexpr std::int64_t kMaxThreads = 512;
  const std::int64_t taps = ceil_divide(each * call.sizes.max_duration, kWarp) * kWarp;
  call.team.threads = static_cast<int>(std::min(kMaxThreads, std::max(kWarp * each, taps)));
}

}  // namespace

void plan_team(Call& call, const DeviceWanted& wanted, const gpu::Queue& device) {
  const std::int64_t passes =
      std::int64_t{call.sizes.batch} * (wanted.any() ? 2 : 1) * call.chunks.count;
  const std::int64_t most = std::max<std::int64_t>(1, device.multiprocessors() / passes);
  if (call.sizes.by_duration != 0) {
    const std::int64_t longest = call.sizes.max_duration;
    // Each product comes with more beside it.
    const std::int64_t useful =
        ceil_divide(std::int64_t{call.sizes.classes} * call.sizes.classes * longest, 2048);
    std::int64_t members = 1;
    while (2 * members <= std::min({most, useful, longest, kDurationParts})) members *= 2;
    call.team.members = static_cast<int>(members);
    call.team.per_member = static_cast<int>(kDurationParts / members);
  } else {
    deal_classes(call, most, kProductsOfTurn);
  }
  place_team(call, memory_of(call), device.shared_bytes());
}

void plan_best_team(Call& call, bool doubles, const gpu::Queue& device) {
  const std::int64_t passes = std::int64_t{call.sizes.batch} * call.chunks.count;
  deal_classes(call, device.multiprocessors() / passes, kProductsOfTurn);
  place_team(call, memory_of_best(call, doubles), device.shared_bytes());
  if (call.team.members == 0) leave_whole(call, call.chunks.warm_up);
}

/// Time slices, and the partial sums of what they count. A row's own sums are in as many slots as
/// its own length asks for; they take no more memory than two arrays of the lattice.
void cut_into_slices(Call& call, const DeviceWanted& wanted) {
  const gpu::Sizes& n = call.sizes;
  const std::int64_t frames = std::max(1, n.frames);
  // Of any row that is not longer.
  const std::int64_t slices =
      std::max(std::min<std::int64_t>(ceil_divide(frames, gpu::kShortestSlice), gpu::kSlices),
               std::min<std::int64_t>(frames / gpu::kLongSlice + 1, gpu::kMaxSlices));
  call.slices = static_cast<int>(slices);
  call.gold_parts = static_cast<int>(
      std::clamp<std::int64_t>(frames / gpu::kFramesOfGoldPart, 1, gpu::kMaxGoldParts));
  const std::int64_t classes = n.classes;
  const std::int64_t pairs = slices_of(n) * classes * classes;
  const std::int64_t durations = n.max_duration * classes;
  std::int64_t each = 1;
  if (wanted.by_row) {
    const std::int64_t worth = (pairs + durations) / (2 * classes);
    call.slot_groups = n.batch;
    call.slot_frames = static_cast<int>(std::max<std::int64_t>(gpu::kShortestSlice, worth));
    each = std::min<std::int64_t>(ceil_divide(frames, call.slot_frames), gpu::kMaxSlices);
  } else {
    const std::int64_t room = kPartialBytes / 8 / std::max(pairs, durations);
    // One row has a slot for each slice, so that it can be split over devices.
    const std::int64_t wanted_slots = n.batch == 1 ? gpu::kMaxSlices : kWantedSlots;
    const std::int64_t slots = std::clamp<std::int64_t>(room, 1, wanted_slots);
    call.slot_groups = static_cast<int>(std::min<std::int64_t>(n.batch, slots));
    call.slot_frames = 0;
    // Slots that only a longer row would fill would be the last ones, and empty.
    each = std::min<std::int64_t>(slots / call.slot_groups, call.slices);
  }
  call.slots = static_cast<int>(call.slot_groups * each);
}

ChunkCuts cut_into_chunks(const gpu::Sizes& sizes, const std::optional<gpu::ScanShape>& shape,
                          std::int64_t warm_up) {
  const std::int64_t first = warm_up_frames(sizes, warm_up);
  // A block of many threads leaves little of a multiprocessor idle: less is worth warming up for.
  // Blocks of a team wait for each other: more is.
  const std::int64_t times = shape && shape->warps_of_all() > 3 ? 4 : 2;
  // Where durations are nearly sure, a pass forgets where it began only after many of them.
  constexpr std::int64_t kLonger = 4;
  ChunkCuts cuts;
  for (const std::int64_t warm : {first, kLonger * first}) {
    const std::int64_t count = sizes.frames / (times * warm);
    if (count < 2 || warm < sizes.max_duration) continue;
    cuts.push_back({.count = static_cast<int>(count),
                    .least = static_cast<int>(times * warm),
                    .warm_up = static_cast<int>(warm)});
  }
  cuts.push_back({});
  return cuts;
}

void apply(const ChunkCut& cut, Call& call) {
  call.chunks.count = cut.count;
  call.chunks.carries = static_cast<int>(carries_of(cut.count));
  call.chunks.least = cut.least;
  call.chunks.warm_up = cut.warm_up;
}

void cut_best_pass(Call& call, const std::optional<gpu::ScanShape>& shape, std::int64_t warm_up) {
  // Two for each of 132 processors, unless one keeps all its arithmetic busy.
  // Of clusters as many as run at once.
  std::int64_t wanted_passes = shape && shape->threads() <= 96 ? 264 : 132;
  if (shape && shape->blocks > 1) wanted_passes = shape->passes_at_once();
  const std::int64_t warm = warm_up_frames(call.sizes, warm_up);
  const std::int64_t frames = call.sizes.frames;
  leave_whole(call, warm);
  // Processors that would be idle may as well warm up; blocks of a team are not idle. Chunks leave
  // K sources of their own.
  const std::int64_t longest = call.sizes.max_duration;
  const std::int64_t least = shape ? std::max(ceil_divide(warm, 2), longest) : 2 * warm;
  const std::int64_t count = std::min(wanted_passes / call.sizes.batch, frames / least);
  if (count < 2 || warm < longest) return;
  const std::int64_t steps = ceil_divide(ceil_divide(frames, count), 4) * 4;
  static_assert(4 % gpu::kRecovered == 0, "durations are recovered within one chunk");
  if (4 * (steps + warm) > 3 * frames) return;
  call.chunks.steps = static_cast<int>(steps);
  call.chunks.count = static_cast<int>(ceil_divide(frames, steps));
}

void plan_workspace(gpu::Workspace& workspace, Call& call, const DeviceWanted& wanted,
                    const ChunkCuts& cuts) {
  const gpu::Sizes& n = call.sizes;
  const std::int64_t rows = n.batch;
  const std::int64_t held = std::min(n.frames, call.part.frame_end) - call.part.frame;
  const std::int64_t frames = rows * held;
  const std::int64_t cells = frames * n.classes;
  const std::int64_t boundaries = rows * (held + 1);
  const std::int64_t lattice = boundaries * n.classes;
  const std::int64_t pairs = slices_of(n) * n.classes * n.classes;
  const std::int64_t durations = static_cast<std::int64_t>(n.max_duration) * n.classes;
  workspace.add(call.factors.emission, cells);
  workspace.add(call.factors.frame_exponent, frames);
  workspace.add(call.factors.start, call.scores.start.data != nullptr ? cells : 0);
  workspace.add(call.factors.end, call.scores.end.data != nullptr ? cells : 0);
  workspace.add(call.factors.transition, pairs);
  workspace.add(call.factors.duration, durations);
  workspace.add(call.factors.initial, n.classes);
  workspace.add(call.factors.final, n.classes);
  workspace.add(call.factors.exponents, 4);
  workspace.add(call.lattice.alpha, lattice);
  workspace.add(call.lattice.gamma, lattice);
  workspace.add(call.lattice.delta, lattice);
  workspace.add(call.lattice.beta, lattice);
  workspace.add(call.lattice.forward_scale, boundaries);
  workspace.add(call.lattice.backward_scale, boundaries);
  workspace.add(call.lattice.partition, rows);
  workspace.add(call.lattice.last_scale, rows);
  workspace.add(call.lattice.flags, rows);
  workspace.add(call.row_weight, rows);
  if (wanted.entropy && call.rows.log_partition.data == nullptr) {
    workspace.add(call.rows.log_partition.data, rows);
    call.rows.log_partition.stride = 1;
  }
  const bool team = call.team.members > 0;
  const std::int64_t passes = 2 * rows * call.chunks.count;
  workspace.add(call.team.state, team && call.team.state_shared == 0
                                     ? passes * call.team.members * memory_of(call).state
                                     : 0);
  // By duration every block keeps a window of its own.
  const bool windows = team && n.by_duration != 0 && call.team.window_shared == 0;
  workspace.add(call.pending,
                (team ? passes : 2 * rows) * durations * (windows ? call.team.members : 1));
  workspace.add(call.gold_frames, call.gold.row_pointer != nullptr ? frames : 0);
  workspace.add(call.gold_score, call.gold.row_pointer != nullptr ? rows * call.gold_parts : 0);
  workspace.add(call.cover, wanted.frames || wanted.entropy ? rows * call.slices * n.classes : 0);
  workspace.add(call.expected, wanted.entropy ? rows * call.slices : 0);
  // Durations are counted as sums over pairs where transitions depend on them.
  const bool pairs_wanted = wanted.transition || (wanted.duration && n.by_duration != 0);
  workspace.add(call.transition_partial, pairs_wanted ? call.slots * pairs : 0);
  workspace.add(call.duration_partial, wanted.duration ? call.slots * durations : 0);
  const std::int64_t chunks = cuts[0].is_cut() ? 2 * rows * cuts[0].count : 0;
  std::int64_t warm_ups = 0;  // boundaries before chunks
  for (const ChunkCut& cut : cuts)
    if (cut.is_cut())
      warm_ups = std::max<std::int64_t>(warm_ups, 2 * rows * cut.count * (cut.warm_up + 1));
  workspace.add(call.chunks.source, warm_ups * n.classes);
  workspace.add(call.chunks.value, warm_ups * n.classes);
  workspace.add(call.chunks.scale, warm_ups);
  workspace.add(call.chunks.ratio, chunks);
  workspace.add(call.chunks.ratio_exponent, chunks);
  const std::int64_t carries = 2 * rows * carries_of(cuts[0].count);
  workspace.add(call.chunks.carry, carries);
  workspace.add(call.chunks.carry_exponent, carries);
  workspace.add(call.lattice.forward_ratio, chunks > 0 ? boundaries : 0);
  workspace.add(call.lattice.backward_ratio, chunks > 0 ? boundaries : 0);
  workspace.add(call.team.counter, team ? passes : 0);
  workspace.add(call.team.exchange,
                team ? passes * n.classes * (n.by_duration != 0 ? 6 * kDurationParts : 8) : 0);
  workspace.add(call.team.into, team && n.by_duration == 0 ? pairs : 0);
  workspace.add(call.by_duration.weight, n.by_duration != 0 ? lattice : 0);
  workspace.add(call.by_duration.peak, n.by_duration != 0 ? boundaries : 0);
  workspace.add(call.by_duration.factors, n.by_duration != 0 ? rows * durations : 0);
}

bool CudaEngine::State::has_room(const GpuKernel& kernel, const gpu::ScanShape& shape) {
  if (shape.blocks == 1) return true;
  const auto [place, is_new] = rooms.try_emplace(kernel.handle, false);
  if (is_new) place->second = gpu->clusters(kernel, launch_of(shape, {})) > 0;
  return place->second;
}

/// Smaller clusters are tried where the device has no room for large ones.
template <class Choose, class Given, class Kernel>
std::optional<gpu::ScanShape> CudaEngine::State::shape_with_room(const Call& call, bool is_best,
                                                                 Choose choose, Given given,
                                                                 Kernel kernel) {
  const gpu::Sizes& n = call.sizes;
  if (options.algorithm != Algorithm::kFast || n.by_duration != 0) return {};
  const bool edges = call.scores.start.data != nullptr || call.scores.end.data != nullptr;
  const std::array<int, 4> key{is_best, n.classes, n.max_duration, edges};
  if (const auto known = shapes.find(key); known != shapes.end()) return known->second;
  std::optional<gpu::ScanShape> found;
  const int lanes = options.lanes_per_class;
  const int asked = options.blocks_per_pass;
  // What devices without clusters would gain from durations in shared memory is not known.
  const int shared_bytes = gpu->cluster_blocks() > 1 ? gpu->shared_bytes() : 0;
  for (int most = asked != 0 ? asked : gpu->cluster_blocks(); most > 0; most /= 2) {
    const std::optional<gpu::ScanShape> shape =
        lanes == 0 ? choose(n.classes, n.max_duration, edges, gpu::Room{most, shared_bytes})
                   : given(n.classes, n.max_duration, lanes, edges, std::max(1, asked),
                           options.durations_per_lane);
    if (!shape) break;
    if (!has_room(kernel(*shape), *shape)) continue;
    found = shape;
    break;
  }
  shapes.emplace(key, found);
  return found;
}

std::optional<gpu::ScanShape> CudaEngine::State::shape_of(const Call& call) {
  return shape_with_room(call, false, gpu::choose_scan_shape, gpu::scan_shape,
                         [this](const gpu::ScanShape& shape) { return scan(shape); });
}

template <class T>
std::optional<gpu::ScanShape> CudaEngine::State::best_shape_of(const Call& call) {
  return shape_with_room(call, true, gpu::choose_best_shape, gpu::best_shape,
                         [this](const gpu::ScanShape& shape) { return best_scan<T>(shape); });
}

#define SEGFUSE_INSTANTIATE(T) \
  template std::optional<gpu::ScanShape> CudaEngine::State::best_shape_of<T>(const Call&);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
SEGFUSE_INSTANTIATE(Half)
SEGFUSE_INSTANTIATE(BFloat16)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
