#pragma once
#include "compiler/codegen/cpu/prelude/types.h"

//: sf_widen_bool sf_narrow_bool
// 0 or 1 in memory, a mask in lanes.
SF_INLINE sf_bool sf_widen_bool(sf_u8 a) { return SF_TEST32(SF_CONVERT(a, sf_i32) != 0); }
SF_INLINE sf_u8 sf_narrow_bool(sf_bool a) { return SF_CONVERT(a & 1, sf_u8); }

//: sf_widen_f16 sf_narrow_f16 sf_round_f16
// f16 is uint16_t in memory and f32 in lanes; rounded to nearest, ties to even.
SF_INLINE sf_f32 sf_widen_f16(sf_u16 a) {
  const sf_u32 bits = SF_CONVERT(a, sf_u32);
  const sf_u32 magnitude = (bits & 0x7FFFu) << 13;
  const sf_u32 finite = sf_bits_f32(sf_from_bits_f32(magnitude) * 0x1p112f);
  const sf_bool special = SF_TEST32(magnitude >= 0x0F800000u);
  const sf_i32 chosen = sf_select_i32(special, (sf_i32)(magnitude + 0x70000000u), (sf_i32)finite);
  return sf_from_bits_f32((sf_u32)chosen | (bits & 0x8000u) << 16);
}
SF_INLINE sf_u32 sf_bits_of_f16(sf_f32 a) {
  const sf_u32 bits = sf_bits_f32(a);
  const sf_u32 m = bits & 0x7FFFFFFFu;
  const sf_u32 normal = (m - 0x38000000u + 0xFFFu + ((m >> 13) & 1u)) >> 13;
  const sf_u32 tiny = sf_bits_f32(sf_from_bits_f32(m) + 0.5f) - 0x3F000000u;  // multiples of 2^-24
  sf_i32 r = sf_select_i32(SF_TEST32(m < 0x38800000u), (sf_i32)tiny, (sf_i32)normal);
  r = sf_select_i32(SF_TEST32(m >= 0x477FF000u), sf_all_i32(0x7C00), r);  // 65520 and more
  r = sf_select_i32(SF_TEST32(m > 0x7F800000u), sf_all_i32(0x7E00), r);
  return (sf_u32)r | ((bits >> 16) & 0x8000u);
}
SF_INLINE sf_u16 sf_narrow_f16(sf_f32 a) { return SF_CONVERT(sf_bits_of_f16(a), sf_u16); }
SF_INLINE sf_f32 sf_round_f16(sf_f32 a) { return sf_widen_f16(sf_narrow_f16(a)); }

//: sf_widen_bf16 sf_narrow_bf16 sf_round_bf16
// bf16 is uint16_t in memory and f32 in lanes; rounded to nearest, ties to even.
SF_INLINE sf_f32 sf_widen_bf16(sf_u16 a) { return sf_from_bits_f32(SF_CONVERT(a, sf_u32) << 16); }
SF_INLINE sf_u32 sf_bits_of_bf16(sf_f32 a) {
  const sf_u32 bits = sf_bits_f32(a);
  const sf_u32 rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const sf_u32 nan = (bits >> 16) | 0x40u;
  return (sf_u32)sf_select_i32(SF_TEST32(a != a), (sf_i32)nan, (sf_i32)rounded);
}
SF_INLINE sf_u16 sf_narrow_bf16(sf_f32 a) { return SF_CONVERT(sf_bits_of_bf16(a), sf_u16); }
SF_INLINE sf_f32 sf_round_bf16(sf_f32 a) { return sf_from_bits_f32(sf_bits_of_bf16(a) << 16); }

//: SF_MEMORY SF_MEMORY_MASKED SF_SAME
// Loads and stores of one kind of element: all lanes, and the first n (what lies beyond is not
// touched, lanes beyond are zero; n is not negative, nor more than there are).
#define SF_SAME(a) (a)
#define SF_PART(count)                                \
  do {                                                \
    if ((count) >= SF_LANES || !(n & (count))) break; \
    __builtin_memcpy(to, from, (count) * sizeof *to); \
    to += count;                                      \
    from += count;                                    \
  } while (0)
