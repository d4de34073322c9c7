#include "ir/text/lexer.h"

namespace segfuse::ir {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_word(char c) { return is_letter(c) || is_digit(c); }

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

void Lexer::skip_blanks() {
  for (; place_ < text_.size(); ++place_) {
    const char c = text_[place_];
    if (c == '\n') {
      ++line_;
      line_start_ = place_ + 1;
    } else if (c == '#') {
      const std::size_t end = text_.find('\n', place_);
      place_ = (end == std::string_view::npos ? text_.size() : end) - 1;
    } else if (c != ' ' && c != '\t' && c != '\r') {
      return;
    }
  }
}

std::size_t Lexer::number_length() const {
  std::size_t n = 1;
  while (is_digit(at(n))) ++n;
  if (at(n) == '.' && is_digit(at(n + 1)))
    for (n += 2; is_digit(at(n));) ++n;
  if (at(n) == 'e' || at(n) == 'E') {
    const std::size_t sign = at(n + 1) == '+' || at(n + 1) == '-' ? 1 : 0;
    if (is_digit(at(n + 1 + sign)))
      for (n += 2 + sign; is_digit(at(n));) ++n;
  }
  return n;
}

/// 0 if the string is not closed on its line.
std::size_t Lexer::string_length() const {
  for (std::size_t n = 1; place_ + n < text_.size(); ++n) {
    if (at(n) == '"') return n + 1;
    if (at(n) == '\n') return 0;
    if (at(n) == '\\') ++n;
    if (at(n) == '\n') return 0;
  }
  return 0;
}

std::size_t Lexer::length(Token::Kind& kind) const {
  const char c = at(0);
  std::size_t n = 1;
  if (is_letter(c) || (c == '%' && is_word(at(1)))) {
    kind = c == '%' ? Token::Kind::kValue : Token::Kind::kName;
    while (is_word(at(n))) ++n;
    return n;
  }
  if (is_digit(c)) {
    kind = Token::Kind::kNumber;
    return number_length();
  }
  if (c == '"') {
    n = string_length();
    kind = n ? Token::Kind::kString : Token::Kind::kBad;
    return n ? n : 1;
  }
  constexpr std::string_view kMarks = "{}[](),:=+-*";
  kind = kMarks.find(c) != std::string_view::npos && c ? Token::Kind::kMark : Token::Kind::kBad;
  const bool two = (c == '=' && at(1) == '=') || (c == '-' && at(1) == '>');
  return two ? 2 : 1;
}

Token Lexer::next() {
  skip_blanks();
  Token token{Token::Kind::kEnd, {}, line_, place_ - line_start_ + 1};
  if (place_ >= text_.size()) return token;
  token.text = text_.substr(place_, length(token.kind));
  place_ += token.text.size();
  return token;
}

std::string unquoted(std::string_view token) {
  std::string out;
  for (std::size_t i = 1; i + 1 < token.size(); ++i) {
    if (token[i] != '\\') {
      out += token[i];
      continue;
    }
    ++i;
    if (token[i] == 'x' && i + 3 < token.size() && hex_digit(token[i + 1]) >= 0 &&
        hex_digit(token[i + 2]) >= 0) {
      out += static_cast<char>(hex_digit(token[i + 1]) * 16 + hex_digit(token[i + 2]));
      i += 2;
    } else {
      out += token[i] == 'n' ? '\n' : token[i] == 't' ? '\t' : token[i];
    }
  }
  return out;
}

}  // namespace segfuse::ir
