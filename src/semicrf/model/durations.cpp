#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/sizes.h"
#include "segfuse/error.h"
#include "segfuse/semicrf_models.h"
#include "semicrf/model/problem.h"

namespace segfuse::semicrf {
namespace {

/// log(1 + exp(x)), for any x.
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

double sigmoid(double x) {
  return x >= 0 ? 1.0 / (1.0 + std::exp(-x)) : std::exp(x) / (1.0 + std::exp(x));
}

void check_model(const DurationModel& model) {
  if (model.longest < 1)
    throw UsageError(fmt::format(
        "semicrf: a duration model needs a longest duration of at least 1, not {}", model.longest));
  if (model.family == DurationFamily::kBuckets && model.buckets < 1)
    throw UsageError(
        fmt::format("semicrf: a duration model needs at least one bucket, not {}", model.buckets));
}

/// Which bucket each duration is in.
std::vector<std::int64_t> bucket_of(const DurationModel& model) {
  const std::vector<std::int64_t> starts = duration_buckets(model);
  std::vector<std::int64_t> bucket(at(model.longest));
  for (std::int64_t k = 0; k < model.longest; ++k)
    bucket[at(k)] = std::upper_bound(starts.begin(), starts.end(), k + 1) - starts.begin() - 1;
  return bucket;
}

/// One label's scores and their derivatives by its parameters. Where scores are normalised, terms
/// that do not depend on the duration are left out of both: they cancel, and may overflow.
class Label {
 public:
  Label(const DurationModel& model, std::vector<double> parameters)
      : model_(model), p_(std::move(parameters)), scores_(at(model.longest)) {
    const bool constants = !model.normalise;
    switch (model.family) {
      case DurationFamily::kTable: scores_ = p_; break;
      case DurationFamily::kGeometric: geometric(constants); break;
      case DurationFamily::kNegativeBinomial: negative_binomial(constants); break;
      case DurationFamily::kPoisson: poisson(constants); break;
      case DurationFamily::kLogNormal: log_normal(constants); break;
      case DurationFamily::kBuckets:
        bucket_ = bucket_of(model);
        for (std::size_t k = 0; k < scores_.size(); ++k) scores_[k] = p_[at(bucket_[k])];
        break;
    }
  }

  /// Subtracts the log-sum of the scores; false when it is not finite.
  bool normalise() {
    const double max = *std::max_element(scores_.begin(), scores_.end());
    if (!std::isfinite(max)) return false;
    double sum = 0.0;
    for (const double score : scores_) sum += std::exp(score - max);
    for (double& score : scores_) score -= max + std::log(sum);
    return std::isfinite(sum);
  }
  const std::vector<double>& scores() const { return scores_; }

  /// The gradient by the parameters from the gradient by the final scores.
  std::vector<double> gradient(std::vector<double> g) const {
    if (model_.normalise) {
      double total = 0.0;
      for (const double v : g) total += v;
      for (std::size_t k = 0; k < g.size(); ++k) g[k] -= std::exp(scores_[k]) * total;
    }
    if (model_.family == DurationFamily::kTable) return g;
    std::vector<double> out(p_.size(), 0.0);
    for (std::size_t k = 0; k < g.size(); ++k) {
      if (!bucket_.empty()) {
        out[at(bucket_[k])] += g[k];
        continue;
      }
      for (std::size_t i = 0; i < out.size(); ++i) out[i] += g[k] * derivatives_[i][k];
    }
    return out;
  }

