// How a call is laid out: slices and chunks of time, and the arrays of its workspace.

#include <algorithm>
#include <limits>

#include "semicrf/cuda/engine_state.h"

namespace segfuse::semicrf {
namespace {

constexpr std::int64_t kPartialBytes = std::int64_t{256} << 20;
constexpr int kWantedSlots =
    528;  ///< blocks that sum shared counts: four for each of 132 processors

/// What a multiprocessor of any device we know has for one block.
constexpr std::int64_t kSharedBytes = 160 << 10;

}  // namespace

namespace {

constexpr std::int64_t kDurationParts = 16;  // kLinkParts of kernels/by_duration/pass.cuh

/// Doubles of a block's state beside what all blocks have.
std::int64_t team_state(const Call& call) {
  const std::int64_t own = call.team.per_member;
  return call.sizes.by_duration != 0
             ? 2 * own * ceil_divide(call.sizes.max_duration, kDurationParts) * call.sizes.classes
             : 6 * own + own / 2 + 1;
}

/// What fits goes to shared memory; no team where there are too many classes. Whether there is one
/// must not depend on how many members it has.
void place_team(Call& call) {
  call.team.state_shared = call.team.window_shared = call.team.matrix_shared = 0;
  const auto fits = [&] { return static_cast<std::int64_t>(team_bytes(call)) <= kSharedBytes; };
  if (!fits()) {
    call.team.members = 0;
    return;
  }
  for (int* part : {&call.team.state_shared, &call.team.window_shared, &call.team.matrix_shared}) {
    *part = 1;
    if (!fits()) *part = 0;
  }
}

}  // namespace

void plan_team(Call& call, const DeviceWanted& wanted, int multiprocessors) {
  // A step's products that pay for waiting; by duration each comes with more beside it.
  const std::int64_t worth = call.sizes.by_duration != 0 ? 2048 : 8192;
  const std::int64_t classes = call.sizes.classes;
  const std::int64_t longest = call.sizes.max_duration;
  const std::int64_t passes = static_cast<std::int64_t>(call.sizes.batch) * (wanted.any() ? 2 : 1);
  const std::int64_t most = std::max<std::int64_t>(1, multiprocessors / passes);
  if (call.sizes.by_duration != 0) {
    const std::int64_t useful = ceil_divide(classes * classes * longest, worth);
    std::int64_t members = 1;
    while (2 * members <= std::min({most, useful, longest, kDurationParts})) members *= 2;
    call.team.members = static_cast<int>(members);
    call.team.per_member = static_cast<int>(kDurationParts / members);
  } else {
    const std::int64_t useful = ceil_divide(classes * (classes + longest), worth);
    const std::int64_t each = ceil_divide(classes, std::min({most, useful, classes}));
    call.team.per_member = static_cast<int>(each);
    call.team.members = static_cast<int>(ceil_divide(classes, each));
  }
  place_team(call);
}

std::size_t team_bytes(const Call& call) {
  const std::int64_t own = call.team.per_member;
  const std::int64_t classes = call.sizes.classes;
  const std::int64_t longest = call.sizes.max_duration;
  std::int64_t doubles = call.team.state_shared != 0 ? team_state(call) : 0;
  if (call.sizes.by_duration != 0) {
    const std::int64_t cells = own * ceil_divide(longest, kDurationParts) * classes;
    doubles += (6 + 2 * kDurationParts + 1) * classes + kDurationParts + 1;
    if (call.team.window_shared != 0) doubles += 2 * longest * classes;
    if (call.team.matrix_shared != 0) doubles += cells * classes;
  } else {
    doubles += classes;
    if (call.team.matrix_shared != 0) doubles += own * classes;
    if (call.team.window_shared != 0) doubles += 2 * own * longest;
  }
  return static_cast<std::size_t>(doubles) * sizeof(double);
}

/// Time slices, and the partial sums of what they count. A row's own sums are in as many slots as
/// its own length asks for; they take no more memory than two arrays of the lattice.
void cut_into_slices(Call& call, const DeviceWanted& wanted) {
  const gpu::Sizes& n = call.sizes;
  const std::int64_t frames = std::max(1, n.frames);
  call.slices = static_cast<int>(
      std::min<std::int64_t>(ceil_divide(frames, gpu::kShortestSlice), gpu::kMaxSlices));
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
    const std::int64_t slots = std::clamp<std::int64_t>(room, 1, kWantedSlots);
    call.slot_groups = static_cast<int>(std::min<std::int64_t>(n.batch, slots));
    call.slot_frames = 0;
    // Slots that only a longer row would fill would be the last ones, and empty.
    each = std::min<std::int64_t>(slots / call.slot_groups, call.slices);
  }
  call.slots = static_cast<int>(call.slot_groups * each);
}

