#pragma once
// From pointers back to packed segments. The way back is cut in time too: a part begins some frames
// behind its own from any label, and ways back soon meet. Parts that do not fit together are walked
// again in order.

#include "semicrf/cuda/kernels/best/chunks.cuh"
#include "semicrf/cuda/kernels/best/grid.cuh"
#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/common/cuts.cuh"

namespace segfuse::semicrf::gpu {

/// grid (B, chunks - 1): marks chunks that have to be done again.
KERNEL compare_best(const __grid_constant__ Call call) {
  __shared__ int pivot;
  const int row = blockIdx.x;
  const int chunk = blockIdx.y + 1;
  if (chunk * call.chunks.steps >= row_length(call, row) || !grid_of_row(call, row).exact) return;
  const bool same = same_ring(call, row, chunk, &pivot);
  if (threadIdx.x == 0) call.best.wrong[row * call.chunks.count + chunk] = same ? 0 : 1;
}

/// Where the segment `label` that ends at boundary t is on the way back.
struct Way {
  int t, label;
};

/// Pointers back of a row. A walk waits for each of them, so blocks bring those of many boundaries
/// into shared memory at once.
struct Pointers {
  const Call& call;
  int row;
  const int* durations = nullptr;  ///< of boundaries [lowest, ..) in shared memory
  const int* labels = nullptr;
  int lowest = 0x7fffffff;

  DEVICE_MEMBER int at(const int* near, const int* far, Way way) const {
    const int classes = call.sizes.classes;
    if (way.t >= lowest) return near[(way.t - lowest) * classes + way.label];
    return far[at_boundary(call, row, way.t) + way.label];
  }

  DEVICE_MEMBER int duration(Way way) const {
    const int d = at(durations, call.best.duration, way);
    return max(1, min(d, way.t));  // labels that nothing leads to have any pointer
  }

