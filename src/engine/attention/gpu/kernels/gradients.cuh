#pragma once
// Gradients: kKeys, keys of a block over all queries, for those of keys and values; else queries
// over all keys, for those of queries. A tile's weights are found again from the logarithms.

/// The next tile of the other side that counts for own rows from `first` on.
static __device__ __forceinline__ int next_gradients(const Arguments& g, const Sizes& size,
                                                     long long batch, int first, int tile) {
  const int own_count = kKeys ? size.columns : size.rows;
  const int other_count = kKeys ? size.rows : size.columns;
  const unsigned char* const own_flags =
      (kKeys ? g.column_flags : g.row_flags) + batch * flags_of(own_count);
  const unsigned char* const other_flags =
      (kKeys ? g.row_flags : g.column_flags) + batch * flags_of(other_count);
  const int tiles = (other_count + kTileColumns - 1) / kTileColumns;
  for (++tile; tile < tiles; ++tile) {
    const int other = tile * kTileColumns;
    const bool hidden = kKeys ? is_hidden(g, size, other + kTileColumns, first)
                              : is_hidden(g, size, first + kTileRows, other);
    if (!hidden || !all_finite(own_flags, first, kTileRows, own_count) ||
        !all_finite(other_flags, other, kTileColumns, other_count))
      break;
  }
  return tile < tiles ? tile : -1;
}

/// Three numbers a query, for own rows or for the columns of a lane.
struct Numbers {
  REAL of[kKeys ? kColumns : kRows];
  __device__ __forceinline__ void take(const Lane& at, const REAL* from) {
#pragma unroll
    for (int i = 0; i < (kKeys ? kColumns : kRows); ++i)
      of[i] = from[kKeys ? column_of(at, i) : at.warp * kWarpRows + at.row + i * kRowLanes];
  }
  __device__ __forceinline__ REAL at(int i, int j) const { return of[kKeys ? j : i]; }
};

/// find_weights() of a tile that is plain, and whose logarithms are near. `left`: other rows that
/// are there.
static __device__ __forceinline__ unsigned long long find_plain_weights(
    const Scores& score, const Lane& at, int left, const REAL* logs, const REAL* rests,
    const REAL* added, REAL (&s)[kRows][kColumns]) {
  const REAL scale = score.scale * REAL(kLog2E);
  Numbers less, rest;
  less.take(at, logs);
  rest.take(at, rests);
#pragma unroll
  for (int i = 0; i < (kKeys ? kColumns : kRows); ++i)
    less.of[i] = (less.of[i] + rest.of[i]) * REAL(-kLog2E);
  REAL bias[kKeys ? kRows : kColumns] = {};
  if (score.keyed)
#pragma unroll
    for (int i = 0; i < (kKeys ? kRows : kColumns); ++i)
      bias[i] = added[kKeys ? i : column_of(at, i)] * REAL(kLog2E);
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      s[i][j] = power_of_2(fma(s[i][j], scale, less.at(i, j) + bias[kKeys ? i : j]));
  unsigned long long seen = ~0ull;
  if (left < kTileColumns)
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      if (column_of(at, j) >= left)
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          s[i][j] = 0;
          seen &= ~(1ull << (i * kColumns + j));
        }
  return seen;
}

/// Scores become weights, 0 beyond the rows and columns. A bit for each that is seen. `added`: a
/// bias of keys, of the other rows or of the lane's own.
static __device__ __forceinline__ unsigned long long find_weights(
    const Arguments& g, const Sizes& size, const Scores& score, const Lane& at, int first,
    int other, bool plain, const REAL* logs, const REAL* rests, const REAL* added,
    REAL (&s)[kRows][kColumns]) {
  unsigned long long seen = ~0ull;
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int own_row = at.warp * kWarpRows + at.row + i * kRowLanes;
      const int other_row = column_of(at, j);
      const int query = kKeys ? other_row : own_row;
      REAL x = s[i][j];
      bool there = true;
      if (plain) {
        x = score.keyed ? fma(x, score.scale, added[kKeys ? i : other_row]) : x * score.scale;
      } else {
        const int m = kKeys ? other + other_row : first + own_row;
        const int n = kKeys ? first + own_row : other + other_row;
        there = m < size.rows && n < size.columns;
        const bool is = there && is_seen(g, score, m, n);
        x = is ? with_bias(g, score, x, m, n) : score.fill;
        if (!is) seen &= ~(1ull << (i * kColumns + j));
      }
      s[i][j] = there ? exp_of(x - logs[query] - rests[query]) : REAL(0);
    }
  return seen;
}

/// Weights become the cotangents of the products; `dp`: those of the weights. Tensor cores take
/// them without the scale, which the sums get at the end.
static __device__ __forceinline__ void find_slopes(const Scores& score, const Lane& at, bool plain,
                                                   unsigned long long seen,
                                                   const REAL (&dp)[kRows][kColumns],
                                                   const REAL* less, REAL (&p)[kRows][kColumns]) {
  Numbers rows;
  rows.take(at, less);
  if (kTensor && plain) {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < kColumns; ++j) p[i][j] *= dp[i][j] - rows.at(i, j);
    return;
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const REAL slope = p[i][j] * (dp[i][j] - rows.at(i, j));
      p[i][j] = (seen >> (i * kColumns + j)) & 1 ? kTensor ? slope : slope * score.scale : REAL(0);
    }
}

