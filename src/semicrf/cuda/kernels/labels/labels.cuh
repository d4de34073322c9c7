#pragma once
// Segments from labels per frame: the maximal runs of equal labels, long ones cut, or those between
// marked frames. One block a row, twice: to count a row's segments, and to write them when all rows
// are counted.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/common/pointers.cuh"

namespace segfuse::semicrf::gpu {

constexpr int kLabelThreads = 256;

DEVICE long long label_at(const Call& call, int row, int t) {
  const FrameLabels& labels = call.labels;
  const long long at = row * labels.stride[0] + t * labels.stride[1];
  return labels.wide != nullptr ? labels.wide[at] : labels.narrow[at];
}

/// Frames of a row: its length, or those before the first that is ignored. The whole block calls
/// it.
DEVICE int labelled_frames(const Call& call, int row) {
  __shared__ int first;
  const int frames = call.sizes.frames;
  if (call.lengths.wide != nullptr || call.lengths.narrow != nullptr) return row_length(call, row);
  if (threadIdx.x == 0) first = frames;
  __syncthreads();
  for (int t = threadIdx.x; t < frames; t += kLabelThreads)
    if (label_at(call, row, t) == call.labels.ignore) {
      atomicMin(&first, t);
      break;
    }
  __syncthreads();
  return first;
}

/// Whether a segment begins at t > 0.
DEVICE bool begins_at(const Call& call, int row, int t) {
  const FrameLabels& labels = call.labels;
  if (labels.begins == nullptr) return label_at(call, row, t - 1) != label_at(call, row, t);
  return labels.begins[row * labels.begins_stride[0] + t * labels.begins_stride[1]] != 0;
}

/// Reports what is wrong with a row; true if nothing is.
DEVICE bool check_labels(const Call& call, int row, int length) {
  const bool given = call.lengths.wide != nullptr || call.lengths.narrow != nullptr;
  bool good = true;
  for (int t = threadIdx.x; t < (given ? length : call.sizes.frames); t += kLabelThreads) {
    const long long at = static_cast<long long>(row) * call.sizes.frames + t;
    const long long label = label_at(call, row, t);
    if (t < length ? label < 0 || label >= call.sizes.classes : label != call.labels.ignore) {
      report(call, t < length ? kFaultLabel : kFaultAfterIgnored, at);
      good = false;
    } else if (t > 0 && t < length && label_at(call, row, t - 1) != label &&
               !begins_at(call, row, t)) {
      report(call, kFaultNoStart, at);
      good = false;
    }
  }
  if (threadIdx.x == 0 && given) {
    const long long n = call.lengths.wide != nullptr
                            ? call.lengths.wide[row * call.lengths.stride]
                            : call.lengths.narrow[row * call.lengths.stride];
    if (n != length) report(call, kFaultLength, row), good = false;
  }
  return __syncthreads_and(good);
}

/// Frames of the run that begins at t, 0 if none does.
DEVICE int run_from(const Call& call, int row, int t, int length) {
  if (t >= length || (t > 0 && !begins_at(call, row, t))) return 0;
  int end = t + 1;
  while (end < length && !begins_at(call, row, end)) ++end;
  return end - t;
}

/// Sum of what the threads before this one give, and of all: `sums` has two rows of a block each.
DEVICE int sum_before(int mine, int (&sums)[2][kLabelThreads], int& all) {
  const int thread = threadIdx.x;
  int from = 0;
  sums[0][thread] = mine;
  __syncthreads();
  for (int reach = 1; reach < kLabelThreads; reach *= 2) {
    sums[1 - from][thread] =
        sums[from][thread] + (thread >= reach ? sums[from][thread - reach] : 0);
    from = 1 - from;
    __syncthreads();
  }
  all = sums[from][kLabelThreads - 1];
  const int before = sums[from][thread] - mine;
  __syncthreads();
  return before;
}

/// The fewest segments that fit, the longer ones first.
DEVICE void write_run(const Call& call, int t, int frames, int pieces, int label, long long first) {
  for (int i = 0; i < pieces; ++i) {
    const int piece = frames / pieces + (i < frames % pieces ? 1 : 0);
    call.best.packed_start[first + i] = t;
    call.best.packed_duration[first + i] = piece;
    call.best.packed_label[first + i] = label;
    t += piece;
  }
}

/// Number of a row's segments, which are written if `write`; 0 with a report where a run is too
/// long.
DEVICE int label_segments(const Call& call, int row, int length, bool write) {
  __shared__ int sums[2][kLabelThreads];
  const int longest = call.sizes.max_duration;
  int count = 0;
  bool good = true;
  for (int base = 0; base < length; base += kLabelThreads) {
    const int t = base + static_cast<int>(threadIdx.x);
    const int frames = run_from(call, row, t, length);
    const int pieces = frames / longest + (frames % longest != 0 ? 1 : 0);
    if (pieces > 1 && call.labels.split == 0) {
      report(call, kFaultLongRun, static_cast<long long>(row) * call.sizes.frames + t);
      good = false;
    }
    int all = 0;
    const int before = sum_before(pieces, sums, all);
    if (write && pieces > 0)
      write_run(call, t, frames, pieces, static_cast<int>(label_at(call, row, t)),
                call.best.row_pointer[row] + count + before);
    count += all;
  }
  return __syncthreads_and(good) ? count : 0;
}

/// grid (B): segments of each row, none of a row with a fault.
KERNEL count_labels(const __grid_constant__ Call call) {
  const int row = blockIdx.x;
  const int length = labelled_frames(call, row);
  const bool good = check_labels(call, row, length);
  const int count = good ? label_segments(call, row, length, false) : 0;
  if (threadIdx.x == 0) {
    call.best.count[row] = count;
    if (call.labels.frames != nullptr) call.labels.frames[row] = length;
  }
}

/// grid (B), after the row pointers.
KERNEL pack_labels(const __grid_constant__ Call call) {
  const int row = blockIdx.x;
  if (call.best.count[row] == 0) return;
  label_segments(call, row, labelled_frames(call, row), true);
}

}  // namespace segfuse::semicrf::gpu