// Where the machine has masks in its loads and stores, the first n lanes are one instruction.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && SF_LANES == 16
#define SF_HAS_MASKS 1
SF_INLINE uint16_t sf_first_lanes(int64_t n) { return (uint16_t)((1u << n) - 1); }
#endif
#define SF_MEMORY_ALL(name, element, raw, value, widen, narrow)       \
  typedef SF_UNALIGNED(element, sizeof(element)) sf_unaligned_##name; \
  typedef union {                                                     \
    raw all;                                                          \
    element each[SF_LANES];                                           \
  } sf_block_##name;                                                  \
  SF_INLINE value sf_load_##name(const element* p) {                  \
    const raw r = *(const sf_unaligned_##name*)p;                     \
    return widen(r);                                                  \
  }                                                                   \
  SF_INLINE void sf_store_##name(element* p, value a) { *(sf_unaligned_##name*)p = narrow(a); }
#define SF_MEMORY(name, element, raw, value, widen, narrow)                    \
  SF_MEMORY_ALL(name, element, raw, value, widen, narrow)                      \
  SF_INLINE void sf_copy_##name(element* to, const element* from, int64_t n) { \
    SF_PART(8);                                                                \
    SF_PART(4);                                                                \
    SF_PART(2);                                                                \
    SF_PART(1);                                                                \
  }                                                                            \
  SF_INLINE value sf_load_##name##_n(const element* p, int64_t n) {            \
    sf_block_##name r;                                                         \
    if (n >= SF_LANES) return sf_load_##name(p);                               \
    for (int i = 0; i < SF_LANES; ++i) r.each[i] = 0;                          \
    sf_copy_##name(r.each, p, n);                                              \
    return widen(r.all);                                                       \
  }                                                                            \
  SF_INLINE void sf_store_##name##_n(element* p, value a, int64_t n) {         \
    sf_block_##name r;                                                         \
    if (n >= SF_LANES) {                                                       \
      sf_store_##name(p, a);                                                   \
      return;                                                                  \
    }                                                                          \
    r.all = narrow(a);                                                         \
    sf_copy_##name(p, r.each, n);                                              \
  }
#if defined(SF_HAS_MASKS)
#define SF_MEMORY_MASKED(name, element, raw, value, widen, narrow, size, ints) \
  SF_MEMORY_ALL(name, element, raw, value, widen, narrow)                      \
  SF_INLINE value sf_load_##name##_n(const element* p, int64_t n) {            \
    const raw r = (raw)sf_get_masked_##size(p, sf_first_lanes(n));             \
    return widen(r);                                                           \
  }                                                                            \
  SF_INLINE void sf_store_##name##_n(element* p, value a, int64_t n) {         \
    sf_put_masked_##size(p, (ints)narrow(a), sf_first_lanes(n));               \
  }
#else
#define SF_MEMORY_MASKED(name, element, raw, value, widen, narrow, size, ints) \
  SF_MEMORY(name, element, raw, value, widen, narrow)
#endif

//: SF_MASKED_1
//+ SF_MEMORY
#if defined(SF_HAS_MASKS)
typedef char sf_chars __attribute__((vector_size(16)));
SF_INLINE sf_chars sf_get_masked_1(const void* p, uint16_t mask) {
  const sf_chars nothing = {0};
  return __builtin_ia32_loaddquqi128_mask(p, nothing, mask);
}
SF_INLINE void sf_put_masked_1(void* p, sf_chars a, uint16_t mask) {
  __builtin_ia32_storedquqi128_mask(p, a, mask);
}
#endif

