#include "semicrf/exact/lattice_kernels.h"

#include "base/code/simd_targets.h"
#include "semicrf/model/problem.h"

// Vectors of two doubles gain nothing over SSE4's.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | SEGFUSE_NO_SVE)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "semicrf/exact/lattice_kernels.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Lanes = hn::CappedTag<double, kLanes>;
using Vec = hn::Vec<Lanes>;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Log sums of the columns; `each` gets every term relative to its column's largest, `all` the sums
/// of these.
template <class Each, class All>
HWY_INLINE void log_sum_and(const double* rows, std::int64_t n, std::int64_t stride, double* out,
                            const Each& each, const All& all) {
  const Lanes d;
  const Vec none = hn::Set(d, kNegInf);
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    Vec max = none;
    for (std::int64_t i = 0; i < n; ++i) max = hn::Max(max, hn::Load(d, rows + i * stride + v));
    const auto some = hn::Gt(max, none);
    const Vec reference = hn::IfThenElseZero(some, max);
    Vec sum = hn::Zero(d);
    for (std::int64_t i = 0; i < n; ++i) {
      const Vec term = hn::Exp(d, hn::Sub(hn::Load(d, rows + i * stride + v), reference));
      each(term, i * stride + v);
      sum = hn::Add(sum, term);
    }
    // At least one term is 1, so the logarithm is of a normal number.
    const Vec safe = hn::IfThenElse(some, sum, hn::Set(d, 1.0));
    hn::Store(hn::IfThenElse(some, hn::Add(reference, hn::Log(d, safe)), none), d, out + v);
    all(safe, v);
  }
}

void log_sum(const double* rows, std::int64_t n, std::int64_t stride, double* out) {
  const auto nothing = [](Vec, std::int64_t) {};
  log_sum_and(rows, n, stride, out, nothing, nothing);
}

void log_sum_share(double* rows, std::int64_t n, std::int64_t stride, double* out, double* total) {
  const Lanes d;
  log_sum_and(
      rows, n, stride, out, [&](Vec term, std::int64_t at) { hn::Store(term, d, rows + at); },
      [&](Vec sum, std::int64_t at) { hn::Store(sum, d, total + at); });
}

void scale(const double* factor, std::int64_t n, std::int64_t stride, double* rows) {
  const Lanes d;
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    const Vec by = hn::Load(d, factor + v);
    for (std::int64_t i = 0; i < n; ++i) {
      double* row = rows + i * stride + v;
      hn::Store(hn::Mul(hn::Load(d, row), by), d, row);
    }
  }
}

void exps_of_columns(const double* rows, std::int64_t n, std::int64_t stride, double* linear,
                     double* column_max) {
  const Lanes d;
  const Vec none = hn::Set(d, kNegInf);
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    Vec max = none;
    for (std::int64_t i = 0; i < n; ++i) max = hn::Max(max, hn::Load(d, rows + i * stride + v));
    hn::Store(max, d, column_max + v);
    const Vec reference = hn::IfThenElseZero(hn::Gt(max, none), max);
    for (std::int64_t i = 0; i < n; ++i)
      hn::Store(hn::Exp(d, hn::Sub(hn::Load(d, rows + i * stride + v), reference)), d,
                linear + i * stride + v);
  }
}

void largest(const double* rows, std::int64_t n, std::int64_t stride, double* out) {
  const Lanes d;
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    Vec max = hn::Set(d, kNegInf);
    for (std::int64_t i = 0; i < n; ++i) max = hn::Max(max, hn::Load(d, rows + i * stride + v));
    hn::Store(max, d, out + v);
  }
}

void add_each(const double* values, const double* matrix, std::int64_t n, std::int64_t stride,
              double* rows) {
  const Lanes d;
  for (std::int64_t i = 0; i < n; ++i) {
    const Vec value = hn::Set(d, values[i]);
    for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d)))
      hn::Store(hn::Add(value, hn::Load(d, matrix + i * stride + v)), d, rows + i * stride + v);
  }
}

