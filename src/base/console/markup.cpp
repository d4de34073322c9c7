#include "base/console/markup.h"

#include "base/console/printable.h"

namespace segfuse {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool forbidden_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\t' && c != '\n' && c != '\r') || byte == 0x7F;
}

}  // namespace

std::string printable_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text, i);
    if (length == 0 || forbidden_control(text[i])) {
      out += kReplacement;
      ++i;
      continue;
    }
    out += text.substr(i, length);
    i += length;
  }
  return out;
}

std::string escape_entities(std::string_view text) {
  std::string out;
  for (const char c : text) {
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

std::string escape_markup(std::string_view text) { return escape_entities(printable_utf8(text)); }

}  // namespace segfuse
