#include "semicrf/align/band_window.h"

#include <algorithm>
#include <cmath>

#include "base/sizes.h"

namespace segfuse::semicrf {
namespace {

/// Windows that share a reference.
constexpr std::int64_t kGroup = 64;

}  // namespace

void BandWindow::load(const DurationTable& table, std::span<const double> in, std::int64_t first,
                      std::int64_t count) {
  longest_ = table.longest;
  begin_ = first - longest_;
  size_ = std::ssize(in);
  padded_.assign(at(std::max<std::int64_t>(0, count + longest_ - 1)), kNegInf);
  const std::int64_t from = std::max<std::int64_t>(0, begin_);
  const std::int64_t to = std::min(size_, begin_ + std::ssize(padded_));
  if (from < to) std::copy(in.begin() + from, in.begin() + to, padded_.begin() + (from - begin_));
}

BandWindow::Group BandWindow::group(std::int64_t first, std::int64_t count) const {
  return {first, count, std::max<std::int64_t>(0, -begin_ - (first + count - 1)),
          std::min(longest_, size_ - begin_ - first)};
}

double BandWindow::sum_of_logs(const DurationTable& table, const Group& group,
                               std::int64_t window) const {
  const double* in = padded_.data() + window + group.from;
  const double* weights = table.log.data() + group.from;
  const std::int64_t width = group.to - group.from;
  const double largest = window_max(in, weights, width);
  if (largest == kNegInf) return kNegInf;
  double sum = 0.0;
  for (std::int64_t k = 0; k < width; ++k) sum += std::exp(in[k] + weights[k] - largest);
  return largest + std::log(sum);
}

void BandWindow::sums(const DurationTable& table, std::span<const double> in, std::int64_t first,
                      std::span<double> out) {
  load(table, in, first, std::ssize(out));
  linear_.resize(padded_.size());
  double reference = kNegInf;
  std::int64_t done = 0;  // exponentials up to here have that reference
  for (std::int64_t j = 0; j < std::ssize(out); j += kGroup) {
    const Group g = group(j, std::min(kGroup, std::ssize(out) - j));
    double* results = out.data() + j;
    const double largest =
        g.empty() ? kNegInf : largest_of(padded_.data() + g.begin(), g.end() - g.begin());
    if (largest == kNegInf) {
      std::fill_n(results, g.count, kNegInf);
      continue;
    }
    if (!(std::abs(largest - reference) <= DurationWindow::kFar)) {
      reference = largest;
      done = g.begin();
    }
    if (done < g.end())
      exp_each(padded_.data() + done, reference, g.end() - done, linear_.data() + done);
    done = std::max(done, g.end());
    window_products(linear_.data() + g.begin(), table.linear.data() + g.from, g.to - g.from,
                    g.count, results);
    again_.clear();
    for (std::int64_t i = 0; i < g.count; ++i)
      if (!(results[i] > DurationWindow::kTrusted)) again_.push_back(i);
    log_each(results, reference + table.largest, g.count, results);
    for (const std::int64_t i : again_) results[i] = sum_of_logs(table, g, j + i);
  }
}

void BandWindow::maxima(const DurationTable& table, std::span<const double> in, std::int64_t first,
                        std::span<double> out) {
  load(table, in, first, std::ssize(out));
  for (std::int64_t j = 0; j < std::ssize(out); j += kGroup) {
    const Group g = group(j, std::min(kGroup, std::ssize(out) - j));
    if (g.empty()) {
      std::fill_n(out.data() + j, g.count, kNegInf);
    } else {
      window_maxima(padded_.data() + g.begin(), table.log.data() + g.from, g.to - g.from, g.count,
                    out.data() + j);
    }
  }
}

}  // namespace segfuse::semicrf
