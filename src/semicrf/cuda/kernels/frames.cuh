// Posteriors of frames, parallel over time: emission, start and end gradients.
//
//   P(a segment of c starts at t) = gamma_t(c) delta_t(c) / Z,   P(one ends before t) = alpha_t(c)
//   beta_t(c) / Z P(label_t = c) = P(label_{t-1} = c) - P(ends before t) + P(starts at t)
//
// The last line is a running sum in double; time slices first add up their own terms (slice_cover),
// then every slice continues from the sum of those before it.

namespace segfuse::semicrf::gpu {

/// What the product of forward and backward values at a boundary lacks.
struct Place {
  int shift;
  double factor;
};

/// Start and end posteriors of one row; the end of boundary 0 is 0.
struct Posterior {
  const Call& call;
  int row;
  bool exact;
  double partition;
  double inverse;  ///< 1 / partition of a linear row
  int last_scale;
  long long base;  ///< first boundary of the row in (B, T+1)

  DEVICE_MEMBER Posterior(const Call& c, int r) : call(c), row(r), exact(needs_exact(c, r)) {
    base = static_cast<long long>(row) * (call.sizes.frames + 1);
    partition = call.lattice.partition[row];
    inverse = 1.0 / partition;
    last_scale = exact ? 0 : call.lattice.forward_scale[base + row_length(call, row)];
  }
  DEVICE_MEMBER int shift(int t) const {
    return exact ? 0
                 : call.lattice.forward_scale[base + t] + call.lattice.backward_scale[base + t] -
                       last_scale;
  }
  DEVICE_MEMBER double forward_ratio(int t) const {
    return call.lattice.forward_ratio == nullptr || exact ? 1.0
                                                          : call.lattice.forward_ratio[base + t];
  }
  DEVICE_MEMBER double backward_ratio(int t) const {
    return call.lattice.backward_ratio == nullptr || exact ? 1.0
                                                           : call.lattice.backward_ratio[base + t];
  }
  DEVICE_MEMBER Place place(int t) const {
    return {shift(t), forward_ratio(t) * backward_ratio(t) * inverse};
  }
  DEVICE_MEMBER double pair(double forward, double backward, const Place& at) const {
    if (exact) return exp2(forward + backward - partition);
    const int half = at.shift / 2;
    return scaled(forward, half) * (scaled(backward, at.shift - half) * at.factor);
  }
  DEVICE_MEMBER double start(int t, int c, const Place& at) const {
    const long long i = at_boundary(call, row, t) + c;
    return pair(call.lattice.gamma[i], call.lattice.delta[i], at);
  }
  DEVICE_MEMBER double end(int t, int c, const Place& at) const {
    if (t == 0) return 0.0;
    const long long i = at_boundary(call, row, t) + c;
    return pair(call.lattice.alpha[i], call.lattice.beta[i], at);
  }
};

constexpr int kFrameThreads = 256;
constexpr int kFrameClasses = 64;  ///< most classes side by side
constexpr int kRun = 16;           ///< most frames of a thread; kFrameClasses * 64 / kFrameThreads

/// How a block's threads lie over (runs of frames, classes) of a slice.
struct FrameTile {
  int classes;  ///< side by side
  int runs;
  int run;  ///< frames of a thread
  int c;
  int y;
  DEVICE_MEMBER FrameTile(int all_classes, int frames) {
    classes = min(all_classes, kFrameClasses);
    runs = kFrameThreads / classes;
    run = (frames + runs - 1) / runs;
    c = threadIdx.x % classes;
    y = threadIdx.x / classes;
  }
};

/// grid (slices, B): what a slice adds to the label posteriors.
KERNEL slice_cover(const __grid_constant__ Call call) {
  __shared__ double sums[kFrameThreads];
  const int row = blockIdx.y;
  const int slice = blockIdx.x;
  const int begin = slice * call.slice_frames;
  const int end = min(begin + call.slice_frames, row_length(call, row));
  if (begin >= end || call.row_weight[row] == 0.0) return;
  const FrameTile tile(call.sizes.classes, call.slice_frames);
  const Posterior posterior(call, row);
  double* cover =
      call.cover + (static_cast<long long>(row) * call.slices + slice) * call.sizes.classes;
  for (int base = 0; base < call.sizes.classes; base += tile.classes) {
    const int c = base + tile.c;
    double sum = 0.0;
    if (c < call.sizes.classes && tile.y < tile.runs) {
#pragma unroll 4
      for (int t = begin + tile.y; t < end; t += tile.runs) {
        const Place at = posterior.place(t);
        sum += posterior.start(t, c, at) - posterior.end(t, c, at);
      }
    }
    __syncthreads();
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (tile.y == 0 && c < call.sizes.classes) {
      double total = 0.0;
      for (int y = 0; y < tile.runs; ++y) total += sums[y * tile.classes + tile.c];
      cover[c] = total;
    }
  }
}

/// Writes frame t of class c; outside the row, zeros.
DEVICE void store_frame(const Call& call, int row, int t, int c, double weight, double label,
                        double start, double end) {
  if (call.gold_frames != nullptr && weight != 0.0) {
    const int gold = call.gold_frames[static_cast<long long>(row) * call.sizes.frames + t];
    if ((gold & kGoldLabel) == c) {
      label -= 1.0;
      if ((gold & kGoldStart) != 0) start -= 1.0;
      if ((gold & kGoldEnd) != 0) end -= 1.0;
    }
  }
  store(call.gradients.emission, row, t, c, weight * label);
  store(call.gradients.start, row, t, c, weight * start);
  store(call.gradients.end, row, t, c, weight * end);
}

/// The posteriors of a thread's run of frames [begin, end), kept in registers.
struct Run {
  double starts[kRun];
  double ends[kRun];  ///< of segments whose last frame it is
  double ended;       ///< before the first frame

