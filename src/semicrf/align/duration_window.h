#pragma once
// Sums over the durations of a segment, for one label: sum over d of exp(q[i - d] + duration[d]),
// where the q arrive one by one. In double, either by logarithms or by products of numbers that are
// scaled in common; the second way falls back on the first where the scale might hide a term.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "semicrf/align/window_kernels.h"
#include "semicrf/model/problem.h"

namespace segfuse::semicrf {

/// Scores of the durations 1 .. longest of a label; there may be none.
struct DurationTable {
  std::int64_t shortest = 0;  ///< the least duration that is not forbidden
  std::int64_t longest = 0;   ///< the greatest; 0: all are forbidden
  double largest = kNegInf;
  // Both reversed, so that sums run over memory: duration d stands at [longest - d].
  std::vector<double> log;
  std::vector<double> linear;  ///< exp(log - largest)

  DurationTable() = default;
  DurationTable(const Model& model, std::int64_t label) {
    const Dims& dims = model.dims;
    const auto score = [&](std::int64_t d) {
      return model.duration[(d - 1) * dims.stride + label];
    };
    for (std::int64_t d = 1; d <= dims.max_duration; ++d) {
      if (score(d) == kNegInf) continue;
      if (shortest == 0) shortest = d;
      longest = d;
      largest = std::max(largest, score(d));
    }
    for (std::int64_t d = longest; d >= 1; --d) {
      log.push_back(score(d));
      linear.push_back(std::exp(score(d) - largest));
    }
  }
  double of(std::int64_t d) const { return log[static_cast<std::size_t>(longest - d)]; }
};

class DurationWindow {
 public:
  /// How far numbers may be above the common scale.
  static constexpr double kFar = 200.0;
  /// A sum above this, about e^-230, has lost no term that counts: those are below e^-700.
  static constexpr double kTrusted = 1e-100;

  /// Begins again. With `scaled` sums may take the fast way.
  void reset(const DurationTable& table, bool scaled) {
    table_ = &table;
    scaled_ = scaled;
    reference_ = kNegInf;
    log_.clear();
    linear_.clear();
  }
  void push(double q) {
    log_.push_back(q);
    if (!scaled_) return;
    linear_.push_back(0.0);
    if (q == kNegInf) return;
    if (q > reference_ + kFar)
      rescale(q);
    else
      linear_.back() = std::exp(q - reference_);
  }
  /// log sum over d = 1 .. min(n, longest) of exp(the d-th last q + duration[d]).
  double sum(std::int64_t n) {
    n = at_most(n);
    if (!scaled_) return sum_of_logs(n);
    if (n < 1 || reference_ == kNegInf) return kNegInf;
    const double sum = window_product(linear_.data() + std::ssize(linear_) - n,
                                      table_->linear.data() + table_->longest - n, n);
    if (sum > kTrusted) return std::log(sum) + (reference_ + table_->largest);
    const double largest = *std::max_element(log_.end() - n, log_.end());
    if (largest > kNegInf && largest < reference_ - kFar) rescale(largest);
    return sum_of_logs(n);
  }
  /// The largest of the terms.
  double max(std::int64_t n) const {
    n = at_most(n);
    return window_max(log_.data() + std::ssize(log_) - n, table_->log.data() + table_->longest - n,
                      n);
  }

 private:
  std::int64_t at_most(std::int64_t n) const {
    return std::max<std::int64_t>(0, std::min({n, table_->longest, std::ssize(log_)}));
  }
  /// Older q than a window holds are never read again.
  void rescale(double reference) {
    reference_ = reference;
    const std::int64_t n = std::min(std::ssize(log_), table_->longest + 1);
    for (std::int64_t i = std::ssize(log_) - n; i < std::ssize(log_); ++i)
      linear_[static_cast<std::size_t>(i)] =
          std::exp(log_[static_cast<std::size_t>(i)] - reference);
  }
  double sum_of_logs(std::int64_t n) const {
    const double largest = n < 1 ? kNegInf : max(n);
    if (largest == kNegInf) return kNegInf;
    double sum = 0.0;
    for (std::int64_t d = n; d >= 1; --d)
      sum += std::exp(log_[log_.size() - static_cast<std::size_t>(d)] + table_->of(d) - largest);
    return largest + std::log(sum);
  }

  const DurationTable* table_ = nullptr;
  bool scaled_ = true;
  double reference_ = kNegInf;
  std::vector<double> log_;
  std::vector<double> linear_;
};

/// log(exp(a) + exp(b)); what would add less than 1e-17 is left out.
inline double log_add(double a, double b) {
  if (a < b) std::swap(a, b);
  return b == kNegInf || b < a - 40.0 ? a : a + std::log1p(std::exp(b - a));
}

}  // namespace segfuse::semicrf
