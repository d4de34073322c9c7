#pragma once
// What the kernels of attention share. The constants before it are those of one kernel:
// engine/attention/gpu/launch.cpp writes them.
//
// A block owns kTileRows rows of one batch ("own") and walks over tiles of kTileColumns rows of the
// other side ("other"): queries over keys, or keys over queries. A warp owns kRowLanes * kRows of
// the rows; a lane has kRows of them and, of each tile of scores, kColumns columns.

constexpr int kThreads = 32 * kWarps;
constexpr int kWarpRows = kRowLanes * kRows;
constexpr int kTileRows = kWarps * kWarpRows;
constexpr int kTileColumns = kColumnLanes * kColumns;
// Rows in shared memory: what lanes read at once is in different banks.
constexpr int kInnerStep = kInnerWide + kPack;
constexpr int kOuterStep = kOuterWide + kPack;
// Weights go through shared memory in parts of a tile's columns.
constexpr int kPartColumns = kTileColumns / kParts;
constexpr int kPartStep = kPartColumns + kColumnLanes;
constexpr int kFlagRows = 32;
constexpr int kAxes = 6;

/// Steps in elements, of the leading axes and of rows.
struct Operand {
  long long lead[kAxes];
  long long row;
};

struct Arguments {
  const REAL* q;
  const REAL* k;
  const REAL* v;
  const REAL* g;
  const REAL* bias;           // 0: none
  const unsigned char* mask;  // 0: none
  const REAL* logs;
  const REAL* less;
  REAL* log;  // the logarithms as two numbers
  REAL* rest;
  unsigned char* row_flags;  // by kFlagRows rows: whether all that their gradients read is finite
  unsigned char* column_flags;  // the same of keys, forward of values
  REAL* first;                  // result, gradient of queries or keys; 0: not wanted
  REAL* second;                 // logarithms, gradient of values; 0: not wanted
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

/// Where a lane is in its warp. Neighbours have the same columns, and those beside them the same
/// rows, so that the loads of two quarters of a warp are one.
struct Lane {
  int warp, row, column;
};
static __device__ __forceinline__ Lane lane_of_thread() {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Lane at;
  at.warp = static_cast<int>(threadIdx.x) / 32;
  at.row = kRowLanes == 4 ? (lane & 1) | ((lane >> 2) & 2) : lane & 1;
  at.column = kRowLanes == 4 ? ((lane >> 1) & 3) | ((lane >> 2) & 4) : lane >> 1;
  return at;
}
/// Over the lanes that have the same rows.
template <class Join>
static __device__ __forceinline__ REAL over_columns(REAL x, Join join) {
#pragma unroll
  for (int by = 2; by < 32; by *= 2)
    if (kRowLanes == 2 || by != 8) x = join(x, __shfl_xor_sync(0xffffffffu, x, by));
  return x;
}

/// Begins to copy rows of a matrix: 0 from row `count` and from column `width` on.
template <int kHeight, int kWidth, int kStep>
static __device__ __forceinline__ void fetch_tile(REAL* to, const REAL* from, long long row,
                                                  int first, int count, int width, bool aligned) {
  if (aligned) {
    constexpr int kAcross = kWidth / kPack;
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
      copy_async_one(to + r * kStep + c, there ? from + row * (first + r) + c : from, there);
    }
  }
}

/// s += the products of own rows and other rows, each a sum in the order of their elements.
template <int kWidth, int kStep>
static __device__ __forceinline__ void multiply_rows(const REAL* own, const REAL* other,
                                                     REAL (&s)[kRows][kColumns]) {
#pragma unroll 1
  for (int d = 0; d < kWidth; d += kPack) {
    Pack<REAL, kPack> b[kColumns];
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      b[j] = load_pack<kPack>(other + j * kColumnLanes * kStep + d);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Pack<REAL, kPack> a = load_pack<kPack>(own + i * kRowLanes * kStep + d);
#pragma unroll
      for (int e = 0; e < kPack; ++e)
#pragma unroll
        for (int j = 0; j < kColumns; ++j) s[i][j] = fma(a.at[e], b[j].at[e], s[i][j]);
    }
  }
}

