#pragma once
// Products of bf16 by tensor cores: of a band of 16 own rows and an octet of 8 other rows or
// columns, each sum in float. kRowLanes is 8: a lane has the rows 0 and 8 of a band, behind its
// first, and two columns of an octet that are beside each other.

constexpr int kBands = kRows / 2;
constexpr int kOctets = kColumns / 2;
constexpr int kPartCount = 0;  // weights stay in registers
constexpr bool kTensor = true;

static __device__ __forceinline__ Lane lane_of_thread() {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Lane at;
  at.warp = static_cast<int>(threadIdx.x) / 32;
  at.row = lane / 4;
  at.column = lane % 4 * 2;
  return at;
}
static __device__ __forceinline__ int column_of(const Lane& at, int j) {
  return at.column + j / 2 * 8 + j % 2;
}
/// Over the lanes that have the same rows.
template <class Join>
static __device__ __forceinline__ REAL over_columns(REAL x, Join join) {
  x = join(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return join(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/// The own rows of a warp, for products with others: in registers if kHeld.
template <int kWidth, int kStep>
struct OwnRows {
  const ELEMENT* from;
  unsigned held[kHeld ? kBands : 1][kHeld ? kWidth / 16 : 1][4];

  __device__ __forceinline__ void take(const ELEMENT* tile, const Lane& at) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    from = tile + (at.warp * kWarpRows + lane % 16) * kStep + lane / 16 * 8;
    if (!kHeld) return;
#pragma unroll
    for (int band = 0; band < kBands; ++band)
#pragma unroll
      for (int d = 0; d < kWidth; d += 16)
        load_matrices(held[kHeld ? band : 0][kHeld ? d / 16 : 0], from + band * 16 * kStep + d);
  }
  /// 16 elements from `d` on of a band's rows.
  __device__ __forceinline__ void give(int band, int d, unsigned (&to)[4]) const {
    if (kHeld) {
#pragma unroll
      for (int w = 0; w < 4; ++w) to[w] = held[kHeld ? band : 0][kHeld ? d / 16 : 0][w];
    } else {
      load_matrices(to, from + band * 16 * kStep + d);
    }
  }
};

/// s += the products of own rows and other rows, by 16 elements in their order.
template <int kWidth, int kStep>
static __device__ __forceinline__ void multiply_rows(const OwnRows<kWidth, kStep>& own,
                                                     const ELEMENT* other, const Lane&,
                                                     REAL (&s)[kRows][kColumns]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const ELEMENT* const from = other + (lane / 16 * 8 + lane % 8) * kStep + lane / 8 % 2 * 8;
#pragma unroll
  for (int d = 0; d < kWidth; d += 16) {
    unsigned a[kBands][4];
#pragma unroll
    for (int band = 0; band < kBands; ++band) own.give(band, d, a[band]);
#pragma unroll
    for (int octet = 0; octet < kOctets; octet += 2) {
      unsigned b[4];
      load_matrices(b, from + octet * 8 * kStep + d);
#pragma unroll
      for (int i = 0; i < kRows; i += 2)
#pragma unroll
        for (int more = 0; more < 2; ++more) {
          const int j = 2 * (octet + more);
          multiply_bf16(s[i][j], s[i][j + 1], s[i + 1][j], s[i + 1][j + 1], a[i / 2], b[2 * more],
                        b[2 * more + 1]);
        }
    }
  }
}

/// to += weights, rounded, times other rows, by 16 of these in their order.
template <int kWidth, int kStep>
static __device__ __forceinline__ void multiply_weights(const REAL (&p)[kRows][kColumns], REAL*,
                                                        const ELEMENT* other, const Lane&,
                                                        REAL (&to)[kRows][kWidth / kColumnLanes]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const ELEMENT* const from = other + lane % 16 * kStep + lane / 16 * 8;
#pragma unroll
  for (int c = 0; c < kColumns; c += 4) {
    unsigned a[kBands][4];
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        a[i / 2][i % 2 + 2 * half] = pair_of_bf16(p[i][c + 2 * half], p[i][c + 2 * half + 1]);
#pragma unroll
    for (int e = 0; e < kWidth; e += 16) {
      unsigned b[4];
      load_matrices_across(b, from + c * 4 * kStep + e);
#pragma unroll
      for (int i = 0; i < kRows; i += 2)
#pragma unroll
        for (int more = 0; more < 2; ++more) {
          const int j = e / 4 + 2 * more;
          multiply_bf16(to[i][j], to[i][j + 1], to[i + 1][j], to[i + 1][j + 1], a[i / 2],
                        b[2 * more], b[2 * more + 1]);
        }
    }
  }
}

/// Rows of a result, which has no gaps.
template <int kWidth>
static __device__ __forceinline__ void store_rows(ELEMENT* to, const Lane& at, int first, int count,
                                                  int width,
                                                  const REAL (&x)[kRows][kWidth / kColumnLanes]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = first + at.warp * kWarpRows + i * kRowLanes + at.row;
    if (row >= count) continue;
    ELEMENT* const begin = to + static_cast<long long>(row) * width;
#pragma unroll
    for (int j = 0; j < kWidth / kColumnLanes; j += 2) {
      const int column = column_of(at, j);
      const unsigned pair = pair_of_bf16(x[i][j], x[i][j + 1]);
      if (width % 2 == 0) {
        if (column < width) *reinterpret_cast<unsigned*>(begin + column) = pair;
      } else {
        if (column < width) begin[column] = static_cast<ELEMENT>(pair);
        if (column + 1 < width) begin[column + 1] = static_cast<ELEMENT>(pair >> 16);
      }
    }
  }
}