void extend(const Extension& x, std::int64_t n, std::int64_t stride, double* content,
            double* rows) {
  const Lanes d;
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    Vec sum = hn::Load(d, content + v);
    for (std::int64_t i = 0; i < n; ++i) {
      sum = hn::Add(sum, hn::Load(d, x.frame + i * x.frame_step + v));
      const Vec beyond =
          hn::Add(hn::Load(d, x.beyond + i * x.beyond_step + v), hn::Set(d, x.shifts[i]));
      const Vec inside = hn::Add(sum, hn::Load(d, x.duration + i * stride + v));
      hn::Store(hn::Add(beyond, inside), d, rows + i * stride + v);
    }
    hn::Store(sum, d, content + v);
  }
}

void add_exp(const double* rows, const double* offset, double scalar, std::int64_t n,
             std::int64_t stride, double* sums) {
  const Lanes d;
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    const Vec shift = hn::Add(hn::Load(d, offset + v), hn::Set(d, scalar));
    for (std::int64_t i = 0; i < n; ++i) {
      const Vec term = hn::Exp(d, hn::Add(hn::Load(d, rows + i * stride + v), shift));
      double* sum = sums + i * stride + v;
      hn::Store(hn::Add(hn::Load(d, sum), term), d, sum);
    }
  }
}

void sum_tangents(const double* rows, const double* tangents, std::int64_t n, std::int64_t stride,
                  double* out) {
  const Lanes d;
  const Vec none = hn::Set(d, kNegInf);
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    Vec max = none;
    for (std::int64_t i = 0; i < n; ++i) max = hn::Max(max, hn::Load(d, rows + i * stride + v));
    const auto some = hn::Gt(max, none);
    const Vec reference = hn::IfThenElseZero(some, max);
    Vec sum = hn::Zero(d);
    Vec along = hn::Zero(d);
    for (std::int64_t i = 0; i < n; ++i) {
      const Vec row = hn::Load(d, rows + i * stride + v);
      const Vec term = hn::Exp(d, hn::Sub(row, reference));
      sum = hn::Add(sum, term);
      const Vec product = hn::Mul(term, hn::Load(d, tangents + i * stride + v));
      along = hn::Add(along, hn::IfThenElseZero(hn::Gt(row, none), product));
    }
    const Vec safe = hn::IfThenElse(some, sum, hn::Set(d, 1.0));
    hn::Store(hn::Div(along, safe), d, out + v);
  }
}

void exp_tangents(const ExpTangents& x, std::int64_t n, std::int64_t stride, double* sums) {
  const Lanes d;
  const Vec none = hn::Set(d, kNegInf);
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    const Vec shift = hn::Add(hn::Load(d, x.offset + v), hn::Set(d, x.scalar));
    const Vec shift_tangent =
        hn::Add(hn::Load(d, x.offset_tangent + v), hn::Set(d, x.scalar_tangent));
    for (std::int64_t i = 0; i < n; ++i) {
      const Vec exponent = hn::Add(hn::Load(d, x.rows + i * stride + v), shift);
      const Vec tangent = hn::Add(hn::Load(d, x.tangents + i * stride + v), shift_tangent);
      const Vec term = hn::Mul(hn::Exp(d, exponent), tangent);
      double* sum = sums + i * stride + v;
      hn::Store(hn::Add(hn::Load(d, sum), hn::IfThenElseZero(hn::Gt(exponent, none), term)), d,
                sum);
    }
  }
}

void exps(const double* values, double shift, std::int64_t stride, double* out) {
  const Lanes d;
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d)))
    hn::Store(hn::Exp(d, hn::Add(hn::Load(d, values + v), hn::Set(d, shift))), d, out + v);
}

bool product(const double* weights, const double* matrix, const double* column_shift, double shift,
             std::int64_t n, std::int64_t stride, double* out) {
  const Lanes d;
  const Vec none = hn::Set(d, kNegInf);
  // Terms below the range of doubles are lost; next to this they are nothing.
  const Vec least = hn::Set(d, 1e-200);
  bool all_good = true;
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    Vec sum = hn::Zero(d);
    for (std::int64_t i = 0; i < n; ++i)
      sum = hn::MulAdd(hn::Set(d, weights[i]), hn::Load(d, matrix + i * stride + v), sum);
    const Vec column = hn::Load(d, column_shift + v);
    const auto possible = hn::Gt(column, none);
    const auto good = hn::Ge(sum, least);
    const Vec log = hn::Log(d, hn::IfThenElse(good, sum, hn::Set(d, 1.0)));
    const Vec value = hn::Add(hn::Add(log, hn::Set(d, shift)), column);
    const Vec trusted = hn::IfThenElse(good, value, hn::Set(d, kNaN));
    hn::Store(hn::IfThenElse(possible, trusted, none), d, out + v);
    all_good = all_good && hn::AllTrue(d, hn::Or(good, hn::Not(possible)));
  }
  return !all_good;
}

