// Attention row by row, as it is written.

#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "ir/attention.h"
#include "ir/interpret/evaluate.h"

namespace segfuse::ir {
namespace {

constexpr double kLowest = -std::numeric_limits<double>::infinity();

/// One attention over wide tensors.
class Attended {
 public:
  explicit Attended(const Evaluation& e)
      : e_(e),
        parts_(attention_operands(e.fusion, e.expr().op, e.expr().operands)),
        scale_(e.attr<double>("scale")),
        fill_(e.attr<double>("fill")) {
    const Shape& q = e.operands[0].shape();
    const std::size_t rank = q.size();
    rows = q[rank - 2];
    inner = q[rank - 1];
    columns = e.operands[1].shape()[rank - 2];
    outer = e.operands[2].shape()[rank - 1];
    leading.assign(q.begin(), q.end() - 2);
    const auto& ahead = e.attr<Extents>("ahead");
    if (!ahead.empty()) ahead_ = e.sizes.of(ahead[0]) - e.sizes.of(ahead[1]);
  }

  double at(std::size_t operand, std::int64_t i) const { return e_.operands[operand].at(i); }
  std::size_t rest() const { return parts_.rest; }
  double scale() const { return scale_; }

  bool seen(const Index& batch, std::int64_t m, std::int64_t n) const {
    if (ahead_ && n > m + *ahead_) return false;
    return !parts_.mask || spread(*parts_.mask, batch, m, n) != 0;
  }

  /// Of one row; `b`: the number of the batch.
  std::vector<double> scores(const Index& batch, std::int64_t b, std::int64_t m) const {
    std::vector<double> s;
    for (std::int64_t n = 0; n < columns; ++n) {
      double sum = 0;
      for (std::int64_t d = 0; d < inner; ++d)
        sum += at(0, (b * rows + m) * inner + d) * at(1, (b * columns + n) * inner + d);
      sum *= scale_;
      if (parts_.bias) sum += spread(*parts_.bias, batch, m, n);
      s.push_back(seen(batch, m, n) ? sum : fill_);
    }
    return s;
  }

  std::int64_t rows = 0, columns = 0, inner = 0, outer = 0;
  Shape leading;

 private:
  double spread(std::size_t operand, Index index, std::int64_t m, std::int64_t n) const {
    const Shape& shape = e_.operands[operand].shape();
    index.push_back(m);
    index.push_back(n);
    for (std::size_t a = 0; a < shape.size(); ++a)
      if (shape[a] == 1) index[a] = 0;
    return e_.operands[operand].at(linear_index(shape, index));
  }

  const Evaluation& e_;
  AttentionOperands parts_;
  double scale_, fill_;
  std::optional<std::int64_t> ahead_;
};

/// Exponentials of scores less their greatest, if it is finite; and NaN makes all of them NaN.
struct Powers {
  std::vector<double> of;
  double most = kLowest;
  double sum = 0;

  explicit Powers(std::vector<double> s) : of(std::move(s)) {
    for (const double x : of)
      most = std::isnan(x) || std::isnan(most) ? x + most : std::max(most, x);
    for (double& x : of) sum += x = std::exp(std::isinf(most) ? x : x - most);
  }
  double log_sum() const { return std::isinf(most) ? most : most + std::log(sum); }
  double weight(std::int64_t n) const { return of[static_cast<std::size_t>(n)] / sum; }
};

}  // namespace

std::vector<Tensor> evaluate_attention(const Evaluation& e) {
  const Attended a(e);
  Tensor out = Tensor::zeros(DType::kF64, e.result_shape(0));
  Tensor logs(DType::kF64, e.result_shape(1));
  std::int64_t b = 0;
  for_each_index(a.leading, [&](const Index& batch) {
    for (std::int64_t m = 0; m < a.rows; ++m) {
      const Powers p(a.scores(batch, b, m));
      const std::int64_t row = b * a.rows + m;
      logs.set(row, p.log_sum());
      for (std::int64_t n = 0; n < a.columns; ++n)
        for (std::int64_t j = 0; j < a.outer; ++j)
          out.set(row * a.outer + j, out.at(row * a.outer + j) +
                                         p.weight(n) * a.at(2, (b * a.columns + n) * a.outer + j));
    }
    ++b;
  });
  return {out, logs};
}

std::vector<Tensor> evaluate_attention_grad(const Evaluation& e) {
  const Attended a(e);
  std::vector<Tensor> to;
  for (std::size_t i = 0; i < 3; ++i) to.push_back(Tensor::zeros(DType::kF64, e.result_shape(i)));
  const auto add = [&](std::size_t which, std::int64_t i, double x) {
    to[which].set(i, to[which].at(i) + x);
  };
  std::int64_t b = 0;
  for_each_index(a.leading, [&](const Index& batch) {
    for (std::int64_t m = 0; m < a.rows; ++m) {
      const Powers weights(a.scores(batch, b, m));
      const std::int64_t row = b * a.rows + m;
      for (std::int64_t n = 0; n < a.columns; ++n) {
        const std::int64_t column = b * a.columns + n;
        const double p = weights.weight(n);
        double dp = 0;
        for (std::int64_t j = 0; j < a.outer; ++j) {
          const double g = a.at(a.rest() + 1, row * a.outer + j);
          dp += g * a.at(2, column * a.outer + j);
          add(2, column * a.outer + j, p * g);
        }
        const double ds =
            a.seen(batch, m, n) ? p * (dp - a.at(a.rest() + 2, row)) * a.scale() : 0.0;
        for (std::int64_t d = 0; d < a.inner; ++d) {
          add(0, row * a.inner + d, ds * a.at(1, column * a.inner + d));
          add(1, column * a.inner + d, ds * a.at(0, row * a.inner + d));
        }
      }
    }
    ++b;
  });
  return to;
}

}  // namespace segfuse::ir
