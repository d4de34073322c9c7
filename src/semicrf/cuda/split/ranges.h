#pragma once
// Which part of one long row a device does.
//
// Time slices are dealt out in runs. A device needs the values of its slices' boundaries and of the
// K boundaries behind them (of the forward pass only their scales), so the chunks of both passes
// that these lie in. Chunks at a seam are computed on both sides, so every chunk has the
// one before it on one device, and nothing but ratios goes from one device to another.

#include <vector>

#include "semicrf/cuda/engine_state.h"

namespace segfuse::semicrf {

/// The row's slices, in frames: slice_frames of kernels/common/cuts.cuh.
std::int64_t slice_frames(std::int64_t frames);

/// Chunks of a pass, from `begin` to before `end`, counted in the direction of the pass.
struct ChunkRange {
  int begin = 0;
  int end = 0;
};

struct PartOfRow {
  int slice = 0;
  int slice_end = 0;
  FrameSpan own;                     ///< frames of its slices
  FrameSpan held;                    ///< frames whose factors its passes read
  std::vector<ChunkRange> forward;   ///< by cut
  std::vector<ChunkRange> backward;  ///< by cut
};

/// A part for each device; none where the row is too short to be split or cannot be: where slots of
/// counts are shared by slices, or passes are not cut.
std::vector<PartOfRow> split_row(const Call& call, const ChunkCuts& cuts, int devices);

/// A cut of a part: as many chunks as its longer pass has.
ChunkCut share_of(const PartOfRow& part, const ChunkCut& cut, std::size_t round);

/// All of them. The first one, by which the arrays of the passes are laid out, has as many chunks
/// as the cut with most of them.
ChunkCuts shares_of(const PartOfRow& part, const ChunkCuts& cuts);

/// Slots of partial sums, from `part.slice` to before this. Those that no slice fills are the last
/// device's, and zero.
int slot_end(const PartOfRow& part, const Call& call);

}  // namespace segfuse::semicrf