 private:
  void set(std::size_t k, double score, double first, double second = 0.0) {
    if (derivatives_.empty()) derivatives_.assign(2, std::vector<double>(scores_.size()));
    scores_[k] = score;
    derivatives_[0][k] = first;
    derivatives_[1][k] = second;
  }
  void geometric(bool constants) {
    const double log_q = -softplus(-p_[0]);
    const double q = sigmoid(p_[0]);
    const double stop = sigmoid(-p_[0]);
    for (std::size_t k = 0; k < scores_.size(); ++k) {
      const auto x = static_cast<double>(k);
      set(k, x * log_q - (constants ? softplus(p_[0]) : 0.0), x * stop - (constants ? q : 0.0));
    }
  }
  void negative_binomial(bool constants) {
    const double log_r = p_[0];
    const double r = std::exp(log_r);
    const double log_q = -softplus(-p_[1]);
    const double log_stop = -softplus(p_[1]);
    const double stop = sigmoid(-p_[1]);
    double log_rising = 0.0;  // log Gamma(x + r) - log Gamma(r) - log Gamma(x + 1)
    double slope = 0.0;       // its derivative by log r
    for (std::size_t k = 0; k < scores_.size(); ++k) {
      const auto x = static_cast<double>(k);
      if (k > 0) {
        // log(r + x - 1), whatever exp(log_r) over- or underflows to.
        const double relative = k == 1 ? 0.0 : (x - 1.0) * std::exp(-log_r);
        log_rising += log_r > 0.0 || k == 1 ? log_r + std::log1p(relative) : std::log(r + x - 1.0);
        log_rising -= std::log(x);
        slope += 1.0 / (1.0 + relative);
      }
      set(k, log_rising + x * log_q + (constants ? r * log_stop : 0.0),
          slope + (constants ? r * log_stop : 0.0),
          x * stop - (constants ? r * sigmoid(p_[1]) : 0.0));
    }
  }
  void poisson(bool constants) {
    const double rate = std::exp(p_[0]);
    double log_factorial = 0.0;
    for (std::size_t k = 0; k < scores_.size(); ++k) {
      const auto x = static_cast<double>(k);
      if (k > 0) log_factorial += std::log(x);
      set(k, x * p_[0] - log_factorial - (constants ? rate : 0.0), x - (constants ? rate : 0.0));
    }
  }
  void log_normal(bool constants) {
    constexpr double kHalfLogTwoPi = 0.91893853320467274178;
    const double sigma = std::exp(p_[1]);
    for (std::size_t k = 0; k < scores_.size(); ++k) {
      const double log_d = std::log(static_cast<double>(k + 1));
      const double z = (log_d - p_[0]) / sigma;
      set(k, -log_d - 0.5 * z * z - (constants ? p_[1] + kHalfLogTwoPi : 0.0), z / sigma,
          z * z - (constants ? 1.0 : 0.0));
    }
  }