/// to += weights times other rows. The weights of a warp's rows go through its own memory.
template <int kWidth, int kStep>
static __device__ __forceinline__ void multiply_weights(const REAL (&p)[kRows][kColumns],
                                                        REAL* part, const REAL* other,
                                                        const Lane& at,
                                                        REAL (&to)[kRows][kWidth / kColumnLanes]) {
  constexpr int kEach = kColumns / kParts;
  constexpr int kPacks = kWidth / (kColumnLanes * kPack);
#pragma unroll
  for (int begin = 0; begin < kColumns; begin += kEach) {
    __syncwarp(0xffffffffu);
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        part[i * kRowLanes * kPartStep + j * kColumnLanes + at.column] = p[i][begin + j];
    __syncwarp(0xffffffffu);
    const REAL* const rows = other + begin * kColumnLanes * kStep + at.column * kPack;
#pragma unroll 1
    for (int n = 0; n < kPartColumns; n += kPack) {
      Pack<REAL, kPack> a[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) a[i] = load_pack<kPack>(part + i * kRowLanes * kPartStep + n);
#pragma unroll
      for (int e = 0; e < kPack; ++e)
#pragma unroll
        for (int u = 0; u < kPacks; ++u) {
          const Pack<REAL, kPack> b =
              load_pack<kPack>(rows + (n + e) * kStep + u * kColumnLanes * kPack);
#pragma unroll
          for (int i = 0; i < kRows; ++i)
#pragma unroll
            for (int w = 0; w < kPack; ++w)
              to[i][u * kPack + w] = fma(a[i].at[e], b.at[w], to[i][u * kPack + w]);
        }
    }
  }
}

/// Rows of a result, which has no gaps.
template <int kWidth>
static __device__ __forceinline__ void store_rows(REAL* to, const Lane& at, int first, int count,
                                                  int width,
                                                  const REAL (&x)[kRows][kWidth / kColumnLanes]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = first + at.warp * kWarpRows + i * kRowLanes + at.row;
    if (row >= count) continue;
#pragma unroll
    for (int u = 0; u < kWidth / (kColumnLanes * kPack); ++u) {
      const int column = (u * kColumnLanes + at.column) * kPack;
      Pack<REAL, kPack> pack;
#pragma unroll
      for (int w = 0; w < kPack; ++w) pack.at[w] = x[i][u * kPack + w];
      if (width % kPack == 0) {
        if (column < width) store_pack(to + static_cast<long long>(row) * width + column, pack);
      } else {
#pragma unroll
        for (int w = 0; w < kPack; ++w)
          if (column + w < width) to[static_cast<long long>(row) * width + column + w] = pack.at[w];
      }
    }
  }
}

/// Beside the product: what a score (m, n) of one batch is made of.
struct Scores {
  const REAL* bias;
  const unsigned char* mask;
  REAL scale, fill;
};
static __device__ __forceinline__ Scores scores_of(const Arguments& g, long long batch) {
  Scores s;
  s.bias = g.bias ? g.bias + offset_of(g, g.of_bias, batch) : g.bias;
  s.mask = g.mask ? g.mask + offset_of(g, g.of_mask, batch) : g.mask;
  s.scale = REAL(g.scale);
  s.fill = REAL(g.fill);
  return s;
}
static __device__ __forceinline__ bool is_seen(const Arguments& g, const Scores& s, int m, int n) {
  if (g.banded && n > m + static_cast<int>(g.ahead)) return false;
  return !s.mask || s.mask[m * g.of_mask.row + n * g.mask_column] != 0;
}
static __device__ __forceinline__ REAL with_bias(const Arguments& g, const Scores& s, REAL x, int m,
                                                 int n) {
  return s.bias ? x + s.bias[m * g.of_bias.row + n * g.bias_column] : x;
}
/// Whether all scores of a tile are products times the scale.
static __device__ __forceinline__ bool is_plain(const Arguments& g, const Sizes& size,
                                                const Scores& s, int m, int rows, int n,
                                                int columns) {
  return !s.bias && !s.mask && m + rows <= size.rows && n + columns <= size.columns &&
         (!g.banded || n + columns - 1 <= m + size.ahead);
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