  /// The segment before; label 0 at the row's start.
  DEVICE_MEMBER Way before(Way way, int duration) const {
    const int start = way.t - duration;
    if (start == 0) return {0, 0};
    const int t = call.sizes.by_duration != 0 ? way.t : start;
    return {start, at(labels, call.best.label, {t, way.label})};
  }
};

/// The label of the best last segment, -1 when nothing is possible; one warp.
DEVICE int best_last_label(const Call& call, int row, int length) {
  const int classes = call.sizes.classes;
  const long long last = at_boundary(call, row, length);
  const ScoreGrid grid = grid_of_row(call, row);
  const int* durations = call.best.duration + last;
  const auto choose = [&](Candidate a, Candidate b) { return better_label(a, b, durations); };
  Candidate best{minus_infinity(), 0};
  for (int c = threadIdx.x; c < classes; c += 32)
    best = choose(best,
                  {call.lattice.alpha[last + c] + grid(score_of(call.scores.final, c, 0, 0)), c});
  for (int lane = 16; lane > 0; lane /= 2) {
    Candidate other;
    other.score = __shfl_xor_sync(kAllLanes, best.score, lane);
    other.choice = __shfl_xor_sync(kAllLanes, best.choice, lane);
    best = choose(best, other);
  }
  return best.score > minus_infinity() ? best.choice : -1;
}

DEVICE int part_begin(const Call& call, int part, int length) {
  return part * way_frames(call, length);
}
DEVICE int part_end(const Call& call, int part, int length) {
  return min(length, part_begin(call, part, length) + way_frames(call, length));
}

/// Where a walk through the boundaries of a part has come to.
struct Walk {
  Way at;
  int count;  ///< segments of the part so far, the last one first
};

/// Walks on to the part's boundaries, then through them, as far as `lowest`; keeps the segments
/// that end in the part.
DEVICE void walk_part(const Pointers& pointers, int part, int length, int lowest, Walk& walk) {
  const Call& call = pointers.call;
  const int begin = part_begin(call, part, length);
  const int end = part_end(call, part, length);
  const int stop = max(begin, lowest);
  const long long first = static_cast<long long>(pointers.row) * call.sizes.frames + begin;
  int* trace = call.best.trace + 3 * (first + walk.count);
  const int index = pointers.row * call.best.parts + part;
  while (walk.at.t > stop) {
    const Way at = walk.at;
    const int d = pointers.duration(at);
    walk.at = pointers.before(at, d);
    if (at.t > end) continue;
    if (walk.count++ == 0) {
      call.best.entry[2 * index] = at.t;
      call.best.entry[2 * index + 1] = at.label;
    }
    *trace++ = at.t - d;
    *trace++ = d;
    *trace++ = at.label;
  }
}

/// What is known of a part when the walk has left it. One that it stepped over was left where it
/// was entered.
DEVICE void leave_part(const Call& call, int row, int part, const Walk& walk) {
  const int index = row * call.best.parts + part;
  call.best.part_count[index] = walk.count;
  call.best.exit[2 * index] = walk.at.t;
  call.best.exit[2 * index + 1] = walk.at.label;
  if (walk.count > 0) return;
  call.best.entry[2 * index] = walk.at.t;
  call.best.entry[2 * index + 1] = walk.at.label;
}

/// grid (B, parts).
KERNEL __launch_bounds__(256) best_trace(const __grid_constant__ Call call) {
  constexpr int kPointers = 4096;
  __shared__ int durations[kPointers];
  __shared__ int labels[kPointers];
  __shared__ int way[2];
  const int row = blockIdx.x;
  const int part = blockIdx.y;
  const int classes = call.sizes.classes;
  const int length = row_length(call, row);
  const int begin = part_begin(call, part, length);
  if (part > 0 && begin >= length) return;
  const int first = min(length, part_end(call, part, length) + call.best.part_overlap);
  if (threadIdx.x < 32) {
    const int last = first == length && length > 0 ? best_last_label(call, row, length) : 0;
    if (threadIdx.x == 0) {
      way[0] = length == 0 || last < 0 ? 0 : first;
      way[1] = last;
    }
  }
  __syncthreads();
  Walk walk{{way[0], way[1]}, 0};
  const int boundaries = kPointers / classes;
  while (walk.at.t > begin) {
    Pointers pointers{call, row};
    if (boundaries > 1) {
      pointers.lowest = max(1, walk.at.t + 1 - boundaries);
      const long long from = at_boundary(call, row, pointers.lowest);
      const int cells = (walk.at.t + 1 - pointers.lowest) * classes;
#pragma unroll 4
      for (int i = threadIdx.x; i < cells; i += blockDim.x) {
        durations[i] = call.best.duration[from + i];
        labels[i] = call.best.label[from + i];
      }
      pointers.durations = durations;
      pointers.labels = labels;
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      // Before it goes on from the lowest boundary, those below it are brought.
      const bool all = boundaries < 2 || pointers.lowest == 1;
      walk_part(pointers, part, length, all ? 0 : pointers.lowest, walk);
      way[0] = walk.at.t;
      way[1] = walk.at.label;
    }
    __syncthreads();
    walk.at = {way[0], way[1]};
  }
  if (threadIdx.x == 0) leave_part(call, row, part, walk);
}

/// grid (B), one warp: walks parts again that do not begin where the part behind them ended, and
/// adds up how many segments come before each.
KERNEL best_join(const __grid_constant__ Call call) {
  __shared__ int sums[32];
  const int row = blockIdx.x;
  const int length = row_length(call, row);
  const int parts = max(1, parts_of(length, way_frames(call, length)));
  const long long first = static_cast<long long>(row) * call.best.parts;
  int* entry = call.best.entry + 2 * first;
  int* exit = call.best.exit + 2 * first;
  const bool possible = length > 0 && entry[2 * (parts - 1)] > 0;
  bool fits = true;
  for (int part = threadIdx.x; possible && part + 1 < parts; part += 32)
    fits &= entry[2 * part] == exit[2 * part + 2] && entry[2 * part + 1] == exit[2 * part + 3];
  fits = __syncthreads_and(fits);
  if (threadIdx.x == 0 && !fits) {
    for (int part = parts - 2; part >= 0; --part) {
      const Way from{exit[2 * part + 2], exit[2 * part + 3]};
      if (entry[2 * part] == from.t && entry[2 * part + 1] == from.label) continue;
      Walk walk{from, 0};
      walk_part({call, row}, part, length, 0, walk);
      leave_part(call, row, part, walk);
    }
  }
  __syncthreads();
  const int each = (parts + 31) / 32;
  const int begin = min(parts, static_cast<int>(threadIdx.x) * each);
  const int end = min(parts, begin + each);
  int sum = 0;
  for (int part = begin; part < end; ++part)
    sum += possible ? call.best.part_count[first + part] : 0;
  sums[threadIdx.x] = sum;
  __syncthreads();
  int before_part = 0;
  for (int lane = 0; lane < static_cast<int>(threadIdx.x); ++lane) before_part += sums[lane];
  for (int part = begin; part < end; ++part) {
    call.best.part_first[first + part] = before_part;
    if (!possible) call.best.part_count[first + part] = 0;
    before_part += call.best.part_count[first + part];
  }
  if (threadIdx.x == 31) call.best.count[row] = before_part;
  if (threadIdx.x == 0)
    put(call.rows.status, row, static_cast<unsigned char>(length == 0 || possible ? 0 : 1));
}

/// Score of a segment, with what leads into it from `previous`.
DEVICE double segment_score(const Call& call, int row, const int* segment, int previous,
                            int length) {
  const int start = segment[0];
  const int d = segment[1];
  const int c = segment[2];
  double score = load(call.scores.duration, d - 1, c, 0);
  for (int t = start; t < start + d; ++t) score += load(call.scores.emission, row, t, c);
  score += score_of(call.scores.start, row, start, c);
  score += score_of(call.scores.end, row, start + d - 1, c);
  score += start == 0
               ? score_of(call.scores.initial, c, 0, 0)
               : load(call.scores.transition, call.sizes.by_duration != 0 ? d - 1 : 0, previous, c);
  return start + d == length ? score + score_of(call.scores.final, c, 0, 0) : score;
}

/// grid (B, parts): the segments in order of time, and the sum of their scores.
KERNEL best_pack(const __grid_constant__ Call call) {
  __shared__ double scratch[32];
  const int row = blockIdx.x;
  const int part = blockIdx.y;
  const int length = row_length(call, row);
  if (part_begin(call, part, length) >= length) return;
  const int index = row * call.best.parts + part;
  const int count = call.best.part_count[index];
  const long long first = call.best.row_pointer[row] + call.best.part_first[index];
  const int* trace = call.best.trace + 3 * (static_cast<long long>(row) * call.sizes.frames +
                                            part_begin(call, part, length));
  double score = 0.0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int* segment = trace + 3 * i;
    const int previous = i + 1 < count ? segment[5] : call.best.exit[2 * index + 1];
    const long long at = first + (count - 1 - i);
    call.best.packed_start[at] = segment[0];
    call.best.packed_duration[at] = segment[1];
    call.best.packed_label[at] = segment[2];
    if (call.best.score.data != nullptr)
      score += segment_score(call, row, segment, previous, length);
  }
  score = block_sum(score, scratch);
  if (threadIdx.x == 0) call.best.part_score[index] = score;
}

/// grid (B), one warp: a row's score.
KERNEL best_total(const __grid_constant__ Call call) {
  const int row = blockIdx.x;
  const int length = row_length(call, row);
  const int parts = parts_of(length, way_frames(call, length));
  double score = 0.0;
  for (int part = threadIdx.x; part < parts; part += 32)
    score += call.best.part_score[row * call.best.parts + part];
  score = warp_sum(score);
  const bool possible = length == 0 || call.best.count[row] > 0;
  if (threadIdx.x == 0) put(call.best.score, row, possible ? score : minus_infinity());
}

}  // namespace segfuse::semicrf::gpu