  const DurationModel& model_;
  std::vector<double> p_;
  std::vector<double> scores_;
  std::vector<std::vector<double>> derivatives_;
  std::vector<std::int64_t> bucket_;
};

void check_shape(const char* name, std::int64_t rows, std::int64_t columns,
                 std::int64_t wanted_rows, std::int64_t wanted_columns) {
  if (rows != wanted_rows || columns != wanted_columns)
    throw UsageError(fmt::format("semicrf: the {} have shape ({}, {}), expected ({}, {})", name,
                                 rows, columns, wanted_rows, wanted_columns));
}

/// Label c, normalised where the model says so.
template <class T>
Label make_label(const DurationModel& model, const View<const T, 2>& parameters, std::int64_t c) {
  const bool may_forbid =
      model.family == DurationFamily::kTable || model.family == DurationFamily::kBuckets;
  std::vector<double> values;
  for (std::int64_t i = 0; i < parameters.extent(0); ++i) {
    values.push_back(static_cast<double>(parameters(i, c)));
    if (!std::isfinite(values.back()) && !(may_forbid && values.back() == kNegInf))
      throw DataError(
          fmt::format("semicrf: duration parameter [{}, {}] is {}", i, c, values.back()));
  }
  Label label(model, std::move(values));
  const bool some = !model.normalise || label.normalise();
  const std::vector<double>& scores = label.scores();
  if (!some || std::any_of(scores.begin(), scores.end(), [](double v) { return std::isnan(v); }))
    throw DataError(fmt::format(
        "semicrf: the duration parameters of label {} leave no duration a probability", c));
  return label;
}

}  // namespace

std::int64_t duration_parameters(const DurationModel& model) {
  check_model(model);
  switch (model.family) {
    case DurationFamily::kTable: return model.longest;
    case DurationFamily::kGeometric:
    case DurationFamily::kPoisson: return 1;
    case DurationFamily::kNegativeBinomial:
    case DurationFamily::kLogNormal: return 2;
    default: return static_cast<std::int64_t>(duration_buckets(model).size());
  }
}

std::vector<std::int64_t> duration_buckets(const DurationModel& model) {
  check_model(model);
  std::vector<std::int64_t> starts;
  const double ratio = std::log(static_cast<double>(model.longest) + 1.0);
  for (std::int64_t i = 0; i < model.buckets; ++i) {
    const double edge =
        std::exp(ratio * static_cast<double>(i) / static_cast<double>(model.buckets));
    const auto start = static_cast<std::int64_t>(std::nearbyint(edge));
    if (start <= model.longest && (starts.empty() || start > starts.back()))
      starts.push_back(start);
  }
  return starts;
}

template <class T>
void duration_scores(const DurationModel& model, const View<const T, 2>& parameters,
                     const View<T, 2>& scores) {
  const std::int64_t classes = parameters.extent(1);
  check_shape("duration parameters", parameters.extent(0), classes, duration_parameters(model),
              classes);
  check_shape("duration scores", scores.extent(0), scores.extent(1), model.longest, classes);
  for (std::int64_t c = 0; c < classes; ++c) {
    const Label label = make_label(model, parameters, c);
    for (std::int64_t k = 0; k < model.longest; ++k)
      scores(k, c) = static_cast<T>(label.scores()[at(k)]);
  }
}

template <class T>
void duration_gradient(const DurationModel& model, const View<const T, 2>& parameters,
                       const View<const std::type_identity_t<T>, 2>& score_gradient,
                       const View<T, 2>& parameter_gradient) {
  const std::int64_t classes = parameters.extent(1);
  const std::int64_t count = duration_parameters(model);
  check_shape("duration parameters", parameters.extent(0), classes, count, classes);
  check_shape("score gradients", score_gradient.extent(0), score_gradient.extent(1), model.longest,
              classes);
  check_shape("parameter gradients", parameter_gradient.extent(0), parameter_gradient.extent(1),
              count, classes);
  for (std::int64_t c = 0; c < classes; ++c) {
    std::vector<double> g;
    for (std::int64_t k = 0; k < model.longest; ++k)
      g.push_back(static_cast<double>(score_gradient(k, c)));
    const std::vector<double> out = make_label(model, parameters, c).gradient(std::move(g));
    for (std::int64_t i = 0; i < count; ++i) parameter_gradient(i, c) = static_cast<T>(out[at(i)]);
  }
}

template <class T>
LinearChain<T>::LinearChain(const View<const T, 3>& emission, const View<const T, 2>& transition,
                            const View<const T, 1>& initial, const View<const T, 1>& final,
                            const Lengths& lengths)
    : duration_(at(emission.extent(2)), T{0}) {
  potentials_.emission = emission;
  potentials_.transition = with_leading_axis(transition);
  potentials_.duration = {duration_.data(), {1, emission.extent(2)}};
  potentials_.initial = initial;
  potentials_.final = final;
  potentials_.lengths = lengths;
}

template <class Int>
Segmentations chain_from_labels(const View<const Int, 2>& labels, const Lengths& lengths,
                                LabelRules rules) {
  rules.max_duration = 1;
  rules.long_runs = LongRuns::kSplit;
  return segmentations_from_labels(labels, lengths, rules);
}

#define SEGFUSE_INSTANTIATE(T)                                                                     \
  template void duration_scores(const DurationModel&, const View<const T, 2>&, const View<T, 2>&); \
  template void duration_gradient(const DurationModel&, const View<const T, 2>&,                   \
                                  const View<const T, 2>&, const View<T, 2>&);                     \
  template class LinearChain<T>;

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
#undef SEGFUSE_INSTANTIATE
template Segmentations chain_from_labels(const View<const std::int32_t, 2>&, const Lengths&,
                                         LabelRules);
template Segmentations chain_from_labels(const View<const std::int64_t, 2>&, const Lengths&,
                                         LabelRules);

}  // namespace segfuse::semicrf
