// What a rule of rules.h sees of a call.

#pragma once

#include <recorder/bounds.h>

namespace recorder {

// The input of a rule: a call, and the result in question.
struct Seen {
  const Bounds& bounds;
  const std::vector<IValue>& arguments;
  const Tensor& result;
  int ret, item;  // the place among the returned or written ones, and in a list (-1: none)
  double limit;
  bool assumed = false;

  double within(double value) const { return value <= limit ? value : UNKNOWN; }

  // Whether the host knows the number that the operation read: it was not written meanwhile.
  bool is_here(const Tensor& tensor) const {
    return is_one_on_host(tensor) &&
           (!result.is_cpu() || tensor.unsafeGetTensorImpl()->is_wrapped_number());
  }

  double of_tensor(const Tensor& tensor) {
    if (is_here(tensor)) return within(std::abs(number_in(tensor)));
    const Bound bound = bounds.of(tensor);
    assumed = assumed || bound.assumed;
    return within(bound.value);
  }

  static double of_number(const IValue& value) {
    if (value.isDouble()) return std::abs(value.toDouble());
    if (value.isInt()) return std::abs(double(value.toInt()));
    if (value.isBool()) return value.toBool() ? 1 : 0;
    return UNKNOWN;
  }

  // The largest magnitude of an argument; of its `item` in lists of an operation on lists.
  double of(size_t i) {
    const IValue& value = arguments[i];
    if (value.isNone()) return 0;
    if (value.isTensor()) return of_tensor(value.toTensor());
    if (!value.isList()) return within(of_number(value));
    const auto list = value.toListRef();
    if (item >= 0) {
      if (size_t(item) >= list.size()) return UNKNOWN;
      const IValue& one = list[size_t(item)];
      return one.isTensor() ? of_tensor(one.toTensor()) : within(of_number(one));
    }
    if (value.isDoubleList()) return UNKNOWN;
    double most = 0;
    for (const auto& one : list) {
      most = std::max(most, one.isTensor() ? of_tensor(one.toTensor()) : UNKNOWN);
    }
    return most;
  }

  double of_or(size_t i, double otherwise) {
    const bool given = arguments[i].isTensor() && arguments[i].toTensor().defined();
    return given ? of(i) : otherwise;
  }

  // The number itself, where the host knows it; else NaN.
  double number(size_t i) const {
    const IValue& value = arguments[i];
    if (value.isTensor()) {
      return is_here(value.toTensor()) ? number_in(value.toTensor())
                                       : std::numeric_limits<double>::quiet_NaN();
    }
    if (value.isList()) {
      const auto list = value.toListRef();
      if (size_t(item) < list.size() && list[size_t(item)].isDouble())
        return list[size_t(item)].toDouble();
    } else if (value.isDouble()) {
      return value.toDouble();
    } else if (value.isInt()) {
      return double(value.toInt());
    }
    return std::numeric_limits<double>::quiet_NaN();
  }

  const Tensor& tensor(size_t i) const { return arguments[i].toTensor(); }

  double size(size_t i, int64_t dim) const {
    const Tensor& t = tensor(i);
    return t.dim() == 0 ? 1 : double(t.size(dim));
  }

  // Terms of each element of the result, where all of the operand is added up.
  double terms(size_t i) const { return double(tensor(i).numel()) / double(result.numel()); }

  // n terms of at most `each`, in any order and with any rounding: an addition that is rounded to
  // the nearest adds at most half a unit, so that n additions with n u < 1 give less than e n
  // `each`, and beyond that the sum stands still.
  double added(double n, double each) const {
    if (n > double(1 << 22)) return UNKNOWN;
    return within(n <= 1 ? n * each : 4 * n * each);
  }

  // a + |scale| b, where also b itself is computed.
  double plus(double a, double scale, double b) const {
    return within(b) < UNKNOWN ? a + scale * b : UNKNOWN;
  }
};

}  // namespace recorder
