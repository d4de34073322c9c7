#include "base/console/printable.h"

#include <fmt/core.h>

#include <cstdint>

namespace segfuse {
namespace {

std::uint32_t code_of(std::string_view sequence) {
  const auto first = static_cast<unsigned char>(sequence[0]);
  if (sequence.size() == 1) return first;
  std::uint32_t code = first & (0x7FU >> sequence.size());
  for (const char c : sequence.substr(1))
    code = code << 6 | (static_cast<unsigned char>(c) & 0x3FU);
  return code;
}

bool steers(std::uint32_t code) {
  if (code < 0x20) return code != '\t' && code != '\n';
  return (code >= 0x7F && code <= 0x9F) || code == 0x061C || code == 0x200E || code == 0x200F ||
         (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned first = byte(at);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  const unsigned second = byte(at + 1);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool outside = (first == 0xED && second >= 0xA0) || (first == 0xF4 && second >= 0x90);
  return overlong || outside ? 0 : length;
}

std::string printable_line(std::string_view text) {
  std::string out = printable(text);
  constexpr std::string_view kEnd = "\\u000a";
  for (std::size_t at = 0; (at = out.find('\n', at)) != std::string::npos; at += kEnd.size())
    out.replace(at, 1, kEnd);
  return out;
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    if (length == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at++]));
      continue;
    }
    const std::string_view sequence = text.substr(at, length);
    at += length;
    const std::uint32_t code = code_of(sequence);
    if (steers(code)) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out += sequence;
    }
  }
  return out;
}

}  // namespace segfuse
