#pragma once
#include "compiler/codegen/cpu/prelude/reduce.h"
#include "compiler/codegen/cpu/prelude/types.h"

//: SF_TRANSPOSE
// to[i * to_step + j] = from[j * from_step + i] for i < height and j < width, elements as bits.
// Squares go through vectors: as many rows as a vector has elements, halves zipped with halves.
#if SF_LANES == 1
#define SF_TRANSPOSE(name, element, n, ...)                                                        \
  SF_INLINE void sf_transpose_##name(void* to, int64_t to_step, const void* from,                  \
                                     int64_t from_step, int64_t height, int64_t width) {           \
    for (int64_t i = 0; i < height; ++i)                                                           \
      for (int64_t j = 0; j < width; ++j)                                                          \
        __builtin_memcpy((element*)to + i * to_step + j, (const element*)from + j * from_step + i, \
                         sizeof(element));                                                         \
  }
#else
#if defined(__clang__)
#define SF_UNROLL _Pragma("clang loop unroll(full)")
#define SF_ROLLED _Pragma("clang loop unroll(disable)")
#define SF_ZIP(name, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SF_UNROLL _Pragma("GCC unroll 16")
#define SF_ROLLED _Pragma("GCC unroll 1")
#define SF_ZIP(name, a, b, ...) __builtin_shuffle(a, b, (sf_row_##name){__VA_ARGS__})
#endif
#define SF_LOW_8 0, 8, 1, 9, 2, 10, 3, 11
#define SF_HIGH_8 4, 12, 5, 13, 6, 14, 7, 15
#define SF_LOW_16 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define SF_HIGH_16 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
// _square: a block of `high` x `wide`; what is read and written beyond it is there and does not
// matter. _edge: a block that may not be read or written beyond its edges. Stages in a loop compile
// in less time; with 16 bits they would take longer to run.
#define SF_TRANSPOSE(name, element, n, low, high_half, stages)                                     \
  typedef element sf_row_##name __attribute__((vector_size(n * sizeof(element)), may_alias));      \
  typedef element sf_loose_row_##name                                                              \
      __attribute__((vector_size(n * sizeof(element)), aligned(sizeof(element)), may_alias));      \
  static __attribute__((noinline, unused)) void sf_square_##name(                                  \
      element* to, int64_t to_step, const element* from, int64_t from_step, int high, int wide) {  \
    sf_row_##name a[n], b[n];                                                                      \
    const sf_row_##name nothing = {0};                                                             \
    SF_UNROLL for (int i = 0; i < n; ++i) {                                                        \
      a[i] = nothing;                                                                              \
      if (i < wide) a[i] = *(const sf_loose_row_##name*)(from + i * from_step);                    \
    }                                                                                              \
    stages for (int step = 1; step < n; step *= 2) {                                               \
      SF_UNROLL for (int i = 0; i < n / 2; ++i) {                                                  \
        b[2 * i] = SF_ZIP(name, a[i], a[i + n / 2], low);                                          \
        b[2 * i + 1] = SF_ZIP(name, a[i], a[i + n / 2], high_half);                                \
      }                                                                                            \
      SF_UNROLL for (int i = 0; i < n; ++i) a[i] = b[i];                                           \
    }                                                                                              \
    SF_UNROLL for (int i = 0; i < n; ++i) {                                                        \
      if (i < high) *(sf_loose_row_##name*)(to + i * to_step) = a[i];                              \
    }                                                                                              \
  }                                                                                                \
  static __attribute__((noinline, unused)) void sf_edge_##name(                                    \
      element* to, int64_t to_step, const element* to_end, const element* from, int64_t from_step, \
      const element* from_end, int high, int wide) {                                               \
    const int loose = (high == n || from + (wide - 1) * from_step + n <= from_end) &&              \
                      (wide == n || to + (high - 1) * to_step + n <= to_end);                      \
    if (!loose) {                                                                                  \
      for (int i = 0; i < high; ++i)                                                               \
        for (int j = 0; j < wide; ++j)                                                             \
          __builtin_memcpy(to + i * to_step + j, from + j * from_step + i, sizeof(element));       \
    } else {                                                                                       \
      sf_square_##name(to, to_step, from, from_step, high, wide);                                  \
    }                                                                                              \
  }                                                                                                \
  static __attribute__((noinline, unused)) void sf_transpose_##name(                               \
      void* to_rows, int64_t to_step, const void* from_rows, int64_t from_step, int64_t height,    \
      int64_t width) {                                                                             \
    element* const to = (element*)to_rows;                                                         \
    const element* const from = (const element*)from_rows;                                         \
    const element* const from_end = from + (width - 1) * from_step + height;                       \
    /* Rows without gaps may be written too far: what lies there is written later. */              \
    const element* const to_end = to_step == width ? to + height * width : to;                     \
    const int64_t tall = height - height % n, broad = width - width % n;                           \
    if (height <= 0 || width <= 0) return;                                                         \
    if ((height == 1 && from_step == 1) || (width == 1 && to_step == 1)) {                         \
      __builtin_memcpy(to, from, (uint64_t)(height * width) * sizeof(element));                    \
      return;                                                                                      \
    }                                                                                              \
    for (int64_t i = 0; i < height && broad < width; i += n)                                       \
      sf_edge_##name(to + i * to_step + broad, to_step, to_end, from + broad * from_step + i,      \
                     from_step, from_end, (int)sf_min(height - i, n), (int)(width - broad));       \
    if (from_step > to_step) {                                                                     \
      for (int64_t j = 0; j < broad; j += n)                                                       \
        for (int64_t i = 0; i < tall; i += n)                                                      \
          sf_square_##name(to + i * to_step + j, to_step, from + j * from_step + i, from_step, n,  \
                           n);                                                                     \
    } else {                                                                                       \
      for (int64_t i = 0; i < tall; i += n)                                                        \
        for (int64_t j = 0; j < broad; j += n)                                                     \
          sf_square_##name(to + i * to_step + j, to_step, from + j * from_step + i, from_step, n,  \
                           n);                                                                     \
    }                                                                                              \
    for (int64_t j = 0; j < broad && tall < height; j += n)                                        \
      sf_edge_##name(to + tall * to_step + j, to_step, to_end, from + j * from_step + tall,        \
                     from_step, from_end, (int)(height - tall), n);                                \
  }
#endif

//: sf_transpose_b8
//+ sf_min
SF_TRANSPOSE(b8, uint8_t, 16, SF_LOW_16, SF_HIGH_16, SF_UNROLL)

//: sf_transpose_b16
//+ sf_min
SF_TRANSPOSE(b16, uint16_t, 16, SF_LOW_16, SF_HIGH_16, SF_UNROLL)

//: sf_transpose_b32
//+ sf_min
SF_TRANSPOSE(b32, uint32_t, 16, SF_LOW_16, SF_HIGH_16, SF_ROLLED)

//: sf_transpose_b64
//+ sf_min
SF_TRANSPOSE(b64, uint64_t, 8, SF_LOW_8, SF_HIGH_8, SF_ROLLED)
