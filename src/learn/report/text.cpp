#include "learn/report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace segfuse::learn {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr std::string_view kDash = "\xE2\x80\x93";       // en dash
constexpr std::string_view kMinus = "\xE2\x88\x92";      // minus sign
constexpr std::string_view kThinSpace = "\xE2\x80\xAF";  // narrow no-break space
constexpr std::string_view kNoBreakSpace = "\xC2\xA0";

unsigned char byte_at(std::string_view text, std::size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
}

/// Length of the well-formed UTF-8 sequence at `i` (Unicode 15, table 3-7), 0 when there is none.
std::size_t sequence_length(std::string_view text, std::size_t i) {
  const unsigned char a = byte_at(text, i);
  const unsigned char b = byte_at(text, i + 1);
  const auto tail = [&](std::size_t k) { return (byte_at(text, i + k) & 0xC0U) == 0x80U; };
  if (a < 0x80) return 1;
  if (a >= 0xC2 && a <= 0xDF) return tail(1) ? 2 : 0;
  if (a >= 0xE0 && a <= 0xEF) {
    const bool overlong = a == 0xE0 && b < 0xA0;
    const bool surrogate = a == 0xED && b > 0x9F;
    return !overlong && !surrogate && tail(1) && tail(2) ? 3 : 0;
  }
  if (a >= 0xF0 && a <= 0xF4) {
    const bool overlong = a == 0xF0 && b < 0x90;
    const bool too_large = a == 0xF4 && b > 0x8F;
    return !overlong && !too_large && tail(1) && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

bool forbidden_control(unsigned char c) {
  return (c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F;
}

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

std::string printable_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = sequence_length(text, i);
    if (length == 0 || forbidden_control(byte_at(text, i))) {
      out += kReplacement;
      ++i;
      continue;
    }
    out += text.substr(i, length);
    i += length;
  }
  return out;
}

std::string escape_markup(std::string_view text) {
  std::string out;
  for (const char c : printable_utf8(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

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
