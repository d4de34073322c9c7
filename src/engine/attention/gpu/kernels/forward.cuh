#pragma once
// Rows of a block over all columns: a row's largest score, the sum of its exponentials and the
// weighted values go from tile to tile and are scaled when the largest score changes.

/// One tile's part of a row's softmax.
struct Row {
  REAL most, sum;
};

/// The scores of a tile, complete; -infinity beyond the columns. `added`: the bias of its keys, if
/// that is one of keys.
static __device__ __forceinline__ void finish_scores(const Arguments& g, const Sizes& size,
                                                     const Scores& score, const Lane& at, int row,
                                                     int column, const REAL* added,
                                                     REAL (&s)[kRows][kColumns]) {
  if (is_plain(g, size, score, row, column + kTileColumns)) {
    if (score.keyed) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const REAL bias = added[column_of(at, j)];
#pragma unroll
        for (int i = 0; i < kRows; ++i) s[i][j] = fma(s[i][j], score.scale, bias);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int j = 0; j < kColumns; ++j) s[i][j] *= score.scale;
    }
    if (column + kTileColumns > size.columns)
#pragma unroll
      for (int j = 0; j < kColumns; ++j)
        if (column + column_of(at, j) >= size.columns)
#pragma unroll
          for (int i = 0; i < kRows; ++i) s[i][j] = lowest();
    return;
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int m = row + at.warp * kWarpRows + i * kRowLanes + at.row;
      const int n = column + column_of(at, j);
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
  if (kTensor && is_near(to)) {
    const REAL less = -to * kLog2E;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sum += s[j] = power_of_2(fma(s[j], REAL(kLog2E), less));
  } else {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sum += s[j] = exp_of(s[j] - to);
  }
  const REAL factor = before == lowest() ? REAL(0) : before == now ? REAL(1) : exp_of(from - to);
  row.sum = row.sum * factor + sum;
  row.most = now;
  return factor;
}