  DEVICE_MEMBER double load(const Posterior& posterior, int begin, int end, int c) {
    double change = 0.0;
    ended = begin < end ? posterior.end(begin, c, posterior.place(begin)) : 0.0;
    double before = ended;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      starts[i] = ends[i] = 0.0;
      if (begin + i < end) {
        starts[i] = posterior.start(begin + i, c, posterior.place(begin + i));
        ends[i] = posterior.end(begin + i + 1, c, posterior.place(begin + i + 1));
      }
      change += starts[i] - (begin + i < end ? before : 0.0);
      before = ends[i];
    }
    return change;
  }
};

/// grid (slices, B), over all T frames.
KERNEL frame_gradients(const __grid_constant__ Call call) {
  __shared__ double changes[kFrameThreads];
  const int row = blockIdx.y;
  const int slice = blockIdx.x;
  const int begin = slice * call.slice_frames;
  const int end = min(begin + call.slice_frames, call.sizes.frames);
  const double weight = call.row_weight[row];
  const int length = weight == 0.0 ? 0 : row_length(call, row);
  const FrameTile tile(call.sizes.classes, call.slice_frames);
  const Posterior posterior(call, row);
  for (int base = 0; base < call.sizes.classes; base += tile.classes) {
    const int c = base + tile.c;
    const bool mine = c < call.sizes.classes && tile.y < tile.runs;
    double label = 0.0;
#pragma unroll 4
    for (int i = 0; i < slice && mine && begin < length; ++i)
      label += call.cover[(static_cast<long long>(row) * call.slices + i) * call.sizes.classes + c];
    // A slice longer than the block holds at once is treated in parts.
    for (int part = begin; part < end; part += tile.runs * kRun) {
      const int each = min(kRun, tile.run);
      const int first = part + tile.y * each;
      const int last = min(first + each, end);
      Run run;
      const double change = run.load(posterior, first, mine ? min(last, length) : first, c);
      __syncthreads();
      changes[threadIdx.x] = change;
      __syncthreads();
      double total = 0.0;
      double before = 0.0;
      for (int y = 0; y < tile.runs; ++y) {
        if (y == tile.y) before = total;
        total += changes[y * tile.classes + tile.c];
      }
      double now = label + before;
      label += total;
      double ended = run.ended;
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const int t = first + i;
        if (mine && t < last) {
          now += run.starts[i] - ended;
          ended = run.ends[i];
          // A forbidden label has no probability: what rounding left over ends here.
          const bool possible =
              t < length && load(call.scores.emission, row, t, c) > minus_infinity();
          store_frame(call, row, t, c, t < length ? weight : 0.0, possible ? fmax(now, 0.0) : 0.0,
                      run.starts[i], run.ends[i]);
        }
      }
    }
  }
}

/// P(some segment starts at t); grid (T / blockDim, B).
KERNEL boundary_posteriors(const __grid_constant__ Call call) {
  const int row = blockIdx.y;
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= call.sizes.frames) return;
  double sum = 0.0;
  if (call.row_weight[row] != 0.0 && t < row_length(call, row)) {
    const Posterior posterior(call, row);
    const Place at = posterior.place(t);
    for (int c = 0; c < call.sizes.classes; ++c) sum += posterior.start(t, c, at);
  }
  store(call.gradients.boundary, row, t, 0, sum);
}

/// Initial (y = 0) and final (y = 1) gradients: one warp a class. Lane l adds rows l, l + 32, ..
/// and the lanes are added in order.
KERNEL end_gradients(const __grid_constant__ Call call) {
  const bool initial = blockIdx.y == 0;
  const int c = blockIdx.x * blockDim.y + threadIdx.y;
  double sum = 0.0;
  for (int row = threadIdx.x; row < call.sizes.batch && c < call.sizes.classes; row += 32) {
    const double weight = call.row_weight[row];
    if (weight == 0.0) continue;
    const Posterior posterior(call, row);
    const int t = initial ? 0 : row_length(call, row);
    const Place at = posterior.place(t);
    double p = initial ? posterior.start(t, c, at) : posterior.end(t, c, at);
    if (call.gold_frames != nullptr) {
      const int frame = initial ? 0 : t - 1;
      const int gold = call.gold_frames[static_cast<long long>(row) * call.sizes.frames + frame];
      if ((gold & kGoldLabel) == c) p -= 1.0;
    }
    sum += weight * p;
  }
  sum = warp_sum(sum);
  if (threadIdx.x == 0 && c < call.sizes.classes)
    store(initial ? call.gradients.initial : call.gradients.final, c, 0, 0, sum);
}

}  // namespace segfuse::semicrf::gpu
