#include "learn/report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace segfuse::learn {
namespace {

constexpr std::string_view kDash = "\xE2\x80\x93";       // en dash
constexpr std::string_view kMinus = "\xE2\x88\x92";      // minus sign
constexpr std::string_view kThinSpace = "\xE2\x80\xAF";  // narrow no-break space
constexpr std::string_view kNoBreakSpace = "\xC2\xA0";

std::string with_minus(std::string text) {
  if (!text.starts_with('-')) return text;
  const bool zero = text.find_first_of("123456789") == std::string::npos;
  return zero ? text.substr(1) : std::string(kMinus) + text.substr(1);
}

std::string format_number(double value) {
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size >= 1e6 || size < 1e-4) return with_minus(fmt::format("{:.2e}", value));
  const int digits = std::clamp(2 - static_cast<int>(std::floor(std::log10(size))), 0, 6);
  return with_minus(fmt::format("{:.{}f}", value, digits));
}

std::string format_count(double value) {
  if (std::abs(value) >= 1e15) return format_number(value);
  const std::string digits = fmt::format("{}", std::llround(std::abs(value)));
  std::string out = value <= -0.5 ? std::string(kMinus) : "";
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += kThinSpace;
    out += digits[i];
  }
  return out;
}

std::string format_seconds(double value) {
  if (std::abs(value) < 60) return with_minus(fmt::format("{:.1f}{}s", value, kNoBreakSpace));
  if (std::abs(value) >= 3.6e8) return format_number(value) + std::string(kNoBreakSpace) + "s";
  const std::int64_t whole = std::llround(std::abs(value));
  const std::string sign = value < 0 ? std::string(kMinus) : "";
  if (whole < 3600) {
    return sign +
           fmt::format("{}{}min {}{}s", whole / 60, kNoBreakSpace, whole % 60, kNoBreakSpace);
  }
  return sign + fmt::format("{}{}h {}{}min", whole / 3600, kNoBreakSpace, whole % 3600 / 60,
                            kNoBreakSpace);
}

}  // namespace

std::string json_for_script(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

std::string format_value(double value, ReportUnit unit) {
  if (!std::isfinite(value)) return std::string(kDash);
  switch (unit) {
    case ReportUnit::kNumber: return format_number(value);
    case ReportUnit::kPercent:
      return with_minus(fmt::format("{:.1f}{}%", 100 * value, kNoBreakSpace));
    case ReportUnit::kRatio: return with_minus(fmt::format("{:.3f}", value));
    case ReportUnit::kSeconds: return format_seconds(value);
    case ReportUnit::kMillis:
      return with_minus(fmt::format("{:.1f}{}ms", 1000 * value, kNoBreakSpace));
    case ReportUnit::kCount: return format_count(value);
  }
  return std::string(kDash);
}

double round_significant(double value, int digits) {
  if (!std::isfinite(value)) return kNoValue;
  const std::string text = fmt::format("{:.{}e}", value, digits - 1);
  double out = 0;
  std::from_chars(text.data(), text.data() + text.size(), out);
  return out;
}

}  // namespace segfuse::learn
