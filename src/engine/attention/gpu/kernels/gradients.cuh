#pragma once
// Gradients: kKeys, keys of a block over all queries, for those of keys and values; else queries
// over all keys, for those of queries. A tile's weights are found again from the logarithms.

#include "engine/attention/gpu/kernels/common.cuh"

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

/// Scores become weights, 0 beyond the rows and columns. A bit for each that is seen.
static __device__ __forceinline__ unsigned long long find_weights(
    const Arguments& g, const Sizes& size, const Scores& score, const Lane& at, int first,
    int other, const REAL* logs, const REAL* rests, REAL (&s)[kRows][kColumns]) {
  const bool plain = kKeys ? is_plain(g, size, score, other, kTileColumns, first, kTileRows)
                           : is_plain(g, size, score, first, kTileRows, other, kTileColumns);
  unsigned long long seen = ~0ull;
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int own_row = at.warp * kWarpRows + at.row + i * kRowLanes;
      const int other_row = at.column + j * kColumnLanes;
      const int query = kKeys ? other_row : own_row;
      REAL x = s[i][j] * score.scale;
      bool there = true;
      if (!plain) {
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

/// Weights become the cotangents of the products; `dp`: those of the weights.
static __device__ __forceinline__ void find_slopes(const Scores& score, const Lane& at,
                                                   unsigned long long seen,
                                                   const REAL (&dp)[kRows][kColumns],
                                                   const REAL* less, REAL (&p)[kRows][kColumns]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int query =
          kKeys ? at.column + j * kColumnLanes : at.warp * kWarpRows + at.row + i * kRowLanes;
      p[i][j] = (seen >> (i * kColumns + j)) & 1 ? p[i][j] * (dp[i][j] - less[query]) * score.scale
                                                 : REAL(0);
    }
}

extern "C" __global__ void __launch_bounds__(kThreads, kResident)
    attention_gradients(const Arguments g) {
  constexpr int kQueries = kKeys ? kTileColumns : kTileRows;
  REAL* const own_a = reinterpret_cast<REAL*>(shared_memory());
  REAL* const own_b = own_a + kTileRows * kInnerStep;
  REAL* const a = own_b + kTileRows * kOuterStep;
  REAL* const b = a + kTileColumns * kInnerStep;
  REAL* const parts = b + kTileColumns * kOuterStep;
  REAL* const logs = parts + kTileRows * kPartStep;  // of queries: three numbers each
  REAL* const rests = logs + kQueries;
  REAL* const less = rests + kQueries;
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
  const REAL* const from_a = (kKeys ? g.q : g.k) + offset_of(g, of_a, batch);
  const REAL* const from_b = (kKeys ? g.g : g.v) + offset_of(g, of_b, batch);
  const Scores score = scores_of(g, batch);
  const bool aligned = g.aligned != 0;
  const auto fetch_queries = [&](int m) {
    for (int r = threadIdx.x; r < kQueries; r += kThreads) {
      const bool there = m + r < size.rows;
      const long long from = there ? batch * size.rows + m + r : 0;
      copy_async_one(logs + r, g.log + from, there);
      copy_async_one(rests + r, g.rest + from, there);
      copy_async_one(less + r, g.less + from, there);
    }
  };
  const auto fetch_a = [&](int tile) {
    if (tile < 0) return;
    fetch_tile<kTileColumns, kInner, kInnerStep>(a, from_a, of_a.row, tile * kTileColumns,
                                                 other_count, size.inner, aligned);
    if (kKeys) fetch_queries(tile * kTileColumns);
  };
  const auto fetch_b = [&](int tile) {
    if (tile < 0) return;
    fetch_tile<kTileColumns, kOuter, kOuterStep>(b, from_b, of_b.row, tile * kTileColumns,
                                                 other_count, size.outer, aligned);
  };

  REAL to_a[kRows][kInnerWide / kColumnLanes] = {};
  REAL to_b[kRows][kOuterWide / kColumnLanes] = {};  // of keys
  const int own = at.warp * kWarpRows + at.row;
  REAL* const part = parts + own * kPartStep;

  int tile = next_gradients(g, size, batch, first, -1);
  fetch_tile<kTileRows, kInner, kInnerStep>(own_a,
                                            (kKeys ? g.k : g.q) + offset_of(g, of_own_a, batch),
                                            of_own_a.row, first, own_count, size.inner, aligned);
  fetch_tile<kTileRows, kOuter, kOuterStep>(own_b,
                                            (kKeys ? g.v : g.g) + offset_of(g, of_own_b, batch),
                                            of_own_b.row, first, own_count, size.outer, aligned);
  if (!kKeys) fetch_queries(first);
  fetch_a(tile);
  fetch_b(tile);
  commit_copies();
  while (tile >= 0) {
    const int next = next_gradients(g, size, batch, first, tile);
    const int other = tile * kTileColumns;
    wait_for_copies();
    __syncthreads();
    REAL p[kRows][kColumns] = {};
    multiply_rows<kInner, kInnerStep>(own_a + own * kInnerStep, a + at.column * kInnerStep, p);
    const unsigned long long seen = find_weights(g, size, score, at, first, other, logs, rests, p);
    if (kKeys && g.second) multiply_weights<kOuterWide, kOuterStep>(p, part, b, at, to_b);
    if (g.first) {
      REAL dp[kRows][kColumns] = {};
      multiply_rows<kOuter, kOuterStep>(own_b + own * kOuterStep, b + at.column * kOuterStep, dp);
      find_slopes(score, at, seen, dp, less, p);
    }
    __syncthreads();
    fetch_b(next);
    commit_copies();
    if (g.first) multiply_weights<kInnerWide, kInnerStep>(p, part, a, at, to_a);
    __syncthreads();
    fetch_a(next);
    commit_copies();
    tile = next;
  }
  wait_for_copies();
  if (g.first)
    store_rows<kInnerWide>(g.first + batch * own_count * size.inner, at, first, own_count,
                           size.inner, to_a);
  if (kKeys && g.second)
    store_rows<kOuterWide>(g.second + batch * own_count * size.outer, at, first, own_count,
                           size.outer, to_b);
}
