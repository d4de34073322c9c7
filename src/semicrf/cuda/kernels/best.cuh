// The best segmentation: the passes of exact.cuh with max for sum, in natural units, with back
// pointers. Ties: the smallest duration, then the smallest label, from the last segment on.

namespace segfuse::semicrf::gpu {

/// The best of a group of lanes, by `choose`; all of them get it.
template <class Choose>
DEVICE Candidate group_best(Candidate x, Choose choose) {
  for (int lane = kExactLanes / 2; lane > 0; lane /= 2) {
    Candidate other;
    other.score = __shfl_xor_sync(kAllLanes, x.score, lane);
    other.choice = __shfl_xor_sync(kAllLanes, x.choice, lane);
    x = choose(x, other);
  }
  return x;
}

/// grid (B). alpha and gamma hold scores.
KERNEL best_pass(const __grid_constant__ Call call) {
  const int row = blockIdx.x;
  const int length = row_length(call, row);
  const int classes = call.sizes.classes;
  const int longest = call.sizes.max_duration;
  const int lane = threadIdx.x % kExactLanes;
  const int group = threadIdx.x / kExactLanes;
  const int groups = blockDim.x / kExactLanes;
  const int rounds = (classes + groups - 1) / groups;
  double* source = call.lattice.gamma;
  double* value = call.lattice.alpha;
  double* ring = call.pending + static_cast<long long>(row) * longest * classes;

  for (int c = threadIdx.x; c < classes; c += blockDim.x)
    source[at_boundary(call, row, 0) + c] = score_of(call.scores.initial, c, 0, 0);
  __syncthreads();
  for (int i = 0; i < length; ++i) {
    const long long here = at_boundary(call, row, i);
    const long long next = here + classes;
    const int known = min(longest, i + 1);
    const int newest = i % longest;
    for (int round = 0; round < rounds; ++round) {
      const int c = min(round * groups + group, classes - 1);
      const bool mine = round * groups + group < classes;
      const double emission = load(call.scores.emission, row, i, c);
      Candidate best{minus_infinity(), longest};
      for (int j = lane; mine && j < known; j += kExactLanes) {
        double* slot = ring + static_cast<long long>(j) * classes + c;
        const double before =
            j == newest ? source[here + c] + score_of(call.scores.start, row, i, c) : *slot;
        *slot = before + emission;
        const int age = newest >= j ? newest - j : newest - j + longest;
        best = better(best, {before + emission + load(call.scores.duration, age, c, 0), age});
      }
      best = group_best(best, better);
      if (mine && lane == 0) {
        value[next + c] = best.score + score_of(call.scores.end, row, i, c);
        call.best.duration[next + c] = best.choice + 1;
      }
    }
    __syncthreads();
    for (int round = 0; round < rounds; ++round) {
      const int c = min(round * groups + group, classes - 1);
      const int* durations = call.best.duration + next;
      const auto choose = [&](Candidate a, Candidate b) { return better_label(a, b, durations); };
      Candidate best{minus_infinity(), 0};
      for (int other = lane; other < classes; other += kExactLanes)
        best =
            choose(best, {value[next + other] + load(call.scores.transition, 0, other, c), other});
      best = group_best(best, choose);
      if (round * groups + group < classes && lane == 0) {
        source[next + c] = best.score;
        call.best.label[next + c] = best.choice;
      }
    }
    __syncthreads();
  }
}

/// One warp a row: follows the back pointers; rows without a path have no segment.
KERNEL best_trace(const __grid_constant__ Call call) {
  const int row = blockIdx.x;
  const int length = row_length(call, row);
  const int classes = call.sizes.classes;
  const long long last = at_boundary(call, row, length);
  Candidate best{minus_infinity(), classes};
  for (int c = threadIdx.x; length > 0 && c < classes; c += 32)
    best = better(best, {call.lattice.alpha[last + c] + score_of(call.scores.final, c, 0, 0), c});
  // Among equal scores the shortest last segment wins, then the smallest label.
  int duration = best.score > minus_infinity() ? call.best.duration[last + best.choice]
                                               : call.sizes.frames + 1;
  for (int c = threadIdx.x; length > 0 && c < classes; c += 32) {
    const double score = call.lattice.alpha[last + c] + score_of(call.scores.final, c, 0, 0);
    const int d = call.best.duration[last + c];
    if (score == best.score && d < duration) best.choice = c, duration = d;
  }
  for (int lane = 16; lane > 0; lane /= 2) {
    Candidate other;
    other.score = __shfl_xor_sync(kAllLanes, best.score, lane);
    other.choice = __shfl_xor_sync(kAllLanes, best.choice, lane);
    const int d = __shfl_xor_sync(kAllLanes, duration, lane);
    const bool first = other.score > best.score ||
                       (other.score == best.score &&
                        (d < duration || (d == duration && other.choice < best.choice)));
    if (first) best = other, duration = d;
  }
  if (threadIdx.x != 0) return;
  int count = 0;
  int* trace = call.best.trace + 3ll * row * call.sizes.frames;
  const bool possible = best.score > minus_infinity();
  for (int t = length, c = best.choice; possible && t > 0; ++count) {
    const long long last_frame = at_boundary(call, row, t) + c;
    const int d = call.best.duration[last_frame];
    t -= d;
    trace[3 * count] = t;
    trace[3 * count + 1] = d;
    trace[3 * count + 2] = c;
    if (t > 0)
      c = call.best.label[call.sizes.by_duration != 0 ? last_frame : at_boundary(call, row, t) + c];
  }
  call.best.count[row] = count;
  put(call.best.score, row, length == 0 ? 0.0 : best.score);
  put(call.rows.status, row, static_cast<unsigned char>(length == 0 || possible ? 0 : 1));
}

/// grid (B): the segments in order of time.
KERNEL best_pack(const __grid_constant__ Call call) {
  const int row = blockIdx.x;
  const int count = call.best.count[row];
  const long long first = call.best.row_pointer[row];
  const int* trace = call.best.trace + 3ll * row * call.sizes.frames;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int* segment = trace + 3ll * (count - 1 - i);
    call.best.packed_start[first + i] = segment[0];
    call.best.packed_duration[first + i] = segment[1];
    call.best.packed_label[first + i] = segment[2];
  }
}

}  // namespace segfuse::semicrf::gpu
