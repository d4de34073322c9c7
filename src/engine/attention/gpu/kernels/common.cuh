#pragma once
// What the kernels of attention share. The constants before it are those of one kernel, and the
// products behind it are fma.cuh's or tensor.cuh's: engine/attention/gpu/launch.cpp puts a text
// together.
//
// A block owns kTileRows rows of one batch ("own") and walks over tiles of kTileColumns rows of the
// other side ("other"): queries over keys, or keys over queries. A warp owns kRowLanes * kRows of
// the rows; a lane has kRows of them and, of each tile of scores, kColumns columns. Operands and
// results are of type ELEMENT; sums, scores and the bias of type REAL.

constexpr int kThreads = 32 * kWarps;
constexpr int kWarpRows = kRowLanes * kRows;
constexpr int kTileRows = kWarps * kWarpRows;
constexpr int kTileColumns = kColumnLanes * kColumns;
// Rows in shared memory: what lanes read at once is in different banks.
constexpr int kInnerStep = kInnerWide + kPack;
constexpr int kOuterStep = kOuterWide + kPack;
constexpr int kFlagRows = 32;
constexpr int kAxes = 6;

/// Steps in elements, of the leading axes and of rows.
struct Operand {
  long long lead[kAxes];
  long long row;
};

struct Arguments {
  const ELEMENT* q;
  const ELEMENT* k;
  const ELEMENT* v;
  const ELEMENT* g;
  const REAL* bias;           // 0: none
  const unsigned char* mask;  // 0: none
  const REAL* logs;
  const REAL* less;
  REAL* log;  // a result; of gradients, the logarithms as two numbers
  REAL* rest;
  unsigned char* row_flags;  // by kFlagRows rows: whether all that their gradients read is finite
  unsigned char* column_flags;  // the same of keys, forward of values
  ELEMENT* first;               // result, gradient of queries or keys; 0: not wanted
  ELEMENT* second;              // gradient of values; 0: not wanted
  long long row_count, column_count, inner_size, outer_size;
  double scale, fill;
  long long banded, ahead;
  long long skips;    // what the band hides has the weight 0
  long long aligned;  // rows of q, k, v and g begin at multiples of 16 bytes and have such lengths
  long long axes;
  long long size[kAxes];
  Operand of_q, of_k, of_v, of_g, of_bias, of_mask;
  long long bias_column, mask_column;
};

// Counts and places of rows fit into an int; offsets do not.
struct Sizes {
  int rows, columns, inner, outer, ahead;
};
static __device__ __forceinline__ Sizes sizes_of(const Arguments& g) {
  Sizes s;
  s.rows = static_cast<int>(g.row_count);
  s.columns = static_cast<int>(g.column_count);
  s.inner = static_cast<int>(g.inner_size);
  s.outer = static_cast<int>(g.outer_size);
  s.ahead = static_cast<int>(g.ahead);
  return s;
}

static __device__ __forceinline__ REAL lowest() { return REAL(-__uint_as_float(0x7f800000u)); }
static __device__ __forceinline__ REAL not_a_number() { return REAL(__uint_as_float(0x7fffffffu)); }
static __device__ __forceinline__ bool is_finite(REAL x) { return x - x == REAL(0); }

[[maybe_unused]] static __device__ __forceinline__ float exp_of(float x) {
  return power_of_2(x * 1.442695041f);
}
[[maybe_unused]] static __device__ __forceinline__ double exp_of(double x) { return exp(x); }
// Weights that are rounded to bf16 are exponentials of base 2 of one fma, if what is taken away
// from the scores is no more than kNear: an exponent of 2 is then off by 2^-12.
constexpr float kLog2E = 1.442695041f;
constexpr float kNear = 4096;
[[maybe_unused]] static __device__ __forceinline__ bool is_near(REAL x) {
  return x >= REAL(-kNear) && x <= REAL(kNear);
}

/// The least memory is behind a batch's first element.
static __device__ __forceinline__ long long offset_of(const Arguments& g, const Operand& operand,
                                                      long long batch) {
  unsigned left = static_cast<unsigned>(batch);
  long long at = 0;
#pragma unroll
  for (int axis = kAxes - 1; axis >= 0; --axis) {
    if (axis >= g.axes) continue;
    const unsigned size = static_cast<unsigned>(g.size[axis]);
    at += left % size * operand.lead[axis];
    left /= size;
  }
  return at;
}

/// Where a lane is in its warp.
struct Lane {
  int warp, row, column;
};

