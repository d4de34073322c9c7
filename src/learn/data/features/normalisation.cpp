#include <fmt/core.h>

#include <cmath>

#include "base/check.h"
#include "learn/data/features/spectrum.h"
#include "segfuse/data.h"
#include "segfuse/error.h"

namespace segfuse {
namespace data {
namespace {

constexpr double kConstant = 1e-10;  // deviations below are those of a constant column

/// Calls visit(row) for each row of `width` values.
template <class Visit>
void for_rows(std::span<const float> values, std::int64_t frames, std::int64_t columns,
              Visit visit) {
  for (std::int64_t t = 0; t < frames; ++t) visit(&values[static_cast<std::size_t>(t * columns)]);
}

struct Moments {
  std::vector<double> mean, variance;
};

/// Two passes over anything that can call visit(row pointer) for all rows.
template <class Rows>
Moments moments_of(std::size_t width, Rows rows) {
  Moments out{std::vector<double>(width), std::vector<double>(width)};
  double count = 0;
  rows([&](const float* row) {
    ++count;
    for (std::size_t d = 0; d < width; ++d) out.mean[d] += static_cast<double>(row[d]);
  });
  for (double& mean : out.mean) mean /= count;
  rows([&](const float* row) {
    for (std::size_t d = 0; d < width; ++d) {
      const double off = static_cast<double>(row[d]) - out.mean[d];
      out.variance[d] += off * off;
    }
  });
  for (double& variance : out.variance) variance /= count;
  return out;
}

double usable_deviation(double variance, double mean) {
  const double deviation = std::sqrt(variance);
  return deviation > kConstant * std::max(1.0, std::abs(mean)) ? deviation : 1;
}

}  // namespace

ColumnScale scale_of_columns(std::size_t width,
                             const std::function<void(const RowVisitor&)>& for_all_rows) {
  const Moments moments = moments_of(width, for_all_rows);
  ColumnScale out{moments.mean, moments.variance};
  for (std::size_t d = 0; d < width; ++d)
    out.deviation[d] = usable_deviation(moments.variance[d], moments.mean[d]);
  return out;
}

void ColumnScale::apply(std::span<float> values, std::int64_t columns) const {
  for (std::size_t at = 0; at < values.size(); at += static_cast<std::size_t>(columns))
    for (std::size_t d = 0; d < mean.size(); ++d)
      values[at + d] =
          static_cast<float>((static_cast<double>(values[at + d]) - mean[d]) / deviation[d]);
}

void normalise_columns(std::span<float> values, std::int64_t frames, std::int64_t columns,
                       std::int64_t width) {
  scale_of_columns(static_cast<std::size_t>(width), [&](const RowVisitor& visit) {
    for_rows(values, frames, columns, visit);
  }).apply(values, columns);
}

}  // namespace data

void Normalisation::apply(Tensor& features) const {
  SEGFUSE_CHECK(mean.size() == deviation.size(), "{} means and {} deviations", mean.size(),
                deviation.size());
  if (features.shape().size() != 2 || features.shape()[1] != static_cast<std::int64_t>(mean.size()))
    throw UsageError(fmt::format("features of shape {}; the normalisation has {} columns",
                                 to_string(features.shape()), mean.size()));
  const std::span<float> values = features.span<float>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t d = i % mean.size();
    values[i] = static_cast<float>((static_cast<double>(values[i]) - mean[d]) / deviation[d]);
  }
}

Normalisation compute_normalisation(std::span<const Tensor> features) {
  if (features.empty()) throw UsageError("no features to compute a normalisation from");
  const Shape& first = features[0].shape();
  for (const Tensor& tensor : features)
    if (tensor.shape().size() != 2 || first.size() != 2 || tensor.shape()[1] != first[1])
      throw UsageError(fmt::format("features of shapes {} and {}; expected (T, D) with one D",
                                   to_string(first), to_string(tensor.shape())));
  const data::Moments moments =
      data::moments_of(static_cast<std::size_t>(first[1]), [&](auto visit) {
        for (const Tensor& tensor : features)
          data::for_rows(tensor.span<float>(), tensor.shape()[0], tensor.shape()[1], visit);
      });
  Normalisation out{moments.mean, moments.variance};
  for (std::size_t d = 0; d < out.mean.size(); ++d)
    out.deviation[d] = data::usable_deviation(moments.variance[d], moments.mean[d]);
  return out;
}

}  // namespace segfuse