//: SF_MASKED_2
//+ SF_MEMORY
#if defined(SF_HAS_MASKS)
typedef short sf_shorts __attribute__((vector_size(32)));
SF_INLINE sf_shorts sf_get_masked_2(const void* p, uint16_t mask) {
  const sf_shorts nothing = {0};
  return __builtin_ia32_loaddquhi256_mask(p, nothing, mask);
}
SF_INLINE void sf_put_masked_2(void* p, sf_shorts a, uint16_t mask) {
  __builtin_ia32_storedquhi256_mask(p, a, mask);
}
#endif

//: SF_MASKED_4
//+ SF_MEMORY
#if defined(SF_HAS_MASKS)
typedef int sf_ints __attribute__((vector_size(64)));
SF_INLINE sf_ints sf_get_masked_4(const void* p, uint16_t mask) {
  const sf_ints nothing = {0};
  return __builtin_ia32_loaddqusi512_mask(p, nothing, mask);
}
SF_INLINE void sf_put_masked_4(void* p, sf_ints a, uint16_t mask) {
  __builtin_ia32_storedqusi512_mask(p, a, mask);
}
#endif

//: SF_SCATTERED
//+ sf_any sf_lanes_i64
// The same of elements `stride` apart, of elements named by an index, and where a mask holds (_in:
// side by side, _where: by index).
#define SF_SCATTERED(name, element, raw, value, widen, narrow)                               \
  SF_INLINE value sf_load_##name##_strided(const element* p, int64_t stride, int64_t n) {    \
    sf_block_##name r;                                                                       \
    for (int i = 0; i < SF_LANES; ++i) r.each[i] = 0;                                        \
    for (int64_t i = 0; i < n; ++i) r.each[i] = p[i * stride];                               \
    return widen(r.all);                                                                     \
  }                                                                                          \
  SF_INLINE value sf_load_##name##_at(const element* p, sf_i64 index, int64_t n) {           \
    sf_block_##name r;                                                                       \
    int64_t at[SF_LANES];                                                                    \
    __builtin_memcpy(at, &index, sizeof at);                                                 \
    for (int i = 0; i < SF_LANES; ++i) r.each[i] = 0;                                        \
    for (int64_t i = 0; i < n; ++i) r.each[i] = p[at[i]];                                    \
    return widen(r.all);                                                                     \
  }                                                                                          \
  SF_INLINE value sf_load_##name##_where(const element* p, sf_i64 index, sf_bool where) {    \
    sf_block_##name r;                                                                       \
    int64_t at[SF_LANES];                                                                    \
    int32_t on[SF_LANES];                                                                    \
    __builtin_memcpy(at, &index, sizeof at);                                                 \
    __builtin_memcpy(on, &where, sizeof on);                                                 \
    for (int i = 0; i < SF_LANES; ++i) r.each[i] = on[i] ? p[at[i]] : (element)0;            \
    return widen(r.all);                                                                     \
  }                                                                                          \
  SF_INLINE value sf_load_##name##_in(const element* p, sf_bool where) {                     \
    if (!sf_any(~where)) return sf_load_##name(p);                                           \
    return sf_load_##name##_where(p, sf_lanes_i64(0), where);                                \
  }                                                                                          \
  SF_INLINE void sf_store_##name##_strided(element* p, value a, int64_t stride, int64_t n) { \
    sf_block_##name r;                                                                       \
    r.all = narrow(a);                                                                       \
    for (int64_t i = 0; i < n; ++i) p[i * stride] = r.each[i];                               \
  }                                                                                          \
  SF_INLINE void sf_store_##name##_at(element* p, value a, sf_i64 index, int64_t n) {        \
    sf_block_##name r;                                                                       \
    int64_t at[SF_LANES];                                                                    \
    __builtin_memcpy(at, &index, sizeof at);                                                 \
    r.all = narrow(a);                                                                       \
    for (int64_t i = 0; i < n; ++i) p[at[i]] = r.each[i];                                    \
  }                                                                                          \
  SF_INLINE void sf_store_##name##_where(element* p, value a, sf_i64 index, sf_bool where) { \
    sf_block_##name r;                                                                       \
    int64_t at[SF_LANES];                                                                    \
    int32_t on[SF_LANES];                                                                    \
    __builtin_memcpy(at, &index, sizeof at);                                                 \
    __builtin_memcpy(on, &where, sizeof on);                                                 \
    r.all = narrow(a);                                                                       \
    for (int i = 0; i < SF_LANES; ++i)                                                       \
      if (on[i]) p[at[i]] = r.each[i];                                                       \
  }                                                                                          \
  SF_INLINE void sf_store_##name##_in(element* p, value a, sf_bool where) {                  \
    if (sf_any(~where)) {                                                                    \
      sf_store_##name##_where(p, a, sf_lanes_i64(0), where);                                 \
    } else {                                                                                 \
      sf_store_##name(p, a);                                                                 \
    }                                                                                        \
  }

