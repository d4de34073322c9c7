#pragma once
// The result and the logarithms of the sums.

#include "engine/attention/gpu/kernels/forward.cuh"

/// The next tile of columns that counts for rows before `last`.
static __device__ __forceinline__ int next_values(const Arguments& g, const Sizes& size,
                                                  long long batch, int last, int tile) {
  const int tiles = (size.columns + kTileColumns - 1) / kTileColumns;
  for (++tile; tile < tiles; ++tile)
    if (!is_hidden(g, size, last, tile * kTileColumns) ||
        !all_finite(g.column_flags + batch * flags_of(size.columns), tile * kTileColumns,
                    kTileColumns, size.columns))
      break;
  return tile < tiles ? tile : -1;
}

/// Weighted values become results, and the logarithms of the sums are stored.
static __device__ __forceinline__ void finish_rows(const Arguments& g, const Sizes& size,
                                                   const Lane& at, long long batch, int row,
                                                   const Row (&state)[kRows],
                                                   REAL (&out)[kRows][kOuterWide / kColumnLanes]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const REAL sum = over_columns(state[i].sum, [](REAL a, REAL b) { return a + b; });
    const REAL most = state[i].most;
    // exp(s - log(sum)) of a row without a finite sum is NaN somewhere, and so is all it weighs.
    const bool lost = sum != sum || !is_finite(most);
#pragma unroll
    for (int e = 0; e < kOuterWide / kColumnLanes; ++e)
      out[i][e] = size.columns == 0 ? REAL(0) : lost ? not_a_number() : out[i][e] / sum;
    const int m = row + at.warp * kWarpRows + at.row + i * kRowLanes;
    if (at.column == 0 && m < size.rows)
      g.log[batch * size.rows + m] = sum != sum        ? not_a_number()
                                     : is_finite(most) ? most + log(sum)
                                                       : most;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, kResident) attention(const Arguments g) {
  // Behind the queries, kStages times: keys, values; then the bias of keys, kStages times.
  constexpr int kStage = kTileColumns * (kInnerStep + kOuterStep);
  ELEMENT* const q = reinterpret_cast<ELEMENT*>(shared_memory());
  ELEMENT* const stages = q + kTileRows * kInnerStep;
  REAL* const biases = reinterpret_cast<REAL*>(stages + kStages * kStage);
  REAL* const parts = biases + kStages * kTileColumns;
  const Lane at = lane_of_thread();
  const Sizes size = sizes_of(g);
  const int row_tiles = (size.rows + kTileRows - 1) / kTileRows;
  const long long batch = static_cast<int>(blockIdx.x) / row_tiles;
  // Where a band is, the last rows see the most: they begin.
  const int row = (row_tiles - 1 - static_cast<int>(blockIdx.x) % row_tiles) * kTileRows;
  const ELEMENT* const keys = g.k + offset_of(g, g.of_k, batch);
  const ELEMENT* const values = g.v + offset_of(g, g.of_v, batch);
  const Scores score = scores_of(g, batch);
  const auto fetch_keys = [&](int tile, int stage) {
    if (tile >= 0) {
      fetch_tile<kTileColumns, kInner, kInnerStep>(stages + stage * kStage, keys, g.of_k.row,
                                                   tile * kTileColumns, size.columns, size.inner,
                                                   g.aligned != 0);
      fetch_bias<kTileColumns>(biases + stage * kTileColumns, g, size, score, tile * kTileColumns);
    }
    commit_copies();
  };
  const auto fetch_values = [&](int tile, int stage) {
    if (tile >= 0)
      fetch_tile<kTileColumns, kOuter, kOuterStep>(
          stages + stage * kStage + kTileColumns * kInnerStep, values, g.of_v.row,
          tile * kTileColumns, size.columns, size.outer, g.aligned != 0);
    commit_copies();
  };

  Row state[kRows];
  REAL out[kRows][kOuterWide / kColumnLanes];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    state[i].most = lowest();
    state[i].sum = 0;
#pragma unroll
    for (int e = 0; e < kOuterWide / kColumnLanes; ++e) out[i][e] = 0;
  }

  int tile = next_values(g, size, batch, row + kTileRows, -1);
  int stage = 0;
  fetch_tile<kTileRows, kInner, kInnerStep>(q, g.q + offset_of(g, g.of_q, batch), g.of_q.row, row,
                                            size.rows, size.inner, g.aligned != 0);
  fetch_keys(tile, 0);
  fetch_values(tile, 0);
  wait_for_copies_but_one();
  __syncthreads();
  OwnRows<kInner, kInnerStep> queries;
  queries.take(q, at);
  while (tile >= 0) {
    const int next = next_values(g, size, batch, row + kTileRows, tile);
    if (kStages > 1) {
      wait_for_copies();
      __syncthreads();
      fetch_keys(next, 1 - stage);
      fetch_values(next, 1 - stage);
    } else {
      wait_for_copies_but_one();
      __syncthreads();
    }
    REAL s[kRows][kColumns] = {};
    multiply_rows(queries, stages + stage * kStage, at, s);
    finish_scores(g, size, score, at, row, tile * kTileColumns, biases + stage * kTileColumns, s);
    if (kStages == 1) {
      __syncthreads();
      fetch_keys(next, 0);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const REAL factor = weigh(s[i], state[i]);
      if (factor != REAL(1))
#pragma unroll
        for (int e = 0; e < kOuterWide / kColumnLanes; ++e) out[i][e] *= factor;
    }
    if (kStages == 1) {
      wait_for_copies_but_one();
      __syncthreads();
    }
    multiply_weights<kOuterWide, kOuterStep>(
        s, parts, stages + stage * kStage + kTileColumns * kInnerStep, at, out);
    if (kStages > 1) {
      stage = 1 - stage;
    } else {
      __syncthreads();
      fetch_values(next, 0);
    }
    tile = next;
  }
  wait_for_copies();

  finish_rows(g, size, at, batch, row, state, out);
  store_rows<kOuterWide>(g.first + batch * size.rows * size.outer, at, row, size.rows, size.outer,
                         out);
}
