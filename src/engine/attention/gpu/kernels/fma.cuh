#pragma once
// Products of f32 and f64 by fused multiply-adds.

// Weights go through shared memory in parts of a tile's columns.
constexpr int kPartColumns = kTileColumns / kParts;
constexpr int kPartStep = kPartColumns + kColumnLanes;
constexpr int kPartCount = kTileRows * kPartStep;
constexpr bool kTensor = false;

/// Neighbours have the same columns, and those beside them the same rows, so that the loads of two
/// quarters of a warp are one.
static __device__ __forceinline__ Lane lane_of_thread() {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Lane at;
  at.warp = static_cast<int>(threadIdx.x) / 32;
  at.row = kRowLanes == 4 ? (lane & 1) | ((lane >> 2) & 2) : lane & 1;
  at.column = kRowLanes == 4 ? ((lane >> 1) & 3) | ((lane >> 2) & 4) : lane >> 1;
  return at;
}
static __device__ __forceinline__ int column_of(const Lane& at, int j) {
  return j * kColumnLanes + at.column;
}
/// Over the lanes that have the same rows.
template <class Join>
static __device__ __forceinline__ REAL over_columns(REAL x, Join join) {
#pragma unroll
  for (int by = 2; by < 32; by *= 2)
    if (kRowLanes == 2 || by != 8) x = join(x, __shfl_xor_sync(0xffffffffu, x, by));
  return x;
}

/// The own rows of a lane, for products with others.
template <int kWidth, int kStep>
struct OwnRows {
  const REAL* from;
  __device__ __forceinline__ void take(const REAL* tile, const Lane& at) {
    from = tile + (at.warp * kWarpRows + at.row) * kStep;
  }
};

/// s += the products of own rows and other rows, each a sum in the order of their elements.
template <int kWidth, int kStep>
static __device__ __forceinline__ void multiply_rows(const OwnRows<kWidth, kStep>& rows,
                                                     const REAL* tile, const Lane& at,
                                                     REAL (&s)[kRows][kColumns]) {
  const REAL* const own = rows.from;
  const REAL* const other = tile + at.column * kStep;
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
                                                        REAL* parts, const REAL* other,
                                                        const Lane& at,
                                                        REAL (&to)[kRows][kWidth / kColumnLanes]) {
  REAL* const part = parts + (at.warp * kWarpRows + at.row) * kPartStep;
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
