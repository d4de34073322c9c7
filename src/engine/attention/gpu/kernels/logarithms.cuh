#pragma once
// The logarithms of the sums as two numbers. One that is large, as of scores of -1e9 that fill a
// row, has no digits left for the sum: there the largest score and the sum are found once more.

#include "engine/attention/gpu/kernels/forward.cuh"

static __device__ __forceinline__ bool is_large(REAL x) {
  return is_finite(x) && (x > REAL(64) || x < REAL(-64));
}

extern "C" __global__ void __launch_bounds__(kThreads, kResident)
    attention_logarithms(const Arguments g) {
  __shared__ int any;
  ELEMENT* const q = reinterpret_cast<ELEMENT*>(shared_memory());
  ELEMENT* const k = q + kTileRows * kInnerStep;
  REAL* const added = reinterpret_cast<REAL*>(k + kTileColumns * kInnerStep);
  const Lane at = lane_of_thread();
  const Sizes size = sizes_of(g);
  const int row_tiles = (size.rows + kTileRows - 1) / kTileRows;
  const long long batch = static_cast<int>(blockIdx.x) / row_tiles;
  const int row = static_cast<int>(blockIdx.x) % row_tiles * kTileRows;
  const int own = at.warp * kWarpRows + at.row;
  if (threadIdx.x == 0) any = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int m = row + own + i * kRowLanes;
    if (m >= size.rows || at.column != 0) continue;
    const REAL log = g.logs[batch * size.rows + m];
    g.log[batch * size.rows + m] = log;
    g.rest[batch * size.rows + m] = 0;
    if (is_large(log)) any = 1;
  }
  __syncthreads();
  if (any == 0) return;

  const ELEMENT* const keys = g.k + offset_of(g, g.of_k, batch);
  const Scores score = scores_of(g, batch);
  Row state[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    state[i].most = lowest();
    state[i].sum = 0;
  }
  fetch_tile<kTileRows, kInner, kInnerStep>(q, g.q + offset_of(g, g.of_q, batch), g.of_q.row, row,
                                            size.rows, size.inner, g.aligned != 0);
  for (int n = 0; n < size.columns; n += kTileColumns) {
    if (is_hidden(g, size, row + kTileRows, n)) continue;
    __syncthreads();
    fetch_tile<kTileColumns, kInner, kInnerStep>(k, keys, g.of_k.row, n, size.columns, size.inner,
                                                 g.aligned != 0);
    fetch_bias<kTileColumns>(added, g, size, score, n);
    commit_copies();
    wait_for_copies();
    __syncthreads();
    OwnRows<kInner, kInnerStep> queries;
    queries.take(q, at);
    REAL s[kRows][kColumns] = {};
    multiply_rows(queries, k, at, s);
    finish_scores(g, size, score, at, row, n, added, s);
#pragma unroll
    for (int i = 0; i < kRows; ++i) weigh(s[i], state[i]);
  }
  wait_for_copies();
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const REAL sum = over_columns(state[i].sum, [](REAL a, REAL b) { return a + b; });
    const int m = row + own + i * kRowLanes;
    if (m >= size.rows || at.column != 0) continue;
    if (!is_large(g.logs[batch * size.rows + m]) || !is_finite(state[i].most)) continue;
    g.log[batch * size.rows + m] = state[i].most;
    g.rest[batch * size.rows + m] = log(sum);
  }
}
