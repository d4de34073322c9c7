// Praat TextGrid files. Both text forms are the same stream of free-standing numbers, quoted
// strings and <flags>; everything else (names, "=", "[1]:", comments from "!") is decoration.

#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <cstdlib>

#include "base/text.h"
#include "learn/data/labels/parsers.h"
#include "learn/data/text.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

enum class TokenKind { kNumber, kString, kFlag, kEnd };

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  double number = 0;
  std::int64_t line = 0;
};

class Tokens {
 public:
  Tokens(std::string_view text, std::string_view name) : text_(text), name_(name) {}

  std::int64_t line() const { return line_; }

  double number(std::string_view what) {
    const Token token = next();
    if (token.kind != TokenKind::kNumber) fail(token, what, "a number");
    return token.number;
  }

  std::int64_t count(std::string_view what) {
    const Token token = next();
    if (token.kind != TokenKind::kNumber || token.number < 0 || token.number > 1e9 ||
        token.number != std::floor(token.number))
      fail(token, what, "a whole number from 0 to 1000000000");
    return static_cast<std::int64_t>(token.number);
  }

  std::string string(std::string_view what) {
    Token token = next();
    if (token.kind != TokenKind::kString) fail(token, what, "a quoted text");
    return std::move(token.text);
  }

  /// Nothing but decoration may follow.
  void end(std::string_view what) {
    const Token token = next();
    if (token.kind == TokenKind::kEnd) return;
    throw DataError(fmt::format(
        "{}:{}: {} follows {}; a number of tiers, intervals or points in the file is too small",
        name_, token.line, shown(token.text), what));
  }

  std::string flag(std::string_view what) {
    Token token = next();
    if (token.kind != TokenKind::kFlag) fail(token, what, "<exists>");
    return std::move(token.text);
  }

 private:
  [[noreturn]] void fail(const Token& token, std::string_view what, std::string_view wanted) {
    if (token.kind == TokenKind::kEnd)
      throw DataError(fmt::format("{}:{}: the file ends where {} should stand; expected {}", name_,
                                  line_, what, wanted));
    throw DataError(fmt::format("{}:{}: {} is {}; expected {}", name_, token.line, what,
                                shown(token.text), wanted));
  }

  static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

  /// "nan", "-inf", "1e999": no finite number, and no decoration either.
  static bool is_meant_as_number(std::string_view text) {
    const std::string word(text);
    char* end = nullptr;
    static_cast<void>(std::strtod(word.c_str(), &end));
    return end == word.c_str() + word.size();
  }

  char take() {
    const char c = text_[at_++];
    const bool line_end = c == '\n' || (c == '\r' && !text_.substr(at_).starts_with('\n'));
    if (line_end) ++line_;
    return c;
  }

  Token next() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (is_space(c)) {
        take();
      } else if (c == '!') {
        while (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\r') ++at_;
      } else if (c == '"') {
        return quoted_string();
      } else {
        Token token = word();
        if (token.kind != TokenKind::kEnd) return token;
      }
    }
    return {TokenKind::kEnd, "", 0, line_};
  }

  Token quoted_string() {
    Token token{TokenKind::kString, "", 0, line_};
    ++at_;
    while (at_ < text_.size()) {
      const char c = take();
      if (c != '"') {
        token.text.push_back(c);
      } else if (at_ < text_.size() && text_[at_] == '"') {
        token.text.push_back(text_[at_++]);
      } else {
        return token;
      }
    }
    throw DataError(fmt::format("{}:{}: a quoted text is never closed; expected a closing \"",
                                name_, token.line));
  }

  /// A number or a flag; kEnd for decoration.
  Token word() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && !is_space(text_[at_]) && text_[at_] != '"') ++at_;
    const std::string_view text = text_.substr(begin, at_ - begin);
    if (const std::optional<double> value = parse_double(text))
      return {TokenKind::kNumber, std::string(text), *value, line_};
    if (text.starts_with('<') || is_meant_as_number(text))
      return {TokenKind::kFlag, std::string(text), 0, line_};
    return {TokenKind::kEnd, "", 0, line_};
  }

  std::string_view text_;
  std::string_view name_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1;
};