/// Begins to copy rows of a matrix: 0 from row `count` and from column `width` on.
template <int kHeight, int kWidth, int kStep>
static __device__ __forceinline__ void fetch_tile(ELEMENT* to, const ELEMENT* from, long long row,
                                                  int first, int count, int width, bool aligned) {
  constexpr int kAcross = kWidth / kPack;
  if (aligned && kThreads % kAcross == 0) {  // a thread keeps its columns
    constexpr int kEach = kThreads / kAcross > 0 ? kThreads / kAcross : 1;
    const int c = static_cast<int>(threadIdx.x) % kAcross * kPack;
    int r = static_cast<int>(threadIdx.x) / kAcross;
    const ELEMENT* at = from + row * (first + r) + c;
    to += r * kStep + c;
    const int end = c < width ? count - first : 0;
#pragma unroll
    for (int done = 0; done < kHeight; done += kEach, r += kEach) {
      if (kHeight % kEach != 0 && r >= kHeight) break;
      copy_async_16(to, r < end ? at : from, r < end);
      at += row * kEach;
      to += kEach * kStep;
    }
  } else if (aligned) {
#pragma unroll 1
    for (int i = threadIdx.x; i < kHeight * kAcross; i += kThreads) {
      const int r = i / kAcross;
      const int c = i % kAcross * kPack;
      const bool there = first + r < count && c < width;
      copy_async_16(to + r * kStep + c, there ? from + row * (first + r) + c : from, there);
    }
  } else {
#pragma unroll 1
    for (int i = threadIdx.x; i < kHeight * kWidth; i += kThreads) {
      const int r = i / kWidth;
      const int c = i % kWidth;
      const bool there = first + r < count && c < width;
      const ELEMENT* const at = there ? from + row * (first + r) + c : from;
      if constexpr (sizeof(ELEMENT) >= 4)
        copy_async_one(to + r * kStep + c, at, there);
      else
        to[r * kStep + c] = there ? *at : ELEMENT(0);
    }
  }
}

/// Beside the product: what a score (m, n) of one batch is made of.
struct Scores {
  const REAL* bias;
  const unsigned char* mask;
  REAL scale, fill;
  bool keyed;  // the bias is one of keys, as of padding
};
static __device__ __forceinline__ Scores scores_of(const Arguments& g, long long batch) {
  Scores s;
  s.bias = g.bias ? g.bias + offset_of(g, g.of_bias, batch) : g.bias;
  s.mask = g.mask ? g.mask + offset_of(g, g.of_mask, batch) : g.mask;
  s.scale = REAL(g.scale);
  s.fill = REAL(g.fill);
  s.keyed = g.bias && g.of_bias.row == 0;
  return s;
}
/// Begins to copy the bias of keys from `first` on.
template <int kCount>
static __device__ __forceinline__ void fetch_bias(REAL* to, const Arguments& g, const Sizes& size,
                                                  const Scores& s, int first) {
  if (!s.keyed) return;
  for (int r = threadIdx.x; r < kCount; r += kThreads) {
    const bool there = first + r < size.columns;
    copy_async_one(to + r, s.bias + (there ? (first + r) * g.bias_column : 0), there);
  }
}
static __device__ __forceinline__ bool is_seen(const Arguments& g, const Scores& s, int m, int n) {
  if (g.banded && n > m + static_cast<int>(g.ahead)) return false;
  return !s.mask || s.mask[m * g.of_mask.row + n * g.mask_column] != 0;
}
/// Of a score that is seen.
static __device__ __forceinline__ REAL with_bias(const Arguments& g, const Scores& s, REAL x, int m,
                                                 int n) {
  return s.bias ? fma(x, s.scale, s.bias[m * g.of_bias.row + n * g.bias_column]) : x * s.scale;
}
/// Whether all scores of a tile of rows from m on and columns before `end` are seen, and are
/// products times the scale and a bias of keys.
static __device__ __forceinline__ bool is_plain(const Arguments& g, const Sizes& size,
                                                const Scores& s, int m, int end) {
  return (!s.bias || s.keyed) && !s.mask && (!g.banded || end - 1 <= m + size.ahead);
}

/// Whether the band hides the columns from n on from all rows before `last`.
static __device__ __forceinline__ bool is_hidden(const Arguments& g, const Sizes& size, int last,
                                                 int n) {
  return g.skips && n > min(last, size.rows) - 1 + size.ahead;
}
/// 0 times what is not finite is NaN, hidden or not.
static __device__ __forceinline__ bool all_finite(const unsigned char* flags, int first, int rows,
                                                  int count) {
  bool all = true;
  for (int r = 0; r < rows; r += kFlagRows)
    if (first + r < count) all = all && flags[(first + r) / kFlagRows] != 0;
  return all;
}
static __device__ __forceinline__ long long flags_of(int count) {
  return (count + kFlagRows - 1) / kFlagRows;
}