/// Shared memory of a block: own rows; kStages times other rows; parts of weights; three numbers a
/// query, and a bias of keys for queries, those of the other side kStages times.
struct Memory {
  static constexpr int kQueries = kKeys ? kTileColumns : kTileRows;
  static constexpr int kStage = kTileColumns * (kInnerStep + kOuterStep);
  ELEMENT* own_a;
  ELEMENT* own_b;
  ELEMENT* stages;
  REAL* parts;
  REAL* numbers;
  REAL* biases;

  __device__ __forceinline__ Memory() {
    own_a = reinterpret_cast<ELEMENT*>(shared_memory());
    own_b = own_a + kTileRows * kInnerStep;
    stages = own_b + kTileRows * kOuterStep;
    parts = reinterpret_cast<REAL*>(stages + kStages * kStage);
    numbers = parts + kPartCount;
    biases = numbers + (kKeys ? kStages : 1) * 3 * kQueries;
  }
  __device__ __forceinline__ ELEMENT* a(int stage) const { return stages + stage * kStage; }
  __device__ __forceinline__ ELEMENT* b(int stage) const {
    return a(stage) + kTileColumns * kInnerStep;
  }
  __device__ __forceinline__ REAL* logs(int stage) const {
    return numbers + (kKeys ? stage : 0) * 3 * kQueries;
  }
  __device__ __forceinline__ REAL* bias(int stage) const { return biases + stage * kTileColumns; }
};

/// Begins to copy the logarithms, their rests and the row sums of queries from m on.
static __device__ __forceinline__ void fetch_queries(const Arguments& g, const Sizes& size,
                                                     long long batch, int m, REAL* to) {
  constexpr int kQueries = Memory::kQueries;
  for (int r = threadIdx.x; r < kQueries; r += kThreads) {
    const bool there = m + r < size.rows;
    const long long from = there ? batch * size.rows + m + r : 0;
    copy_async_one(to + r, g.log + from, there);
    copy_async_one(to + kQueries + r, g.rest + from, there);
    copy_async_one(to + 2 * kQueries + r, g.less + from, there);
  }
}

/// Whether all logarithms that the block reads are near.
static __device__ __forceinline__ bool all_near(const Arguments& g, const Sizes& size,
                                                long long batch, int first) {
  if (!kTensor) return false;
  __shared__ int far;
  if (threadIdx.x == 0) far = 0;
  __syncthreads();
  const int end = kKeys ? size.rows : min(first + kTileRows, size.rows);
  for (int m = (kKeys ? 0 : first) + threadIdx.x; m < end; m += kThreads)
    if (!is_near(g.log[batch * size.rows + m])) far = 1;
  __syncthreads();
  return far == 0;
}

/// The bias of a lane's own keys.
static __device__ __forceinline__ void take_bias(const Arguments& g, const Sizes& size,
                                                 const Scores& score, const Lane& at, int first,
                                                 REAL (&to)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    if (const int n = first + at.warp * kWarpRows + at.row + i * kRowLanes; n < size.columns)
      to[i] = score.bias[n * g.bias_column];
}

template <int kCount>
static __device__ __forceinline__ void multiply_all(REAL by, REAL (&to)[kRows][kCount]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int e = 0; e < kCount; ++e) to[i][e] *= by;
}

/// The cotangents of a tile's products; what its weights add to the gradients of values is added.
static __device__ __forceinline__ void find_tile(
    const Arguments& g, const Sizes& size, const Scores& score, const Lane& at, int first,
    int other, bool near, const Memory& memory, int stage,
    const OwnRows<kInner, kInnerStep>& rows_a, const OwnRows<kOuter, kOuterStep>& rows_b,
    const REAL* own_bias, REAL (&p)[kRows][kColumns],
    REAL (&to_values)[kRows][kOuterWide / kColumnLanes]) {
  const REAL* const logs = memory.logs(stage);
  const REAL* const rests = logs + Memory::kQueries;
  const REAL* const added = kKeys ? own_bias : memory.bias(stage);
  multiply_rows(rows_a, memory.a(stage), at, p);
  const bool plain = is_plain(g, size, score, kKeys ? other : first,
                              kKeys ? first + kTileRows : other + kTileColumns);
  const int left = (kKeys ? size.rows : size.columns) - other;
  const bool whole = plain && left >= kTileColumns;
  const unsigned long long seen =
      kTensor && plain && near
          ? find_plain_weights(score, at, left, logs, rests, added, p)
          : find_weights(g, size, score, at, first, other, whole, logs, rests, added, p);
  if (kKeys && g.second)
    multiply_weights<kOuterWide, kOuterStep>(p, memory.parts, memory.b(stage), at, to_values);
  if (!g.first) return;
  REAL dp[kRows][kColumns] = {};
  multiply_rows(rows_b, memory.b(stage), at, dp);
  find_slopes(score, at, whole, seen, dp, rests + Memory::kQueries, p);
}

