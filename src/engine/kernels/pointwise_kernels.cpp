#include "engine/kernels/pointwise_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/half.h"
#include "engine/kernels/loop_table.h"
#include "ir/random.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/pointwise_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "engine/kernels/simd_targets.h"

HWY_BEFORE_NAMESPACE();
namespace segfuse::engine {
namespace HWY_NAMESPACE {

#include "engine/kernels/pointwise_loops-inl.h"

HWY_INLINE float round_bfloat16(float value) {
  const std::uint32_t bits = as_bits(value);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) & 0xFFFF0000U;
  return value != value ? value : as_float(rounded);
}
HWY_INLINE float round_half(float value) { return half_to_float(float_to_half(value)); }

template <float (*round)(float)>
void round_elements(void* out, const LoopOperands& in, std::int64_t n) {
  float* to = static_cast<float*>(out);
  const float* from = static_cast<const float*>(in.data[0]);
  const std::int64_t stride = in.stride[0];
  for (std::int64_t i = 0; i < n; ++i) to[i] = round(from[i * stride]);
}

// --- random numbers

constexpr std::int64_t kPhiloxLanes = 32;

/// The numbers of kPhiloxLanes blocks from `block` on: base/rng.h, one block a lane.
HWY_INLINE void philox_lanes(std::uint64_t key, std::uint64_t block, std::uint64_t high,
                             float* HWY_RESTRICT to) {
  std::uint32_t c[4][kPhiloxLanes];
  for (std::int64_t i = 0; i < kPhiloxLanes; ++i) {
    const std::uint64_t low = block + static_cast<std::uint64_t>(i);
    c[0][i] = static_cast<std::uint32_t>(low);
    c[1][i] = static_cast<std::uint32_t>(low >> 32);
    c[2][i] = static_cast<std::uint32_t>(high);
    c[3][i] = static_cast<std::uint32_t>(high >> 32);
  }
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (std::int64_t i = 0; i < kPhiloxLanes; ++i) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * c[0][i];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * c[2][i];
      c[0][i] = static_cast<std::uint32_t>(p1 >> 32) ^ c[1][i] ^ k0;
      c[1][i] = static_cast<std::uint32_t>(p1);
      c[2][i] = static_cast<std::uint32_t>(p0 >> 32) ^ c[3][i] ^ k1;
      c[3][i] = static_cast<std::uint32_t>(p0);
    }
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  for (std::int64_t i = 0; i < kPhiloxLanes; ++i)
    for (std::int64_t word = 0; word < 4; ++word)
      to[4 * i + word] = static_cast<float>(static_cast<std::int32_t>(c[word][i] >> 8)) * 0x1p-24F;
}

void random_elements(const std::int64_t* seed, std::int64_t stream, std::int64_t begin,
                     std::int64_t n, float* to) {
  const auto key = static_cast<std::uint64_t>(seed[0]);
  const std::uint64_t high = ir::random_counter_high(seed[1], stream);
  std::int64_t i = begin;
  const std::int64_t end = begin + n;
  while (i < end) {
    if (i % 4 == 0 && end - i >= 4 * kPhiloxLanes) {
      philox_lanes(key, static_cast<std::uint64_t>(i / 4), high, to + (i - begin));
      i += 4 * kPhiloxLanes;
      continue;
    }
    const PhiloxBlock block = philox(key, static_cast<std::uint64_t>(i / 4), high);
    const std::int64_t last = std::min(end, i / 4 * 4 + 4);
    for (; i < last; ++i) to[i - begin] = uniform_from_bits(block[static_cast<std::size_t>(i % 4)]);
  }
}

// --- the table

LoopTable make_table() {
  LoopTable table;
  add_loops<float>(table);
  add_loops<std::uint8_t>(table);
  table.round[index_of(DType::kF16)] = round_elements<round_half>;
  table.round[index_of(DType::kBF16)] = round_elements<round_bfloat16>;
  return table;
}

}  // namespace HWY_NAMESPACE
}  // namespace segfuse::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace segfuse::engine {
namespace {

HWY_EXPORT(make_table);
HWY_EXPORT(random_elements);

const LoopTable& loop_table() {
  static const LoopTable table = [] {
    LoopTable all = HWY_DYNAMIC_DISPATCH(make_table)();
    add_other_loops(all);
    return all;
  }();
  return table;
}

Loop checked(Loop loop, std::string_view what, DType dtype) {
  SEGFUSE_CHECK(loop != nullptr, "no loop for {} on {}", what, name_of(dtype));
  return loop;
}

}  // namespace

Loop pointwise_loop(ir::Op op, DType operand_type) {
  const Loop loop =
      loop_table().pointwise[static_cast<std::size_t>(op)][static_cast<std::size_t>(operand_type)];
  return checked(loop, ir::info(op).name, operand_type);
}

Loop cast_loop(DType from, DType to) {
  const Loop loop = loop_table().cast[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  return checked(loop, "cast", from);
}

void random_uniform(const std::int64_t* seed, std::int64_t stream, std::int64_t begin,
                    std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(random_elements)(seed, stream, begin, n, to);
}

Loop round_loop(DType half) {
  return checked(loop_table().round[static_cast<std::size_t>(half)], "rounding", half);
}

}  // namespace segfuse::engine
#endif  // HWY_ONCE
