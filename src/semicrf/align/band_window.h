#pragma once
// Sums and maxima over the durations of a label for a range of frames at a time, as DurationWindow
// makes them one by one: where all that goes in is known before the first comes out.

#include <cstdint>
#include <span>
#include <vector>

#include "semicrf/align/duration_window.h"

namespace segfuse::semicrf {

class BandWindow {
 public:
  /// out[j] = log sum over d = 1 .. longest of exp(in[i - d] + duration[d]) at i = first + j;
  /// beyond its ends `in` is -inf.
  void sums(const DurationTable& table, std::span<const double> in, std::int64_t first,
            std::span<double> out);
  /// The largest of in[i - d] + duration[d].
  void maxima(const DurationTable& table, std::span<const double> in, std::int64_t first,
              std::span<double> out);

 private:
  /// Windows [first, first + count) of `out`, and the weights [from, to) of each that meet `in`.
  struct Group {
    std::int64_t first, count, from, to;
    bool empty() const { return from >= to; }
    std::int64_t begin() const { return first + from; }          // of what is read
    std::int64_t end() const { return first + count - 1 + to; }  // exclusive
  };
  void load(const DurationTable& table, std::span<const double> in, std::int64_t first,
            std::int64_t count);
  Group group(std::int64_t first, std::int64_t count) const;
  double sum_of_logs(const DurationTable& table, const Group& group, std::int64_t window) const;

  std::int64_t longest_ = 0;
  std::int64_t begin_ = 0;           // the place in `in` of padded_[0]
  std::int64_t size_ = 0;            // of `in`
  std::vector<double> padded_;       // `in` as the windows see it
  std::vector<double> linear_;       // exp(padded - reference)
  std::vector<std::int64_t> again_;  // windows whose sum may have lost a term
};

}  // namespace segfuse::semicrf