extern "C" __global__ void __launch_bounds__(kThreads, kResident)
    attention_gradients(const Arguments g) {
  const Memory memory;
  const Lane at = lane_of_thread();
  const Sizes size = sizes_of(g);
  const int own_count = kKeys ? size.columns : size.rows;
  const int other_count = kKeys ? size.rows : size.columns;
  const int own_tiles = (own_count + kTileRows - 1) / kTileRows;
  const long long batch = static_cast<int>(blockIdx.x) / own_tiles;
  // Where a band is, the last queries and the first keys see the most: they begin.
  const int place = static_cast<int>(blockIdx.x) % own_tiles;
  const int first = (kKeys ? place : own_tiles - 1 - place) * kTileRows;
  const Operand& of_own_a = kKeys ? g.of_k : g.of_q;
  const Operand& of_own_b = kKeys ? g.of_v : g.of_g;
  const Operand& of_a = kKeys ? g.of_q : g.of_k;
  const Operand& of_b = kKeys ? g.of_g : g.of_v;
  const ELEMENT* const from_a = (kKeys ? g.q : g.k) + offset_of(g, of_a, batch);
  const ELEMENT* const from_b = (kKeys ? g.g : g.v) + offset_of(g, of_b, batch);
  const Scores score = scores_of(g, batch);
  const bool aligned = g.aligned != 0;
  const auto fetch_a = [&](int tile, int stage) {
    if (tile < 0) return;
    const int other = tile * kTileColumns;
    fetch_tile<kTileColumns, kInner, kInnerStep>(memory.a(stage), from_a, of_a.row, other,
                                                 other_count, size.inner, aligned);
    if (kKeys)
      fetch_queries(g, size, batch, other, memory.logs(stage));
    else
      fetch_bias<kTileColumns>(memory.bias(stage), g, size, score, other);
  };
  const auto fetch_b = [&](int tile, int stage) {
    if (tile < 0) return;
    fetch_tile<kTileColumns, kOuter, kOuterStep>(
        memory.b(stage), from_b, of_b.row, tile * kTileColumns, other_count, size.outer, aligned);
  };

  REAL to_a[kRows][kInnerWide / kColumnLanes] = {};
  REAL to_b[kRows][kOuterWide / kColumnLanes] = {};  // of keys
  REAL own_bias[kRows] = {};
  if (kKeys && score.keyed) take_bias(g, size, score, at, first, own_bias);
  const bool near = all_near(g, size, batch, first);

  int tile = next_gradients(g, size, batch, first, -1);
  int stage = 0;
  fetch_tile<kTileRows, kInner, kInnerStep>(memory.own_a,
                                            (kKeys ? g.k : g.q) + offset_of(g, of_own_a, batch),
                                            of_own_a.row, first, own_count, size.inner, aligned);
  fetch_tile<kTileRows, kOuter, kOuterStep>(memory.own_b,
                                            (kKeys ? g.v : g.g) + offset_of(g, of_own_b, batch),
                                            of_own_b.row, first, own_count, size.outer, aligned);
  if (!kKeys) fetch_queries(g, size, batch, first, memory.logs(0));
  commit_copies();
  fetch_a(tile, 0);
  fetch_b(tile, 0);
  commit_copies();
  wait_for_copies_but_one();
  __syncthreads();
  OwnRows<kInner, kInnerStep> rows_a;
  OwnRows<kOuter, kOuterStep> rows_b;
  rows_a.take(memory.own_a, at);
  rows_b.take(memory.own_b, at);
  while (tile >= 0) {
    const int next = next_gradients(g, size, batch, first, tile);
    wait_for_copies();
    __syncthreads();
    if (kStages > 1) {
      fetch_a(next, 1 - stage);
      fetch_b(next, 1 - stage);
      commit_copies();
    }
    REAL p[kRows][kColumns] = {};
    find_tile(g, size, score, at, first, tile * kTileColumns, near, memory, stage, rows_a, rows_b,
              own_bias, p, to_b);
    if (kStages == 1) {
      __syncthreads();
      fetch_b(next, 0);
      commit_copies();
    }
    if (g.first)
      multiply_weights<kInnerWide, kInnerStep>(p, memory.parts, memory.a(stage), at, to_a);
    if (kStages > 1) {
      stage = 1 - stage;
    } else {
      __syncthreads();
      fetch_a(next, 0);
      commit_copies();
    }
    tile = next;
  }
  wait_for_copies();
  if (kTensor) multiply_all(score.scale, to_a);
  if (g.first)
    store_rows<kInnerWide>(g.first + batch * own_count * size.inner, at, first, own_count,
                           size.inner, to_a);
  if (kKeys && g.second)
    store_rows<kOuterWide>(g.second + batch * own_count * size.outer, at, first, own_count,
                           size.outer, to_b);
}
