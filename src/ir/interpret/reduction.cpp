#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "ir/interpret/evaluate.h"

namespace segfuse::ir {
namespace {

// A reduction gets all elements of one result, in row-major order. Sums are carried in long double:
// the reference should not be the one that is off.

std::int64_t wrapping_add(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}
std::int64_t wrapping_mul(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

/// NaN is greater than everything, so that it propagates.
bool greater(double a, double b) { return a > b || (std::isnan(a) && !std::isnan(b)); }
bool nan_first(double a, double b) { return a < b || (std::isnan(a) && !std::isnan(b)); }

double reduce_logsumexp(const std::vector<double>& values) {
  double largest = -std::numeric_limits<double>::infinity();
  for (const double value : values)
    if (greater(value, largest)) largest = value;
  if (!std::isfinite(largest)) return largest;
  long double sum = 0;
  for (const double value : values) sum += std::exp(value - largest);
  return largest + std::log(static_cast<double>(sum));
}

double reduce_real(Monoid monoid, const std::vector<double>& values) {
  if (monoid == Monoid::kSum)
    return static_cast<double>(std::accumulate(values.begin(), values.end(), 0.0L));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double state = monoid == Monoid::kProduct ? 1 : kInfinity;
  if (monoid == Monoid::kMax) state = -kInfinity;
  for (const double value : values) {
    if (monoid == Monoid::kProduct) state *= value;
    if (monoid == Monoid::kMax && greater(value, state)) state = value;
    if (monoid == Monoid::kMin && nan_first(value, state)) state = value;
  }
  return state;
}

/// The empty maximum and minimum are the ends of the type.
std::int64_t reduce_integer(Monoid monoid, DType dtype, const std::vector<std::int64_t>& values) {
  using Wide = std::numeric_limits<std::int64_t>;
  using Narrow = std::numeric_limits<std::int32_t>;
  const bool narrow = dtype == DType::kI32;
  std::int64_t state = monoid == Monoid::kProduct;
  if (monoid == Monoid::kMax) state = narrow ? Narrow::min() : Wide::min();
  if (monoid == Monoid::kMin) state = narrow ? Narrow::max() : Wide::max();
  for (const std::int64_t value : values) {
    if (monoid == Monoid::kSum) state = wrapping_add(state, value);
    if (monoid == Monoid::kProduct) state = wrapping_mul(state, value);
    if (monoid == Monoid::kMax) state = std::max(state, value);
    if (monoid == Monoid::kMin) state = std::min(state, value);
  }
  return wrap(dtype, state);
}

template <class T>
std::int64_t first_maximum(const std::vector<T>& values) {
  if (values.empty()) throw UsageError("argmax: an axis of size 0 has no maximum");
  std::size_t best = 0;
  for (std::size_t i = 1; i < values.size(); ++i) {
    const bool better = std::is_same_v<T, double> ? greater(static_cast<double>(values[i]),
                                                            static_cast<double>(values[best]))
                                                  : values[i] > values[best];
    if (better) best = i;
  }
  return static_cast<std::int64_t>(best);
}

/// The moments of no values are 0 and 0.
std::pair<double, double> moments(const std::vector<double>& values) {
  long double mean = 0;
  for (const double value : values) mean += value;
  if (!values.empty()) mean /= static_cast<long double>(values.size());
  long double m2 = 0;
  for (const double value : values) m2 += (value - mean) * (value - mean);
  return {static_cast<double>(mean), static_cast<double>(m2)};
}

/// The operand's elements by result, each list in row-major order.
template <class T>
std::vector<std::vector<T>> group(const Evaluation& e) {
  const Tensor& operand = e.operands[0];
  std::vector<bool> reduced(operand.shape().size(), false);
  for (const std::int64_t axis : e.attr<std::vector<std::int64_t>>("axes"))
    reduced[static_cast<std::size_t>(axis)] = true;
  const Shape kept_shape = e.result_shape();
  std::vector<std::vector<T>> lists(static_cast<std::size_t>(num_elements(kept_shape)));
  std::size_t position = 0;
  for_each_index(operand.shape(), [&](const Index& index) {
    Index kept;
    for (std::size_t axis = 0; axis < index.size(); ++axis)
      if (!reduced[axis]) kept.push_back(index[axis]);
    lists[static_cast<std::size_t>(linear_index(kept_shape, kept))].push_back(
        operand.span<T>()[position++]);
  });
  return lists;
}

}  // namespace

std::vector<Tensor> evaluate_reduction(const Evaluation& e) {
  const DType dtype = e.operand(0).dtype;
  std::vector<Tensor> results;
  for (std::size_t i = 0; i < e.expr().results.size(); ++i)
    results.emplace_back(wide(e.result(i).dtype), e.result_shape(i));
  const Monoid monoid = info(e.expr().op).walks[0][0];
  if (!is_float(dtype)) {
    const auto lists = group<std::int64_t>(e);
    const auto out = results[0].span<std::int64_t>();
    for (std::size_t i = 0; i < lists.size(); ++i)
      out[i] = monoid == Monoid::kArgmax ? first_maximum(lists[i])
                                         : reduce_integer(monoid, dtype, lists[i]);
    return results;
  }
  const auto lists = group<double>(e);
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const auto position = static_cast<std::int64_t>(i);
    switch (as<ReductionOp>(e.expr().op)) {
      case ReductionOp::argmax:
        results[0].set(position, static_cast<double>(first_maximum(lists[i])));
        break;
      case ReductionOp::welford: {
        const auto [mean, m2] = moments(lists[i]);
        results[0].set(position, mean);
        results[1].set(position, m2);
        break;
      }
      case ReductionOp::logsumexp: results[0].set(position, reduce_logsumexp(lists[i])); break;
      case ReductionOp::sum:
      case ReductionOp::prod:
      case ReductionOp::max:
      case ReductionOp::min: results[0].set(position, reduce_real(monoid, lists[i])); break;
    }
  }
  return results;
}

}  // namespace segfuse::ir