//: sf_{load,store}_f32{,_n}
//+ SF_MASKED_4
SF_MEMORY_MASKED(f32, float, sf_f32, sf_f32, SF_SAME, SF_SAME, 4, sf_ints)

//: sf_{load,store}_f32{_strided,_at,_where,_in}
//+ sf_load_f32
SF_SCATTERED(f32, float, sf_f32, sf_f32, SF_SAME, SF_SAME)

//: sf_{load,store}_f64{,_n}
SF_MEMORY(f64, double, sf_f64, sf_f64, SF_SAME, SF_SAME)

//: sf_{load,store}_f64{_strided,_at,_where,_in}
//+ sf_load_f64
SF_SCATTERED(f64, double, sf_f64, sf_f64, SF_SAME, SF_SAME)

//: sf_{load,store}_i32{,_n}
//+ SF_MASKED_4
SF_MEMORY_MASKED(i32, int32_t, sf_i32, sf_i32, SF_SAME, SF_SAME, 4, sf_ints)

//: sf_{load,store}_i32{_strided,_at,_where,_in}
//+ sf_load_i32
SF_SCATTERED(i32, int32_t, sf_i32, sf_i32, SF_SAME, SF_SAME)

//: sf_{load,store}_i64{,_n}
SF_MEMORY(i64, int64_t, sf_i64, sf_i64, SF_SAME, SF_SAME)

//: sf_{load,store}_i64{_strided,_at,_where,_in}
//+ sf_load_i64
SF_SCATTERED(i64, int64_t, sf_i64, sf_i64, SF_SAME, SF_SAME)

//: sf_{load,store}_f16{,_n}
//+ SF_MASKED_2
SF_MEMORY_MASKED(f16, uint16_t, sf_u16, sf_f32, sf_widen_f16, sf_narrow_f16, 2, sf_shorts)

//: sf_{load,store}_f16{_strided,_at,_where,_in}
//+ sf_load_f16
SF_SCATTERED(f16, uint16_t, sf_u16, sf_f32, sf_widen_f16, sf_narrow_f16)

//: sf_{load,store}_bf16{,_n}
//+ SF_MASKED_2
SF_MEMORY_MASKED(bf16, uint16_t, sf_u16, sf_f32, sf_widen_bf16, sf_narrow_bf16, 2, sf_shorts)

//: sf_{load,store}_bf16{_strided,_at,_where,_in}
//+ sf_load_bf16
SF_SCATTERED(bf16, uint16_t, sf_u16, sf_f32, sf_widen_bf16, sf_narrow_bf16)

//: sf_{load,store}_bool{,_n}
//+ SF_MASKED_1
SF_MEMORY_MASKED(bool, uint8_t, sf_u8, sf_bool, sf_widen_bool, sf_narrow_bool, 1, sf_chars)

//: sf_{load,store}_bool{_strided,_at,_where,_in}
//+ sf_load_bool
SF_SCATTERED(bool, uint8_t, sf_u8, sf_bool, sf_widen_bool, sf_narrow_bool)
