#include "semicrf/cuda/split/ranges.h"

#include <algorithm>

namespace segfuse::semicrf {
namespace {

/// Boundaries beyond K that kernels of counts may read, and then make no use of.
constexpr std::int64_t kReadAhead = 512;

/// Steps of a chunk: chunk_steps of kernels/common/cuts.cuh.
std::int64_t chunk_steps(std::int64_t frames, const ChunkCut& cut) {
  return 4 * ceil_divide(ceil_divide(frames, frames / cut.least), 4);
}

/// The chunk that computes what is reached after so many steps.
int chunk_of(std::int64_t steps, std::int64_t each) {
  return static_cast<int>(std::max<std::int64_t>(0, ceil_divide(steps, each) - 1));
}

/// Adds what chunks of one cut need to the frames that are held.
void hold(PartOfRow& part, const ChunkCut& cut, std::int64_t frames) {
  const std::int64_t each = chunk_steps(frames, cut);
  const ChunkRange forward = part.forward.back();
  const ChunkRange backward = part.backward.back();
  const auto first = [&](const ChunkRange& range) {
    return std::max<std::int64_t>(0, range.begin * each - cut.warm_up);
  };
  const auto last = [&](const ChunkRange& range) { return std::min(frames, range.end * each); };
  part.held.begin =
      std::min({part.held.begin, first(forward), frames - last(backward), part.own.begin});
  part.held.end = std::max({part.held.end, last(forward), frames - first(backward), part.own.end});
}

}  // namespace

std::int64_t slice_frames(std::int64_t frames) {
  const auto in = [&](std::int64_t slices) {
    return 32 * ceil_divide(ceil_divide(frames, slices), 32);
  };
  const std::int64_t some = std::min<std::int64_t>(in(gpu::kSlices), gpu::kLongSlice);
  return std::max({std::int64_t{gpu::kShortestSlice}, in(gpu::kMaxSlices), some});
}

std::vector<PartOfRow> split_row(const Call& call, const ChunkCuts& cuts, int devices) {
  const std::int64_t frames = call.sizes.frames;
  const std::int64_t each = slice_frames(frames);
  const std::int64_t slices = ceil_divide(frames, each);
  if (call.sizes.batch != 1 || cuts.size() < 2 || call.slots < slices || call.slot_groups != 1 ||
      slices < devices)
    return {};
  std::vector<PartOfRow> parts;
  for (std::int64_t device = 0; device < devices; ++device) {
    PartOfRow part;
    part.slice = static_cast<int>(slices * device / devices);
    part.slice_end = static_cast<int>(slices * (device + 1) / devices);
    part.own = {part.slice * each, std::min(frames, part.slice_end * each)};
    part.held = part.own;
    const std::int64_t reach =
        std::min(frames, part.own.end + call.sizes.max_duration + kReadAhead);
    for (const ChunkCut& cut : cuts) {
      if (!cut.is_cut()) continue;
      const std::int64_t steps = chunk_steps(frames, cut);
      part.forward.push_back({chunk_of(part.own.begin, steps), chunk_of(reach, steps) + 1});
      part.backward.push_back(
          {chunk_of(frames - reach, steps), chunk_of(frames - part.own.begin, steps) + 1});
      hold(part, cut, frames);
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

ChunkCut share_of(const PartOfRow& part, const ChunkCut& cut, std::size_t round) {
  const ChunkRange& forward = part.forward[round];
  const ChunkRange& backward = part.backward[round];
  ChunkCut own = cut;
  own.count = std::max(forward.end - forward.begin, backward.end - backward.begin);
  return own;
}

ChunkCuts shares_of(const PartOfRow& part, const ChunkCuts& cuts) {
  ChunkCuts own;
  int most = 0;
  for (std::size_t round = 0; round < part.forward.size(); ++round) {
    own.push_back(share_of(part, cuts[round], round));
    most = std::max(most, own.back().count);
  }
  own[0].count = most;
  return own;
}

int slot_end(const PartOfRow& part, const Call& call) {
  return part.own.end == call.sizes.frames ? call.slots : part.slice_end;
}

}  // namespace segfuse::semicrf