void outer(const double* a, const double* b, std::int64_t n, std::int64_t stride, double* sums) {
  const Lanes d;
  for (std::int64_t v = 0; v < stride; v += static_cast<std::int64_t>(hn::Lanes(d))) {
    const Vec factor = hn::Load(d, b + v);
    for (std::int64_t i = 0; i < n; ++i) {
      double* sum = sums + i * stride + v;
      hn::Store(hn::MulAdd(hn::Set(d, a[i]), factor, hn::Load(d, sum)), d, sum);
    }
  }
}

}  // namespace
}  // namespace segfuse::semicrf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace segfuse::semicrf {
namespace {
HWY_EXPORT(log_sum);
HWY_EXPORT(add_exp);
HWY_EXPORT(log_sum_share);
HWY_EXPORT(scale);
HWY_EXPORT(exps_of_columns);
HWY_EXPORT(sum_tangents);
HWY_EXPORT(exp_tangents);
HWY_EXPORT(exps);
HWY_EXPORT(largest);
HWY_EXPORT(add_each);
HWY_EXPORT(extend);
HWY_EXPORT(product);
HWY_EXPORT(outer);
}  // namespace

void log_sum_rows(const double* rows, std::int64_t n, std::int64_t stride, double* out) {
  HWY_DYNAMIC_DISPATCH(log_sum)(rows, n, stride, out);
}

void log_sum_shares(double* rows, std::int64_t n, std::int64_t stride, double* out, double* total) {
  HWY_DYNAMIC_DISPATCH(log_sum_share)(rows, n, stride, out, total);
}

void scale_rows(const double* factor, std::int64_t n, std::int64_t stride, double* rows) {
  HWY_DYNAMIC_DISPATCH(scale)(factor, n, stride, rows);
}

void exp_columns(const double* rows, std::int64_t n, std::int64_t stride, double* linear,
                 double* column_max) {
  HWY_DYNAMIC_DISPATCH(exps_of_columns)(rows, n, stride, linear, column_max);
}

void add_exp_rows(const double* rows, const double* offset, double scalar, std::int64_t n,
                  std::int64_t stride, double* sums) {
  HWY_DYNAMIC_DISPATCH(add_exp)(rows, offset, scalar, n, stride, sums);
}

void log_sum_tangents(const double* rows, const double* tangents, std::int64_t n,
                      std::int64_t stride, double* out) {
  HWY_DYNAMIC_DISPATCH(sum_tangents)(rows, tangents, n, stride, out);
}

void add_exp_tangents(const ExpTangents& of, std::int64_t n, std::int64_t stride, double* sums) {
  HWY_DYNAMIC_DISPATCH(exp_tangents)(of, n, stride, sums);
}

void max_rows(const double* rows, std::int64_t n, std::int64_t stride, double* out) {
  HWY_DYNAMIC_DISPATCH(largest)(rows, n, stride, out);
}

void add_to_rows(const double* values, const double* matrix, std::int64_t n, std::int64_t stride,
                 double* rows) {
  HWY_DYNAMIC_DISPATCH(add_each)(values, matrix, n, stride, rows);
}

void extend_rows(const Extension& from, std::int64_t n, std::int64_t stride, double* content,
                 double* rows) {
  HWY_DYNAMIC_DISPATCH(extend)(from, n, stride, content, rows);
}

void exp_vector(const double* values, double shift, std::int64_t stride, double* out) {
  HWY_DYNAMIC_DISPATCH(exps)(values, shift, stride, out);
}

bool log_product(const double* weights, const double* matrix, const double* column_shift,
                 double shift, std::int64_t n, std::int64_t stride, double* out) {
  return HWY_DYNAMIC_DISPATCH(product)(weights, matrix, column_shift, shift, n, stride, out);
}

void add_outer(const double* a, const double* b, std::int64_t n, std::int64_t stride,
               double* sums) {
  HWY_DYNAMIC_DISPATCH(outer)(a, b, n, stride, sums);
}

}  // namespace segfuse::semicrf
#endif