void check_header(Tokens& tokens, std::string_view text, std::string_view name) {
  if (text.starts_with("ooBinaryFile"))
    throw DataError(
        fmt::format("{}: byte 0: a binary TextGrid; save it in Praat as a text file", name));
  const std::string type = tokens.string("the file type");
  if (type != "ooTextFile" && type != "ooTextFile short")  // the latter of older versions
    throw DataError(fmt::format("{}:{}: the file type is {}; expected \"ooTextFile\"", name,
                                tokens.line(), shown(type)));
  const std::string object = tokens.string("the object class");
  if (object != "TextGrid")
    throw DataError(fmt::format("{}:{}: the object class is {}; expected \"TextGrid\"", name,
                                tokens.line(), shown(object)));
}

RawTier read_tier(Tokens& tokens, std::string_view name) {
  RawTier tier;
  const std::string type = tokens.string("the class of a tier");
  if (type != "IntervalTier" && type != "TextTier")
    throw DataError(
        fmt::format("{}:{}: the class of a tier is {}; expected \"IntervalTier\" or \"TextTier\"",
                    name, tokens.line(), shown(type)));
  tier.intervals = type == "IntervalTier";
  tier.name = tokens.string("the name of a tier");
  tier.raw.begin = tokens.number("xmin of a tier");
  tier.raw.end = tokens.number("xmax of a tier");
  const std::int64_t count = tokens.count("the number of intervals");
  for (std::int64_t i = 0; i < count; ++i) {
    LabelSegment segment;
    segment.start = tokens.number("xmin of an interval");
    segment.end = tier.intervals ? tokens.number("xmax of an interval") : segment.start;
    segment.label = trim(tokens.string("the text of an interval"));
    segment.line = tokens.line();
    tier.raw.segments.push_back(std::move(segment));
  }
  return tier;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out;
}

template <class TextOf>
std::string format_tier(const Annotation& annotation, std::string_view name, std::size_t number,
                        TextOf text_of) {
  const double begin = annotation.segments.empty() ? 0 : annotation.segments.front().start;
  std::string out = fmt::format(
      "    item [{}]:\n        class = \"IntervalTier\"\n        name = \"{}\"\n"
      "        xmin = {}\n        xmax = {}\n        intervals: size = {}\n",
      number, escaped(name), format_seconds(begin), format_seconds(annotation.duration),
      annotation.segments.size());
  for (std::size_t i = 0; i < annotation.segments.size(); ++i) {
    const LabelSegment& segment = annotation.segments[i];
    out += fmt::format(
        "        intervals [{}]:\n            xmin = {}\n            xmax = {}\n"
        "            text = \"{}\"\n",
        i + 1, format_seconds(segment.start), format_seconds(segment.end), escaped(text_of(i)));
  }
  return out;
}

}  // namespace

RawLabels read_textgrid(const LabelText& file) {
  Tokens tokens(file.bytes, file.name);
  check_header(tokens, file.bytes, file.name);
  tokens.number("xmin");
  tokens.number("xmax");
  if (tokens.flag("the flag for tiers") != "<exists>")
    throw DataError(
        fmt::format("{}:{}: the TextGrid says that it has no tiers", file.name, tokens.line()));
  const std::int64_t count = tokens.count("the number of tiers");
  RawLabels out;
  for (std::int64_t i = 0; i < count; ++i) out.tiers.push_back(read_tier(tokens, file.name));
  tokens.end(count == 1 ? "the only tier" : fmt::format("the last of {} tiers", count));
  return out;
}

std::string write_textgrid(const Annotation& annotation, const LabelOutput& output) {
  const double begin = annotation.segments.empty() ? 0 : annotation.segments.front().start;
  std::string out = fmt::format(
      "File type = \"ooTextFile\"\nObject class = \"TextGrid\"\n\nxmin = {}\nxmax = {}\n"
      "tiers? <exists>\nsize = {}\nitem []:\n",
      format_seconds(begin), format_seconds(annotation.duration), 1 + output.columns.size());
  out += format_tier(annotation, output.tier, 1,
                     [&](std::size_t i) { return annotation.segments[i].label; });
  for (std::size_t c = 0; c < output.columns.size(); ++c)
    out += format_tier(annotation, output.columns[c].name, c + 2, [&](std::size_t i) {
      return fmt::format("{:.6g}", output.columns[c].values[i]);
    });
  return out;
}

}  // namespace segfuse::data
