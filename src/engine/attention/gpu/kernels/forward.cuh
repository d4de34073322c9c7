#pragma once
// Rows of a block over all columns: a row's largest score, the sum of its exponentials and the
// weighted values go from tile to tile and are scaled when the largest score changes.

#include "engine/attention/gpu/kernels/common.cuh"

/// One tile's part of a row's softmax.
struct Row {
  REAL most, sum;
};

/// The scores of a tile, complete; -infinity beyond the columns.
static __device__ __forceinline__ void finish_scores(const Arguments& g, const Sizes& size,
                                                     const Scores& score, const Lane& at, int row,
                                                     int column, REAL (&s)[kRows][kColumns]) {
  const bool plain = is_plain(g, size, score, row, kTileRows, column, kTileColumns);
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < kColumns; ++j) s[i][j] *= score.scale;
  if (plain) return;
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int m = row + at.warp * kWarpRows + i * kRowLanes + at.row;
      const int n = column + j * kColumnLanes + at.column;
      if (n >= size.columns)
        s[i][j] = lowest();
      else if (m < size.rows)
        s[i][j] = is_seen(g, score, m, n) ? with_bias(g, score, s[i][j], m, n) : score.fill;
    }
}

/// Scores become exponentials; the factor of what is before them. A lane's sum is of its columns.
static __device__ __forceinline__ REAL weigh(REAL (&s)[kColumns], Row& row) {
  REAL greatest = s[0];
#pragma unroll
  for (int j = 1; j < kColumns; ++j) greatest = fmax(greatest, s[j]);
  greatest = over_columns(greatest, [](REAL a, REAL b) { return fmax(a, b); });
  const REAL before = row.most;
  const REAL now = fmax(before, greatest);
  // What is not finite takes nothing away: the sum shows it.
  const REAL from = is_finite(before) ? before : REAL(0);
  const REAL to = is_finite(now) ? now : REAL(0);
  REAL sum = 0;
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    s[j] = exp_of(s[j] - to);
    sum += s[j];
  }
  const REAL factor = before == lowest() ? REAL(0) : before == now ? REAL(1) : exp_of(from - to);
  row.sum = row.sum * factor + sum;
  row.most = now;
  return factor;
}
