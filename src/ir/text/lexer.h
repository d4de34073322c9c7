#pragma once
// Words of the text form of a Fusion, with their places.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace segfuse::ir {

struct Token {
  enum class Kind : std::uint8_t {
    kName,    ///< letter or '_', then letters, digits, '_'
    kValue,   ///< '%' and letters, digits, '_'
    kNumber,  ///< digits, with or without fraction and exponent; no sign
    kString,  ///< between double quotes
    kMark,    ///< one of { } [ ] ( ) , : = == -> + - *
    kBad,     ///< a byte that begins nothing, or a string that is not closed
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string_view text;  ///< as written; points into the source
  std::size_t line = 1;
  std::size_t column = 1;  ///< bytes, from 1

  bool is(Kind k, std::string_view t) const { return kind == k && text == t; }
};

/// Cuts a text into tokens. The text must outlive the tokens.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}
  Token next();

 private:
  void skip_blanks();
  std::size_t length(Token::Kind& kind) const;
  std::size_t number_length() const;
  std::size_t string_length() const;
  char at(std::size_t offset) const {
    return place_ + offset < text_.size() ? text_[place_ + offset] : '\0';
  }

  std::string_view text_;
  std::size_t place_ = 0;
  std::size_t line_ = 1;
  std::size_t line_start_ = 0;
};

/// The text between the quotes of a string token, escapes replaced. Unknown escapes stand for the
/// character after the backslash.
std::string unquoted(std::string_view token);

}  // namespace segfuse::ir