namespace {

/// Frames from which on it does not show where a pass began, as a rule.
std::int64_t warm_up_frames(const Call& call, std::int64_t wanted) {
  const std::int64_t chosen = std::max<std::int64_t>(64, 4 * call.sizes.max_duration);
  return ceil_divide(wanted != 0 ? wanted : chosen, 4) * 4;
}

/// No chunks.
void leave_whole(Call& call, std::int64_t warm_up) {
  call.chunks = {};
  call.chunks.count = 1;
  call.chunks.least = call.chunks.steps = std::numeric_limits<int>::max();
  call.chunks.warm_up = static_cast<int>(warm_up);
}

}  // namespace

void cut_into_chunks(Call& call, const gpu::ScanShape& shape, std::int64_t warm_up) {
  const std::int64_t warm = warm_up_frames(call, warm_up);
  leave_whole(call, warm);
  if (warm < call.sizes.max_duration) return;
  // A block of many threads leaves little of a multiprocessor idle: less is worth warming up for.
  const std::int64_t least = (shape.threads() > 96 ? 4 : 2) * warm;
  call.chunks.least = static_cast<int>(std::min<std::int64_t>(least, call.chunks.least));
  call.chunks.count = std::max(1, call.sizes.frames / call.chunks.least);
}

void cut_best_pass(Call& call, const gpu::ScanShape& shape, std::int64_t warm_up) {
  // Two for each of 132 processors, unless one keeps all its arithmetic busy.
  const std::int64_t wanted_passes = shape.threads() > 96 ? 132 : 264;
  const std::int64_t warm = warm_up_frames(call, warm_up);
  leave_whole(call, warm);
  const std::int64_t count =
      std::min(wanted_passes / call.sizes.batch, call.sizes.frames / (2 * warm));
  if (count < 2 || warm < call.sizes.max_duration) return;
  call.chunks.steps = static_cast<int>(ceil_divide(ceil_divide(call.sizes.frames, count), 4) * 4);
  call.chunks.count = static_cast<int>(ceil_divide(call.sizes.frames, call.chunks.steps));
}

void plan_workspace(gpu::Workspace& workspace, Call& call, const DeviceWanted& wanted) {
  const gpu::Sizes& n = call.sizes;
  const std::int64_t rows = n.batch;
  const std::int64_t frames = rows * n.frames;
  const std::int64_t cells = frames * n.classes;
  const std::int64_t boundaries = rows * (n.frames + 1);
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
  workspace.add(call.lattice.flags, rows);
  workspace.add(call.row_weight, rows);
  if (wanted.entropy && call.rows.log_partition.data == nullptr) {
    workspace.add(call.rows.log_partition.data, rows);
    call.rows.log_partition.stride = 1;
  }
  const bool team = call.team.members > 0;
  workspace.add(call.team.state, team && call.team.state_shared == 0
                                     ? 2 * rows * call.team.members * team_state(call)
                                     : 0);
  // By duration every block keeps a window of its own.
  const bool windows = team && n.by_duration != 0 && call.team.window_shared == 0;
  workspace.add(call.pending, 2 * rows * durations * (windows ? call.team.members : 1));
  workspace.add(call.gold_frames, call.gold.row_pointer != nullptr ? frames : 0);
  workspace.add(call.gold_score, call.gold.row_pointer != nullptr ? rows * call.gold_parts : 0);
  workspace.add(call.cover, wanted.frames || wanted.entropy ? rows * call.slices * n.classes : 0);
  workspace.add(call.expected, wanted.entropy ? rows * call.slices : 0);
  // Durations are counted as sums over pairs where transitions depend on them.
  const bool pairs_wanted = wanted.transition || (wanted.duration && n.by_duration != 0);
  workspace.add(call.transition_partial, pairs_wanted ? call.slots * pairs : 0);
  workspace.add(call.duration_partial, wanted.duration ? call.slots * durations : 0);
  const std::int64_t chunks = call.chunks.count > 1 ? 2 * rows * call.chunks.count : 0;
  workspace.add(call.chunks.source, chunks * (call.chunks.warm_up + 1) * n.classes);
  workspace.add(call.chunks.value, chunks * (call.chunks.warm_up + 1) * n.classes);
  workspace.add(call.chunks.scale, chunks * (call.chunks.warm_up + 1));
  workspace.add(call.chunks.ratio, chunks);
  workspace.add(call.chunks.ratio_exponent, chunks);
  workspace.add(call.lattice.forward_ratio, chunks > 0 ? boundaries : 0);
  workspace.add(call.lattice.backward_ratio, chunks > 0 ? boundaries : 0);
  workspace.add(call.team.counter, team ? 2 * rows : 0);
  workspace.add(call.team.exchange,
                team ? rows * n.classes * (n.by_duration != 0 ? 12 * kDurationParts : 4) : 0);
  workspace.add(call.team.into, team && n.by_duration == 0 ? pairs : 0);
  workspace.add(call.by_duration.weight, n.by_duration != 0 ? lattice : 0);
  workspace.add(call.by_duration.peak, n.by_duration != 0 ? boundaries : 0);
  workspace.add(call.by_duration.factors, n.by_duration != 0 ? rows * durations : 0);
}

}  // namespace segfuse::semicrf
