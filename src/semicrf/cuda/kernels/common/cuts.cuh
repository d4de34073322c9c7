#pragma once
// How a row is cut, for work in parallel over time. Everything here follows from the row's own
// length and the sizes of the model: the results for a row do not depend on the rows beside it,
// on the frames they are padded to, or on the device. The host launches for the longest row that
// may come (plan.cpp); blocks that a row has no part for leave.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"

namespace segfuse::semicrf::gpu {

DEVICE int parts_of(int whole, int part) { return (whole + part - 1) / part; }

/// Steps of a row's chunks in the passes: a whole number of strides of four.
DEVICE int chunk_steps(const Call& call, int length) {
  const int count = length / call.chunks.least;
  return count < 2 ? max(length, 1) : 4 * parts_of(parts_of(length, count), 4);
}

/// A chunk as blocks of a launch count it; beyond the part's last one it is none.
DEVICE int chunk_of(const Call& call, bool forward, int block) {
  const int chunk = call.part.chunk[forward ? 0 : 1] + block;
  return chunk < call.part.chunk_end[forward ? 0 : 1] ? chunk : -1;
}
/// Where a chunk's own memory is, among those of the launch.
DEVICE long long chunk_place(const Call& call, int row, bool forward, int chunk) {
  const int direction = forward ? 0 : 1;
  return (2ll * row + direction) * call.chunks.count + chunk - call.part.chunk[direction];
}

/// The mark of a row whose chunks of a round do not fit together.
DEVICE int redo_flag(bool forward, int round) {
  return static_cast<int>(forward ? kRedoForward : kRedoBackward) << (kRoundBits * round);
}

/// Whether a row's pass is to be done in this round.
DEVICE bool is_due(const Call& call, int row, bool forward) {
  const int round = call.chunks.round;
  return round == 0 || (call.lattice.flags[row] & redo_flag(forward, round - 1)) != 0;
}

/// Frames of a row's time slices: long enough to be worth a block, few enough that a running sum
/// over them is cheap, and no longer than that asks for.
DEVICE int slice_frames(int length) {
  const int some = 32 * parts_of(parts_of(length, kSlices), 32);
  const int many = 32 * parts_of(parts_of(length, kMaxSlices), 32);
  return max(kShortestSlice, max(many, min(some, kLongSlice)));
}

/// Blocks that share a row's gold segments.
DEVICE int gold_parts(int length) { return max(1, min(length / kFramesOfGoldPart, kMaxGoldParts)); }

/// Boundaries of a part of the way back.
DEVICE int way_frames(const Call& call, int length) {
  return max(call.best.part_frames, parts_of(length, kMaxWays));
}

}  // namespace segfuse::semicrf::gpu
