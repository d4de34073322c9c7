#include "learn/train/loop/crf_start.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "learn/model/durations.h"

namespace segfuse::learn {
namespace {

constexpr double kPseudoCount = 0.5;

/// log((count + a) / (total + a n)) for each of n counts.
std::vector<double> log_frequencies(const std::vector<double>& counts) {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0) +
                       kPseudoCount * static_cast<double>(counts.size());
  std::vector<double> result;
  for (const double count : counts) result.push_back(std::log((count + kPseudoCount) / total));
  return result;
}

/// Counts of durations smoothed by a triangle whose width grows with the duration.
std::vector<double> smoothed(const std::vector<double>& counts) {
  std::vector<double> result(counts.size(), 0);
  const auto n = static_cast<std::int64_t>(counts.size());
  for (std::int64_t d = 0; d < n; ++d) {
    const std::int64_t reach = 1 + d / 10;
    const double total = static_cast<double>((reach + 1) * (reach + 1));
    for (std::int64_t o = -reach; o <= reach; ++o)
      result[static_cast<std::size_t>(std::clamp<std::int64_t>(d + o, 0, n - 1))] +=
          counts[static_cast<std::size_t>(d)] * static_cast<double>(reach + 1 - std::abs(o)) /
          total;
  }
  return result;
}

void store(Tensor& tensor, std::size_t offset, const std::vector<double>& values,
           std::size_t stride = 1) {
  for (std::size_t i = 0; i < values.size(); ++i)
    tensor.span<float>()[offset + i * stride] = static_cast<float>(values[i]);
}

void start_transition(Tensor& tensor, const LabelStatistics& statistics, bool frames) {
  const std::size_t classes = statistics.initial.size();
  for (std::size_t from = 0; from < classes; ++from) {
    std::vector<double> counts = statistics.transition[from];
    if (frames)  // within a segment of d frames there are d - 1 steps to the same label
      for (std::size_t d = 0; d < statistics.duration.size(); ++d)
        counts[from] += static_cast<double>(d) * statistics.duration[d][from];
    store(tensor, from * classes, log_frequencies(counts));
  }
}

void start_duration(Tensor& tensor, const LabelStatistics& statistics) {
  const std::size_t classes = statistics.initial.size();
  for (std::size_t c = 0; c < classes; ++c) {
    std::vector<double> counts;
    for (const auto& row : statistics.duration) counts.push_back(row[c]);
    store(tensor, c, log_frequencies(smoothed(counts)), classes);
  }
}

/// The parameters of a label whose durations have these counts: the moments of the family are
/// theirs; a label without segments may last anything.
std::vector<double> fitted(const semicrf::DurationModel& model, std::vector<double> counts) {
  constexpr double kMin = 0.05;  // frames, or their square
  constexpr double kMax = 100;   // r of what varies no more than Poisson
  double n = std::accumulate(counts.begin(), counts.end(), 0.0);
  if (n == 0) std::ranges::fill(counts, 1.0), n = static_cast<double>(counts.size());
  const auto mean_of = [&](const auto& value) {
    double sum = 0;
    for (std::size_t x = 0; x < counts.size(); ++x) sum += counts[x] * value(double(x));
    return sum / n;
  };
  const double mean = std::max(kMin, mean_of([](double x) { return x; }));
  const double spread = mean_of([&](double x) { return (x - mean) * (x - mean); }) + kMin * kMin;
  switch (model.family) {
    case semicrf::DurationFamily::kGeometric:
    case semicrf::DurationFamily::kPoisson: return {std::log(mean)};
    case semicrf::DurationFamily::kNegativeBinomial: {
      const double r = spread > mean ? std::clamp(mean * mean / (spread - mean), kMin, kMax) : kMax;
      return {std::log(r), std::log(mean / r)};
    }
    case semicrf::DurationFamily::kLogNormal: {
      const double mu = mean_of([](double x) { return std::log(x + 1); });
      const double square =
          mean_of([&](double x) { return (std::log(x + 1) - mu) * (std::log(x + 1) - mu); });
      return {mu, std::log(std::sqrt(square) + kMin)};
    }
    default: break;
  }
  const std::vector<double> each = log_frequencies(smoothed(counts));
  const std::vector<std::int64_t> starts = semicrf::duration_buckets(model);
  std::vector<double> scores;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::int64_t end = i + 1 < starts.size() ? starts[i + 1] - 1 : model.longest;
    double sum = 0;
    for (std::int64_t x = starts[i] - 1; x < end; ++x)
      sum += std::exp(each[static_cast<std::size_t>(x)]);
    scores.push_back(std::log(sum / static_cast<double>(end - starts[i] + 1)));
  }
  return scores;
}

void start_family(const ModelConfig& config, Tensor& tensor, const LabelStatistics& statistics) {
  const std::size_t classes = statistics.initial.size();
  for (std::size_t c = 0; c < classes; ++c) {
    std::vector<double> counts;
    for (const auto& row : statistics.duration) counts.push_back(row[c]);
    store(tensor, c, fitted(duration_model(config), counts), classes);
  }
}

}  // namespace

std::vector<std::int64_t> duration_limits(const LabelStatistics& statistics,
                                          std::int64_t max_duration) {
  std::vector<std::int64_t> limits;
  for (const std::int64_t longest : statistics.longest)
    limits.push_back(longest == 0 ? max_duration
                                  : std::min(max_duration, longest + longest / 4 + 2));
  return limits;
}

Tensor duration_limit_table(const std::vector<std::int64_t>& limits, std::int64_t max_duration,
                            const std::vector<std::int64_t>& shortest) {
  const auto classes = static_cast<std::int64_t>(limits.size());
  Tensor table = Tensor::zeros(DType::kF32, {max_duration, classes});
  for (std::int64_t c = 0; c < classes; ++c) {
    const std::int64_t least = shortest.empty() ? 1 : shortest[static_cast<std::size_t>(c)];
    for (std::int64_t d = 1; d <= max_duration; ++d)
      if (d < least || d > limits[static_cast<std::size_t>(c)])
        table.set((d - 1) * classes + c, -std::numeric_limits<double>::infinity());
  }
  return table;
}

void start_crf(const Segmenter& segmenter, const LabelStatistics& statistics,
               std::vector<Tensor>& parameters) {
  const bool frames = segmenter.config().head == HeadKind::kLinearChain;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = segmenter.parameters()[i].name;
    if (name == "crf.transition") start_transition(parameters[i], statistics, frames);
    if (name == "crf.initial") store(parameters[i], 0, log_frequencies(statistics.initial));
    if (name == "crf.final") store(parameters[i], 0, log_frequencies(statistics.final));
    if (name != "crf.duration") continue;
    if (segmenter.config().durations == semicrf::DurationFamily::kTable)
      start_duration(parameters[i], statistics);
    else
      start_family(segmenter.config(), parameters[i], statistics);
  }
}

}  // namespace segfuse::learn
