#include "learn/model/durations.h"

#include <cmath>

#include "ir/builder.h"
#include "learn/model/segmenter.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

using ir::Extent;
using ir::ValId;
using semicrf::DurationFamily;

/// Writes the formulas of docs/semicrf.md in f64: sums over hundreds of frames cancel.
class DurationWriter {
 public:
  DurationWriter(ir::Builder& builder, const semicrf::DurationModel& model, ValId parameters)
      : b_(builder), model_(model) {
    parameters_ = b_.cast(parameters, DType::kF64);
    x_ = b_.unsqueeze(b_.iota(Extent(model_.longest), DType::kF64), 1);
  }

  ValId scores() {
    const ValId score = before_normalising();
    return b_.cast(b_.sub(score, b_.logsumexp(score, {0}, true)), DType::kF32);
  }

 private:
  ValId before_normalising() {
    switch (model_.family) {
      case DurationFamily::kGeometric: return b_.mul(x_, log_sigmoid(row(0)));
      case DurationFamily::kPoisson: return b_.sub(b_.mul(x_, row(0)), sum_up_to(log_of(x_)));
      case DurationFamily::kNegativeBinomial: {
        // log Gamma(x + r) - log Gamma(r) - log x!, a term for each frame up to x. All have that of
        // x = 0, which is log r here: it cancels.
        const ValId rising = log_sum(row(0), log_of(b_.sub(x_, number(1)), kNever));
        const ValId terms = b_.sub(rising, log_of(x_));
        return b_.add(sum_up_to(terms), b_.mul(x_, log_sigmoid(row(1))));
      }
      case DurationFamily::kLogNormal: {
        const ValId log_d = b_.log(b_.add(x_, number(1)));
        const ValId z = b_.mul(b_.sub(log_d, row(0)), b_.exp(b_.neg(row(1))));
        return b_.sub(b_.neg(log_d), b_.mul(number(0.5), b_.mul(z, z)));
      }
      case DurationFamily::kBuckets: return b_.take(parameters_, bucket(), 0);
      default: throw InternalError("a table of durations has no formula");
    }
  }

  static constexpr double kNever = -1e30;  // a logarithm of 0 that has a gradient

  ValId number(double value) { return b_.constant(value, DType::kF64); }
  ValId row(std::int64_t which) { return b_.slice_axis(parameters_, 0, Extent(which), Extent(1)); }
  /// `otherwise` where x is 0 or less.
  ValId log_of(ValId x, double otherwise = 0) {
    return b_.where(b_.gt(x, number(0.5)), b_.log(b_.maximum(x, number(1))), number(otherwise));
  }
  ValId sum_up_to(ValId terms) {
    return b_.make(ir::Op::cumsum, {terms}, {std::int64_t{0}, std::int64_t{0}});
  }
  /// log(exp(a) + exp(b))
  ValId log_sum(ValId a, ValId b) {
    const std::vector<ValId> both = b_.broadcast_together({a, b});
    return b_.logsumexp(b_.concat({b_.unsqueeze(both[0], 2), b_.unsqueeze(both[1], 2)}, 2), {2});
  }
  ValId log_sigmoid(ValId a) { return b_.neg(log_sum(number(0), b_.neg(a))); }
  /// (K): the bucket of each duration.
  ValId bucket() {
    const ValId k = b_.iota(Extent(model_.longest));
    ValId sum = b_.full(-1, {Extent(model_.longest)}, DType::kI64);
    for (const std::int64_t start : semicrf::duration_buckets(model_)) {
      const ValId begun = b_.ge(k, b_.constant(static_cast<double>(start - 1), DType::kI64));
      sum = b_.add(sum, b_.cast(begun, DType::kI64));
    }
    return sum;
  }

  ir::Builder& b_;
  const semicrf::DurationModel& model_;
  ValId parameters_, x_;
};

}  // namespace

semicrf::DurationModel duration_model(const ModelConfig& config) {
  return {config.durations, config.max_duration, config.duration_buckets,
          config.durations != DurationFamily::kTable};
}

ir::ValId duration_scores(ir::Builder& builder, const ModelConfig& config, ir::ValId parameters) {
  if (config.durations == DurationFamily::kTable) return parameters;
  const semicrf::DurationModel model = duration_model(config);
  return DurationWriter(builder, model, parameters).scores();
}

Tensor duration_scores(const ModelConfig& config, const Tensor& parameters) {
  if (config.durations == DurationFamily::kTable) return parameters;
  const semicrf::DurationModel model = duration_model(config);
  Tensor scores = Tensor::zeros(DType::kF32, {config.max_duration, config.classes});
  semicrf::duration_scores<float>(
      model, {parameters.span<float>().data(), {parameters.shape()[0], config.classes}},
      {scores.span<float>().data(), {config.max_duration, config.classes}});
  return scores;
}

}  // namespace segfuse::learn
