#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ir/interpret/evaluate.h"

namespace segfuse::ir {
namespace {

using Positions = std::vector<std::int64_t>;

/// Calls visit(positions) for every line of elements along the axis of an expression; from its end
/// on if `backward`.
template <class Visit>
void for_each_line(const Evaluation& e, bool backward, Visit&& visit) {
  const Shape& shape = e.operands[0].shape();
  const auto axis = static_cast<std::size_t>(e.attr<std::int64_t>("axis"));
  Shape others = shape;
  others[axis] = 1;
  std::int64_t inner = 1;
  for (std::size_t a = axis + 1; a < shape.size(); ++a) inner *= shape[a];
  if (shape[axis] == 0) return;
  for_each_index(others, [&](const Index& index) {
    Positions line(static_cast<std::size_t>(shape[axis]));
    for (std::size_t t = 0; t < line.size(); ++t)
      line[t] = linear_index(shape, index) + static_cast<std::int64_t>(t) * inner;
    if (backward) std::reverse(line.begin(), line.end());
    visit(line);
  });
}

double log_add(double a, double b) {
  const double most = std::max(a, b);
  if (std::isnan(a) || std::isnan(b)) return a + b;
  if (std::isinf(most)) return most;
  return most + std::log(std::exp(a - most) + std::exp(b - most));
}

double joined(Op op, double before, double x) {
  if (op == Op::cumsum) return before + x;
  if (op == Op::cumprod) return before * x;
  if (op == Op::cumlogsumexp) return log_add(before, x);
  if (std::isnan(before) || std::isnan(x)) return std::numeric_limits<double>::quiet_NaN();
  return op == Op::cummax ? std::max(before, x) : std::min(before, x);
}

std::int64_t joined(Op op, std::int64_t before, std::int64_t x) {
  const auto a = static_cast<std::uint64_t>(before);
  const auto b = static_cast<std::uint64_t>(x);
  if (op == Op::cumsum) return static_cast<std::int64_t>(a + b);
  if (op == Op::cumprod) return static_cast<std::int64_t>(a * b);
  return op == Op::cummax ? std::max(before, x) : std::min(before, x);
}

/// NaN is greater than all numbers.
bool nan_last(double a, double b) { return a < b || (!std::isnan(a) && std::isnan(b)); }
bool nan_last(std::int64_t a, std::int64_t b) { return a < b; }

template <class T>
void sort_lines(const Evaluation& e, Tensor& values, Tensor& places) {
  const auto from = e.operands[0].span<T>();
  const bool descending = e.attr<std::int64_t>("descending") != 0;
  for_each_line(e, false, [&](const Positions& line) {
    Positions order(line.size());
    std::iota(order.begin(), order.end(), 0);
    const auto at = [&](std::int64_t t) {
      return from[static_cast<std::size_t>(line[static_cast<std::size_t>(t)])];
    };
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return descending ? nan_last(at(b), at(a)) : nan_last(at(a), at(b));
    });
    for (std::size_t t = 0; t < line.size(); ++t) {
      values.span<T>()[static_cast<std::size_t>(line[t])] = at(order[t]);
      places.span<std::int64_t>()[static_cast<std::size_t>(line[t])] = order[t];
    }
  });
}

}  // namespace

std::vector<Tensor> evaluate_scan(const Evaluation& e) {
  const Op op = e.expr().op;
  Tensor result(wide(e.result().dtype), e.result_shape());
  for_each_line(e, e.attr<std::int64_t>("reverse") != 0, [&](const Positions& line) {
    for (std::size_t t = 0; t < line.size(); ++t) {
      const auto at = static_cast<std::size_t>(line[t]);
      if (!is_float(e.result().dtype)) {
        const auto out = result.span<std::int64_t>();
        const std::int64_t x = e.operands[0].span<std::int64_t>()[at];
        const std::int64_t y =
            t == 0 ? x : joined(op, out[static_cast<std::size_t>(line[t - 1])], x);
        out[at] = wrap(e.result().dtype, y);
        continue;
      }
      const auto out = result.span<double>();
      const double x = e.operands[0].at(line[t]);
      const double before = t == 0 ? 0 : out[static_cast<std::size_t>(line[t - 1])];
      if (op == Op::linear_scan) {
        out[at] = (t == 0 ? 0 : x * before) + e.operands[1].at(line[t]);
      } else {
        out[at] = t == 0 ? x : joined(op, before, x);
      }
    }
  });
  return {result};
}

std::vector<Tensor> evaluate_sort(const Evaluation& e) {
  Tensor values(wide(e.result().dtype), e.result_shape());
  Tensor places(DType::kI64, e.result_shape());
  if (is_float(e.result().dtype)) {
    sort_lines<double>(e, values, places);
  } else {
    sort_lines<std::int64_t>(e, values, places);
  }
  return {values, places};
}

}  // namespace segfuse::ir
