// Which part of a long row each device does: the arithmetic, without devices.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "semicrf/cuda/split/ranges.h"

namespace segfuse::semicrf {
namespace {

std::int64_t up(double x) { return static_cast<std::int64_t>(std::ceil(x)); }

struct Row {
  Call call;
  ChunkCuts cuts;
  int devices = 2;
};

Row row_of(std::int64_t frames, int max_duration, int classes, int devices) {
  Row row;
  row.devices = devices;
  row.call.sizes.batch = 1;
  row.call.sizes.frames = static_cast<int>(frames);
  row.call.sizes.max_duration = max_duration;
  row.call.sizes.classes = classes;
  DeviceWanted all;
  all.frames = all.transition = all.duration = true;
  cut_into_slices(row.call, all);
  row.cuts = cut_into_chunks(row.call.sizes, {}, 0);
  return row;
}

/// Frames of a chunk: the row in as many chunks as it has, in fours.
std::int64_t frames_of_chunk(std::int64_t frames, const ChunkCut& cut) {
  const auto chunks = static_cast<double>(frames / cut.least);
  return 4 * up(static_cast<double>(up(static_cast<double>(frames) / chunks)) / 4);
}

/// The chunk whose steps, (c each, (c + 1) each], `steps` is among; the first has step 0.
int chunk_with(std::int64_t steps, std::int64_t each) {
  int chunk = 0;
  while ((chunk + 1) * each < steps) ++chunk;
  return chunk;
}

bool has(const ChunkRange& range, int chunk) { return chunk >= range.begin && chunk < range.end; }

void check_row(const Row& row) {
  const std::int64_t frames = row.call.sizes.frames;
  const std::vector<PartOfRow> parts = split_row(row.call, row.cuts, row.devices);
  if (parts.empty()) return;
  std::int64_t at = 0;
  int slice = 0;
  int slot = 0;
  for (const PartOfRow& part : parts) {
    EXPECT_EQ(part.own.begin, at);
    EXPECT_EQ(part.slice, slice);
    EXPECT_EQ(part.slice, slot);
    EXPECT_LT(part.own.begin, part.own.end);
    EXPECT_LE(part.held.begin, part.own.begin);
    EXPECT_GE(part.held.end, part.own.end);
    at = part.own.end;
    slice = part.slice_end;
    slot = slot_end(part, row.call);
    EXPECT_GE(slot, slice);
  }
  EXPECT_EQ(at, frames);
  EXPECT_EQ(slot, row.call.slots);
  for (const PartOfRow& part : parts) {
    const ChunkCuts own = shares_of(part, row.cuts);
    std::size_t round = 0;
    for (std::size_t i = 0; i < row.cuts.size(); ++i) {
      if (!row.cuts[i].is_cut()) continue;
      const std::int64_t each = frames_of_chunk(frames, row.cuts[i]);
      const ChunkRange& forward = part.forward[round];
      const ChunkRange& backward = part.backward[round];
      // The boundaries of its frames, and those at which segments that begin there may end.
      const std::int64_t last = std::min(frames, part.own.end + row.call.sizes.max_duration);
      for (const std::int64_t t : {part.own.begin, (part.own.begin + last) / 2, last}) {
        EXPECT_TRUE(has(forward, chunk_with(t, each))) << t;
        EXPECT_TRUE(has(backward, chunk_with(frames - t, each))) << t;
      }
      for (const ChunkRange& range : {forward, backward}) {
        EXPECT_GE(range.begin, 0);
        EXPECT_LE(range.end, up(static_cast<double>(frames) / static_cast<double>(each)));
        EXPECT_LE(range.end - range.begin, own[round].count);
        EXPECT_LE(range.end - range.begin, own[0].count);
      }
      // What its chunks and their warm-ups read is held.
      const auto begins = [&](const ChunkRange& r) {
        return std::max<std::int64_t>(0, r.begin * each - row.cuts[i].warm_up);
      };
      const auto ends = [&](const ChunkRange& r) { return std::min(frames, r.end * each); };
      EXPECT_LE(part.held.begin, begins(forward));
      EXPECT_GE(part.held.end, ends(forward));
      EXPECT_LE(part.held.begin, frames - ends(backward));
      EXPECT_GE(part.held.end, frames - begins(backward));
      // Every chunk and the one before it are on one device.
      if (&part != &parts.back()) {
        const PartOfRow& next = *(&part + 1);
        EXPECT_LT(next.forward[round].begin, forward.end);
        EXPECT_LT(backward.begin, next.backward[round].end);
      }
      ++round;
    }
  }
}

/// Half of them long with short segments, where slots are left over, and half of them short with
/// long segments on many devices, where the second cut may have more chunks on one than the first.
Row random_row(Rng& rng, int i) {
  const bool is_long = i % 2 == 0;
  const double digits = is_long ? 3 + 4.3 * rng.uniform() : 3.5 + rng.uniform();
  return row_of(static_cast<std::int64_t>(std::pow(10, digits)),
                1 + static_cast<int>(rng.below(is_long ? 12 : 400)),
                2 + static_cast<int>(rng.below(30)), 2 + static_cast<int>(rng.below(31)));
}

TEST(SplitRanges, CoverRowsOfAnyLength) {
  Rng rng(5);
  int longer = 0;
  int empty = 0;
  for (int i = 0; i < 4000 && !HasFailure(); ++i) {
    const Row row = random_row(rng, i);
    SCOPED_TRACE(::testing::Message()
                 << row.call.sizes.frames << " frames, K " << row.call.sizes.max_duration << ", C "
                 << row.call.sizes.classes << ", " << row.devices << " devices");
    check_row(row);
    for (const PartOfRow& part : split_row(row.call, row.cuts, row.devices)) {
      if (part.own.end == row.call.sizes.frames && part.slice_end < row.call.slots) ++empty;
      if (part.forward.size() > 1 &&
          share_of(part, row.cuts[1], 1).count > share_of(part, row.cuts[0], 0).count)
        ++longer;
    }
  }
  EXPECT_GT(longer, 0);
  EXPECT_GT(empty, 0);
}

}  // namespace
}  // namespace segfuse::semicrf
