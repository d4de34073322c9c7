#include "learn/folder/rows.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

constexpr double kMaxRate = 1e9;  // as features.frame_rate

struct Decimal {
  double value = 0;
  int digits = 0;
};

Decimal decimal_between(double low, double high) {
  constexpr int kExact = std::numeric_limits<double>::max_digits10;
  const double middle = low + (high - low) / 2;
  for (int digits = 1; digits < kExact; ++digits) {
    const double value = std::strtod(fmt::format("{:.{}g}", middle, digits).c_str(), nullptr);
    if (low <= value && value <= high) return {value, digits};
  }
  return {middle, kExact};
}

/// Rows a second with which the last label ends in the last row, or a row beside it.
struct Range {
  explicit Range(const LabelledRows& recording)
      : low(std::max(0.5, static_cast<double>(recording.rows - 1)) / *recording.end),
        high(static_cast<double>(recording.rows + 1) / *recording.end) {}
  double low;
  double high;
};

std::string text_of(const LabelledRows& recording) {
  return fmt::format("{:.6g} a second in {} ({} rows, labels to {:.6g} s)",
                     static_cast<double>(recording.rows) / *recording.end,
                     recording.path.filename().string(), recording.rows, *recording.end);
}

[[noreturn]] void ask_for_rate(const FolderOptions& options, const std::string& why) {
  throw UsageError(fmt::format("{}: {}; say how many rows are a second with {}",
                               options.folder.string(), why, setting_name(options, "frame rate")));
}

}  // namespace

std::string setting_name(const FolderOptions& options, std::string_view words) {
  std::string name(words);
  std::ranges::replace(name, ' ', options.has_arguments ? '_' : '-');
  return options.has_arguments ? name + "=" : "--" + name;
}

double simplest_between(double low, double high) {
  const Decimal rate = decimal_between(low, high);
  const Decimal period = decimal_between(1 / high, 1 / low);
  return period.digits + 2 <= rate.digits ? 1 / period.value : rate.value;
}

FrameRate find_frame_rate(const FolderOptions& options, const std::vector<LabelledRows>& all) {
  if (options.frame_rate) return {*options.frame_rate, "as requested"};
  std::vector<LabelledRows> timed;
  for (const LabelledRows& recording : all)
    if (recording.end) timed.push_back(recording);
  if (timed.empty()) {
    if (std::ranges::all_of(all, &LabelledRows::labels_are_places))
      return {1, "the labels count positions, and a position is taken for a second"};
    ask_for_rate(options, "the labels count rows, and nothing says how long a row is");
  }
  const auto lowest = std::ranges::min_element(
      timed, {}, [](const LabelledRows& recording) { return Range(recording).high; });
  const auto highest = std::ranges::max_element(
      timed, {}, [](const LabelledRows& recording) { return Range(recording).low; });
  const double low = Range(*highest).low;
  const double high = Range(*lowest).high;
  if (low > high)
    ask_for_rate(options,
                 fmt::format("rows over the end of the last label are {} and {}, so some labels "
                             "end before their recording",
                             text_of(*lowest), text_of(*highest)));
  const double rate = simplest_between(low, high);
  if (rate > kMaxRate)
    ask_for_rate(options,
                 fmt::format("the labels say {:g} rows a second, more than {:g}", rate, kMaxRate));
  const bool equal = std::ranges::all_of(
      timed, [&](const LabelledRows& recording) { return recording.rows == timed[0].rows; });
  return {rate, equal ? "rows over the end of the last label, which is taken for the end of "
                        "recordings that are all equally long"
                      : fmt::format("rows over the end of the last label, which agree in all {} "
                                    "recordings",
                                    timed.size())};
}

}  // namespace segfuse::learn
