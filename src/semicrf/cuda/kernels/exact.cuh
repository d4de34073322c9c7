// The passes in the log domain, for rows whose scores leave the range of the linear one: one block
// per (row, direction), any number of classes and durations. Slower by an exponential per (k, c)
// and per pair of classes; values are log2, absolute.

namespace segfuse::semicrf::gpu {

constexpr int kExactLanes = 8;  ///< lanes that share a class

DEVICE double group_max(double x) {
  for (int lane = kExactLanes / 2; lane > 0; lane /= 2)
    x = fmax(x, __shfl_xor_sync(kAllLanes, x, lane));
  return x;
}
DEVICE double group_sum(double x) {
  for (int lane = kExactLanes / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(kAllLanes, x, lane);
  return x;
}

/// log2 of the sum over n terms term(i), shared by a group of lanes; all lanes of a warp call it.
template <class Term>
DEVICE double log_sum(int n, Term term) {
  const int lane = threadIdx.x % kExactLanes;
  double largest = minus_infinity();
  for (int i = lane; i < n; i += kExactLanes) largest = fmax(largest, term(i));
  largest = group_max(largest);
  double sum = 0.0;
  if (largest > minus_infinity())
    for (int i = lane; i < n; i += kExactLanes) sum += exp2(term(i) - largest);
  sum = group_sum(sum);
  return largest > minus_infinity() ? largest + log2(sum) : largest;
}

/// A frame or boundary score in bits, 0 when the input is absent.
DEVICE double bits_of(const Strided& scores, long long i, long long j, long long k) {
  return scores.data == nullptr ? 0.0 : load(scores, i, j, k) * kLog2E;
}

KERNEL exact_pass(const __grid_constant__ Call call) {
  const int row = blockIdx.x;
  if (!needs_exact(call, row) || call.sizes.by_duration != 0) return;
  const bool forward = blockIdx.y == 0;
  const int length = row_length(call, row);
  const int classes = call.sizes.classes;
  const int longest = call.sizes.max_duration;
  const int lane = threadIdx.x % kExactLanes;
  const int group = threadIdx.x / kExactLanes;
  const int groups = blockDim.x / kExactLanes;
  const int rounds = (classes + groups - 1) / groups;
  const Strided& enter = forward ? call.scores.start : call.scores.end;
  const Strided& leave = forward ? call.scores.end : call.scores.start;
  const Strided& first = forward ? call.scores.initial : call.scores.final;
  double* source = (forward ? call.lattice.gamma : call.lattice.beta);
  double* value = (forward ? call.lattice.alpha : call.lattice.delta);
  double* ring = call.pending + (2ll * row + blockIdx.y) * longest * classes;

  const long long origin = at_boundary(call, row, forward ? 0 : length);
  for (int c = threadIdx.x; c < classes; c += blockDim.x)
    source[origin + c] = bits_of(first, c, 0, 0);
  __syncthreads();
  for (int i = 0; i < length; ++i) {
    const int frame = forward ? i : length - 1 - i;
    const long long here = at_boundary(call, row, forward ? i : length - i);
    const long long next = at_boundary(call, row, forward ? i + 1 : length - i - 1);
    const int known = min(longest, i + 1);
    const int newest = i % longest;
    for (int round = 0; round < rounds; ++round) {
      const int c = min(round * groups + group, classes - 1);
      const bool mine = round * groups + group < classes;
      const double frame_bits = bits_of(call.scores.emission, row, frame, c);
      // Ages are handed out to lanes by slot, so that a slot stays with its lane.
      for (int j = lane; mine && j < known; j += kExactLanes) {
        double* slot = ring + static_cast<long long>(j) * classes + c;
        const double before =
            j == newest ? source[here + c] + bits_of(enter, row, frame, c) : *slot;
        *slot = before + frame_bits;
      }
      const double sum = log_sum(mine ? known : 0, [&](int j) {
        const int age = (newest - j + longest) % longest;
        return ring[static_cast<long long>(j) * classes + c] +
               load(call.scores.duration, age, c, 0) * kLog2E;
      });
      if (mine && lane == 0) value[next + c] = sum + bits_of(leave, row, frame, c);
    }
    __syncthreads();
    for (int round = 0; round < rounds; ++round) {
      const int c = min(round * groups + group, classes - 1);
      const double sum = log_sum(classes, [&](int other) {
        const double score = forward ? load(call.scores.transition, 0, other, c)
                                     : load(call.scores.transition, 0, c, other);
        return value[next + other] + score * kLog2E;
      });
      if (round * groups + group < classes && lane == 0) source[next + c] = sum;
    }
    __syncthreads();
  }
}

}  // namespace segfuse::semicrf::gpu
