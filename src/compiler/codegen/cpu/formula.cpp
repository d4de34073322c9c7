#include "compiler/codegen/cpu/formula.h"

#include <fmt/format.h>

#include <cctype>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "segfuse/error.h"

namespace segfuse::compiler::cpu {

namespace {

struct Operator {
  std::string_view text;
  std::string_view function;  ///< of the prelude
};

/// By precedence, the loosest first; longer texts before their beginnings.
constexpr Operator kOr[] = {{"||", "logical_or"}};
constexpr Operator kAnd[] = {{"&&", "logical_and"}};
constexpr Operator kEqual[] = {{"==", "eq"}, {"!=", "ne"}};
constexpr Operator kLess[] = {{"<=", "le"}, {">=", "ge"}, {"<", "lt"}, {">", "gt"}};
constexpr Operator kSum[] = {{"+", "add"}, {"-", "sub"}};
constexpr Operator kProduct[] = {{"*", "mul"}, {"/", "div"}};
constexpr std::span<const Operator> kLevels[] = {kOr, kAnd, kEqual, kLess, kSum, kProduct};

/// Functions of std whose operation has another name.
constexpr std::pair<std::string_view, std::string_view> kStandardNames[] = {
    {"nearbyint", "round"}, {"max", "maximum"}, {"min", "minimum"}};

/// Expressions of C++ by recursive descent. Truth values are vectors of the type bool.
class Parser {
 public:
  Parser(std::string_view text, std::string_view type) : text_(text), rest_(text), type_(type) {}

  std::string all() {
    const std::string value = choice();
    if (!peek().empty()) fail();
    return value;
  }

 private:
  [[noreturn]] void fail() const {
    throw InternalError(
        fmt::format("the formula '{}' of ops.def has no form in C from '{}' on", text_, rest_));
  }
  std::string_view peek() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
    return rest_;
  }
  bool take(std::string_view token) {
    if (!peek().starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  void need(std::string_view token) {
    if (!take(token)) fail();
  }
  std::string call(std::string_view function, std::string_view arguments) const {
    const bool logical = function.starts_with("logical");
    return fmt::format("sf_{}_{}({})", function, logical ? "bool" : type_, arguments);
  }

  std::string choice() {
    const std::string condition = binary(0);
    if (!take("?")) return condition;
    const std::string yes = choice();
    need(":");
    const std::string no = choice();
    return call("select", fmt::format("{}, {}, {}", condition, yes, no));
  }

  std::string binary(std::size_t level) {
    if (level == std::size(kLevels)) return unary();
    std::string left = binary(level + 1);
    for (bool more = true; more;) {
      more = false;
      for (const Operator& op : kLevels[level]) {
        if (!take(op.text)) continue;
        const std::string right = binary(level + 1);
        left = call(op.function, fmt::format("{}, {}", left, right));
        more = true;
        break;
      }
    }
    return left;
  }

  std::string unary() {
    if (take("-")) return call("neg", unary());
    if (take("!")) return call("logical_not", unary());
    if (take("(")) {
      const std::string value = choice();
      need(")");
      return value;
    }
    if (take("T(")) return call("all", number(")"));
    if (take("std::")) return function();
    if (take("a")) return "a";
    if (take("b")) return "b";
    fail();
  }

  /// Up to and with `end`.
  std::string number(std::string_view end) {
    const std::size_t size = peek().find(end);
    if (size == std::string_view::npos) fail();
    std::string digits(rest_.substr(0, size));
    if (digits.find_first_not_of("0123456789.e-") != std::string::npos) fail();
    rest_.remove_prefix(size + end.size());
    return digits;
  }

  std::string function() {
    const std::size_t size = rest_.find('(');
    if (size == std::string_view::npos) fail();
    std::string_view name = rest_.substr(0, size);
    for (const auto& [std_name, ours] : kStandardNames)
      if (name == std_name) name = ours;
    rest_.remove_prefix(size + 1);
    std::string arguments = choice();
    while (take(",")) arguments += ", " + choice();
    need(")");
    return call(name, arguments);
  }

  std::string_view text_;
  std::string_view rest_;
  std::string_view type_;
};

}  // namespace

std::string vector_formula(std::string_view formula, std::string_view type) {
  return Parser(formula, type).all();
}

}  // namespace segfuse::compiler::cpu
