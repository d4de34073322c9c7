// The best segmentation with all state in registers: the layout of scan.cuh in the max-plus
// semiring, in natural units, with back pointers. A pending sum becomes the best score that the
// known sources give to a boundary ahead, and where its segment began.

namespace segfuse::semicrf::gpu {

template <int kClasses, int kGroup, int kTaps>
struct BestScan {
  static constexpr int kSources = (kClasses + kGroup - 1) / kGroup;
  /// A group's lanes read 16 bytes each from different banks.
  static constexpr int kPart = (kSources + 13) / 16 * 16 + 2;

  double from[kSources];
  double tap[kTaps + 1];
  double pending[kTaps];
  int began[kTaps];
  int lane_of_class;
  int c;
  bool active;

  DEVICE_MEMBER void init(const Call& call) {
    lane_of_class = threadIdx.x % kGroup;
    c = threadIdx.x / kGroup;
    active = c < kClasses;
    if (!active) c = kClasses - 1;
#pragma unroll
    for (int i = 0; i < kSources; ++i) {
      const int other = lane_of_class * kSources + i;
      from[i] = other < kClasses ? load(call.scores.transition, 0, other, c) : minus_infinity();
    }
#pragma unroll
    for (int j = 0; j <= kTaps; ++j) {
      const int k = lane_of_class * kTaps + j;
      tap[j] = k < call.sizes.max_duration ? load(call.scores.duration, k, c, 0) : minus_infinity();
    }
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      pending[j] = minus_infinity();
      began[j] = 0;
    }
  }

  /// Among this lane's labels of the best score, that of the shortest last segment. Marks them
  /// first, so that the loop with the loads needs no unrolling.
  DEVICE_MEMBER int break_tie(const double* part, double score, const int* durations) const {
    int label = -1;
#pragma unroll
    for (int base = 0; base < kSources; base += 32) {
      unsigned best = 0;
#pragma unroll
      for (int i = base; i < (base + 32 < kSources ? base + 32 : kSources); ++i)
        best |= part[i] + from[i] == score ? 1u << (i - base) : 0u;
#pragma unroll 1
      for (int other = lane_of_class * kSources + base; best != 0; best >>= 1, ++other)
        if ((best & 1u) != 0 && (label < 0 || durations[other] < durations[label])) label = other;
    }
    return label;
  }

  /// The best label before a segment of this lane's class, and its score. `durations` are those of
  /// the labels' last segments.
  DEVICE_MEMBER Candidate link(const double* values, const int* durations) const {
    const double* part = values + lane_of_class * kPart;
    Candidate best{part[0] + from[0], lane_of_class * kSources};
    bool tied = false;
#pragma unroll
    for (int i = 1; i < kSources; ++i) {
      const double score = part[i] + from[i];
      tied = (tied && !(score > best.score)) || score == best.score;
      if (score > best.score) best = {score, lane_of_class * kSources + i};
    }
    if (tied && best.score > minus_infinity()) best.choice = break_tie(part, best.score, durations);
#pragma unroll
    for (int lane = kGroup / 2; lane > 0; lane /= 2) {
      Candidate other;
      other.score = __shfl_xor_sync(kAllLanes, best.score, lane);
      other.choice = __shfl_xor_sync(kAllLanes, best.choice, lane);
      best = better_label(best, other, durations);
    }
    return best;
  }

  /// The source of frame t joins pending, which moves on by the frame. Among equals the later
  /// source wins: the shorter segment.
  DEVICE_MEMBER void push(double w, double emission, int t) {
    double next = minus_infinity();
    int next_began = 0;
    if (kGroup > 1) {
      next = __shfl_down_sync(kAllLanes, pending[0], 1);
      next_began = __shfl_down_sync(kAllLanes, began[0], 1);
      if (lane_of_class == kGroup - 1) next = minus_infinity();
    }
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      const double known = j + 1 < kTaps ? pending[j + 1 < kTaps ? j + 1 : 0] : next;
      const int known_began = j + 1 < kTaps ? began[j + 1 < kTaps ? j + 1 : 0] : next_began;
      const double joining = w + tap[j + 1];
      const bool later = joining >= known;
      pending[j] = (later ? joining : known) + emission;
      began[j] = later ? t : known_began;
    }
  }
};

/// The scores of one stride of frames, loaded before they are needed.
struct FrameScores {
  double emission[4];
  double start[4];
  double end[4];

  template <bool kEdges>
  DEVICE_MEMBER void load_from(const Call& call, int row, int t, int length, int c) {
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const int frame = min(t + u, length - 1);
      const bool inside = frame >= 0;
      emission[u] = inside ? load(call.scores.emission, row, frame, c) : 0.0;
      start[u] = kEdges && inside ? score_of(call.scores.start, row, frame, c) : 0.0;
      end[u] = kEdges && inside ? score_of(call.scores.end, row, frame, c) : 0.0;
    }
  }
};

/// kEdges: there are start or end scores. grid (B).
template <int kClasses, int kGroup, int kTaps, bool kEdges>
DEVICE void best_row(const Call& call) {
  using Lane = BestScan<kClasses, kGroup, kTaps>;
  __shared__ double values[2][kGroup * Lane::kPart];
  const int row = blockIdx.x;
  const int length = row_length(call, row);
  double* const both = values[0];
  for (int i = threadIdx.x; i < 2 * kGroup * Lane::kPart; i += blockDim.x) both[i] = 0.0;
  Lane lane;
  lane.init(call);
  const bool writer = lane.active && lane.lane_of_class == 0;
  const int slot = lane.c / Lane::kSources * Lane::kPart + lane.c % Lane::kSources;
  long long at = at_boundary(call, row, 0) + lane.c;
  double source = score_of(call.scores.initial, lane.c, 0, 0);
  __syncthreads();
  FrameScores next;
  next.load_from<kEdges>(call, row, 0, length, lane.c);
  for (int begin = 0; begin < length; begin += 4) {
    const FrameScores now = next;
    next.load_from<kEdges>(call, row, begin + 4, length, lane.c);
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const int t = begin + u;
      if (t < length) {
        at += kClasses;
        const double w = source + now.start[u];
        const bool later = w + lane.tap[0] >= lane.pending[0];
        const double value =
            (later ? w + lane.tap[0] : lane.pending[0]) + now.emission[u] + now.end[u];
        if (writer) {
          values[u % 2][slot] = value;
          call.best.duration[at] = later ? 1 : t + 1 - lane.began[0];
          if (t + 1 == length) call.lattice.alpha[at] = value;
        }
        lane.push(w, now.emission[u], t);
        __syncthreads();
        const Candidate before = lane.link(values[u % 2], call.best.duration + (at - lane.c));
        source = before.score;
        if (writer) call.best.label[at] = before.choice;
      }
    }
  }
}

}  // namespace segfuse::semicrf::gpu
