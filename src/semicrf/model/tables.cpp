#include "semicrf/model/tables.h"

#include <limits>
#include <type_traits>

#include "base/code/simd_targets.h"
#include "semicrf/model/aligned_doubles.h"

// Vectors of two doubles gain nothing over SSE4's.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | SEGFUSE_NO_SVE)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "semicrf/model/tables.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Doubles = hn::CappedTag<double, kLanes>;

hn::Vec<Doubles> load(const float* from) {
  return hn::PromoteTo(Doubles(), hn::LoadU(hn::Rebind<float, Doubles>(), from));
}
hn::Vec<Doubles> load(const double* from) { return hn::LoadU(Doubles(), from); }

template <class T>
void add_lists(const T* from, std::int64_t step, std::int64_t n, std::int64_t size,
               std::int64_t stride, double* rows) {
  const Doubles d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < n; ++i, from += step, rows += stride) {
    std::int64_t c = 0;
    for (; c + lanes <= size; c += lanes)
      hn::StoreU(hn::Add(hn::LoadU(d, rows + c), load(from + c)), d, rows + c);
    for (; c < size; ++c) rows[c] += static_cast<double>(from[c]);
  }
}

void add_floats(const float* from, std::int64_t step, std::int64_t n, std::int64_t size,
                std::int64_t stride, double* rows) {
  add_lists(from, step, n, size, stride, rows);
}

void add_doubles(const double* from, std::int64_t step, std::int64_t n, std::int64_t size,
                 std::int64_t stride, double* rows) {
  add_lists(from, step, n, size, stride, rows);
}

}  // namespace
}  // namespace segfuse::semicrf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace segfuse::semicrf {
namespace {
HWY_EXPORT(add_floats);
HWY_EXPORT(add_doubles);

template <class T>
void add(const void* data, const TableLists& at, std::int64_t stride, double* rows) {
  const T* from = static_cast<const T*>(data) + at.offset;
  if constexpr (std::is_same_v<T, float>) {
    if (at.hop == 1)
      return HWY_DYNAMIC_DISPATCH(add_floats)(from, at.step, at.n, at.size, stride, rows);
  }
  if constexpr (std::is_same_v<T, double>) {
    if (at.hop == 1)
      return HWY_DYNAMIC_DISPATCH(add_doubles)(from, at.step, at.n, at.size, stride, rows);
  }
  for (std::int64_t i = 0; i < at.n; ++i)
    for (std::int64_t c = 0; c < at.size; ++c)
      rows[i * stride + c] += static_cast<double>(from[i * at.step + c * at.hop]);
}

template <class T>
bool are_scores(const void* data, const TableLists& at) {
  const T* from = static_cast<const T*>(data) + at.offset;
  bool good = true;
  for (std::int64_t i = 0; i < at.n; ++i)
    for (std::int64_t c = 0; c < at.size; ++c)
      good &= static_cast<double>(from[i * at.step + c * at.hop]) <
              std::numeric_limits<double>::infinity();
  return good;
}

template <>
bool are_scores<float>(const void* data, const TableLists& at) {
  const float* from = static_cast<const float*>(data) + at.offset;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::uint32_t bad = 0;
  for (std::int64_t i = 0; i < at.n; ++i, from += at.step) {
    if (at.hop == 1) {  // which compilers make vectors of
      for (std::int64_t c = 0; c < at.size; ++c) bad |= from[c] < kInfinity ? 0U : 1U;
    } else {
      for (std::int64_t c = 0; c < at.size; ++c) bad |= from[c * at.hop] < kInfinity ? 0U : 1U;
    }
  }
  return bad == 0;
}

}  // namespace

template <class T>
TableReader TableReader::of(const T* data) {
  return {data, &semicrf::add<T>, &semicrf::are_scores<T>};
}

template TableReader TableReader::of(const float*);
template TableReader TableReader::of(const double*);
template TableReader TableReader::of(const Half*);
template TableReader TableReader::of(const BFloat16*);

}  // namespace segfuse::semicrf
#endif
