#include "learn/data/text.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "base/console/printable.h"
#include "base/text.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

std::string from_utf16(std::string_view bytes, bool big_endian, std::string_view name) {
  if (bytes.size() % 2 != 0)
    throw DataError(
        fmt::format("{}: byte {}: UTF-16 text ends within a character; the file may be cut off",
                    name, bytes.size() - 1));
  const auto unit = [&](std::size_t at) {
    const auto first = static_cast<unsigned char>(bytes[at]);
    const auto second = static_cast<unsigned char>(bytes[at + 1]);
    return static_cast<std::uint32_t>(big_endian ? first << 8 | second : second << 8 | first);
  };
  std::string out;
  for (std::size_t at = 2; at < bytes.size(); at += 2) {
    std::uint32_t code = unit(at);
    if (code >= 0xD800 && code < 0xE000) {
      const std::uint32_t low = at + 3 < bytes.size() ? unit(at + 2) : 0;
      if (code >= 0xDC00 || low < 0xDC00 || low >= 0xE000)
        throw DataError(fmt::format(
            "{}: byte {}: half of a UTF-16 surrogate pair; save the file as UTF-8", name, at));
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      at += 2;
    }
    if (code == 0)
      throw DataError(fmt::format("{}: byte {}: NUL character in a text file", name, at));
    append_utf8(out, code);
  }
  return out;
}

}  // namespace

void append_utf8(std::string& out, char32_t character) {
  const bool none = character > 0x10FFFF || (character >= 0xD800 && character < 0xE000);
  const std::uint32_t code = none ? 0xFFFD : character;
  const auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | (code >> 6));
  } else {
    if (code < 0x10000) {
      put(0xE0 | (code >> 12));
    } else {
      put(0xF0 | (code >> 18));
      put(0x80 | ((code >> 12) & 0x3F));
    }
    put(0x80 | ((code >> 6) & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

std::string to_utf8(std::string_view bytes, std::string_view name) {
  if (bytes.starts_with("\xFF\xFE")) return from_utf16(bytes, false, name);
  if (bytes.starts_with("\xFE\xFF")) return from_utf16(bytes, true, name);
  const std::size_t begin = bytes.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  for (std::size_t at = begin; at < bytes.size();) {
    if (const auto byte = static_cast<unsigned char>(bytes[at]); byte != 0 && byte < 0x80) {
      ++at;
      continue;
    }
    const std::size_t length = utf8_length(bytes, at);
    if (length == 0)
      throw DataError(fmt::format("{}: byte {}: 0x{:02x} is not UTF-8 here; save the file as UTF-8",
                                  name, at,
                                  static_cast<unsigned>(static_cast<unsigned char>(bytes[at]))));
    if (bytes[at] == '\0')
      throw DataError(fmt::format("{}: byte {}: NUL character in a text file", name, at));
    at += length;
  }
  return std::string(bytes.substr(begin));
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return out;
}

std::string extension_of(std::string_view name) {
  return lower(std::filesystem::path(name).extension().string());
}

std::string shown(std::string_view text) {
  std::string out = "\"";
  std::size_t at = 0;
  for (int count = 0; at < text.size() && count < 40; ++count) {
    const std::size_t length = utf8_length(text, at);
    const auto byte = static_cast<unsigned char>(text[at]);
    if (length == 0 || byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(byte));
    } else {
      out += text.substr(at, length);
    }
    at += length == 0 ? 1 : length;
  }
  return out + (at < text.size() ? "...\"" : "\"");
}

namespace {

/// Symbols of phone alphabets begin with these, too ("@", "-", "+r"); without a call, a pipe or a
/// reference to another sheet the last three cannot do anything.
bool is_formula(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  if (text.size() < 2) return false;
  if (text.front() == '=') return true;
  return std::string_view("+-@").find(text.front()) != std::string_view::npos &&
         text.find_first_of("(|!") != std::string_view::npos;
}

/// A formula behind any number of apostrophes: one more differs from one less.
bool takes_apostrophe(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\''), text.size()));
  return is_formula(text);
}

}  // namespace

std::string csv_field(std::string_view text) {
  std::string field(takes_apostrophe(text) ? "'" : "");
  field += text;
  if (field.find_first_of(",\"\r\n") == std::string::npos && trim(field) == field) return field;
  std::string out = "\"";
  for (const char c : field) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

std::string_view csv_text(std::string_view field) {
  if (field.starts_with('\'') && takes_apostrophe(field)) field.remove_prefix(1);
  return field;
}

std::string format_seconds(double seconds) {
  std::string out = fmt::format("{:.9f}", seconds);
  out.erase(out.find_last_not_of('0') + 1);
  if (out.back() == '.') out.pop_back();
  return out == "-0" ? "0" : out;
}

std::string resampled_text(const std::map<double, std::int64_t>& recordings, int sample_rate) {
  std::string text;
  for (const auto& [rate, count] : recordings)
    if (rate != sample_rate)
      text += fmt::format("{}{} recording{} of {:.10g} Hz", text.empty() ? "" : ", ", count,
                          count == 1 ? "" : "s", rate);
  return text.empty() ? text : fmt::format("resampled to {} Hz: {}", sample_rate, text);
}

}  // namespace segfuse::data
