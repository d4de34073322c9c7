#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>
#include <map>
#include <set>

#include "base/text.h"
#include "ir/text.h"
#include "ir/text/lexer.h"
#include "segfuse/error.h"

namespace segfuse::ir {
namespace {

using Kind = Token::Kind;
constexpr int kMaxNesting = 64;

class Parser {
 public:
  Parser(std::string_view text, std::string_view source) : source_(source), lexer_(text) {
    advance();
  }

  Fusion run();

 private:
  /// "fusion" to its "}".
  Fusion block();
  Body body();

  // --- tokens
  Token advance() { return std::exchange(token_, lexer_.next()); }
  bool peek(std::string_view mark) const { return token_.is(Kind::kMark, mark); }
  bool accept(std::string_view mark);
  Token expect(std::string_view mark);
  Token expect(Kind kind, std::string_view what);
  [[noreturn]] void fail(const Token& at, std::string_view expected) const;
  [[noreturn]] void refuse(const Token& at, std::string_view sentence) const;
  /// Runs `action`; what it refuses gets the place of `at`.
  template <class Action>
  auto at_place(const Token& at, Action action) const;

  // --- statements
  void statement();
  void symbols();
  void requirement();
  void definition();
  void input(std::vector<Token> names);
  void expression(const std::vector<Token>& names, const Token& op_name);
  void output();
  void alias();

  // --- parts
  ValId operand();
  std::vector<ValId> operands();
  Attrs attributes(const OpInfo& rules);
  Attr attribute(AttrType type);
  std::int64_t integer(std::string_view what);
  double real();
  DType dtype();
  Extents extents();
  Extent extent(int depth = 0);
  Extent term(bool negative, int depth);
  Extent factor(bool& negative, int depth);
  Extent division(int depth);
  void define(const Token& name, ValId id);
  void check_types(const std::vector<Token>& names, ExprId id);
  ExprId add(Op op, std::vector<ValId> operands, Attrs attrs);

  std::string source_;
  Lexer lexer_;
  Token token_;
  Fusion fusion_;
  std::map<std::string, ValId, std::less<>> values_;
  std::set<std::string, std::less<>> symbols_;
  int nesting_ = 0;  ///< of bodies
};

// --- tokens
// -----------------------------------------------------------------------

std::string describe(const Token& token) {
  if (token.kind == Kind::kEnd) return "the end of the text";
  if (token.kind == Kind::kBad && token.text == "\"") return "a string without its closing '\"'";
  std::string text;
  for (const char c : token.text.substr(0, 40)) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte >= 0x7F ? fmt::format("\\x{:02x}", static_cast<unsigned>(byte))
                                        : std::string(1, c);
  }
  if (token.text.size() > 40) text += "...";
  return "'" + text + "'";
}

std::string with_nearest(std::string what, std::string_view name,
                         std::span<const std::string> known) {
  if (const auto nearest = nearest_match(name, known))
    what += fmt::format("; did you mean '{}'?", *nearest);
  return what;
}

void Parser::fail(const Token& at, std::string_view expected) const {
  refuse(at, fmt::format("found {}, expected {}", describe(at), expected));
}

void Parser::refuse(const Token& at, std::string_view sentence) const {
  throw DataError(fmt::format("{}:{}:{}: {}", source_, at.line, at.column, sentence));
}

template <class Action>
auto Parser::at_place(const Token& at, Action action) const {
  try {
    return action();
  } catch (const UsageError& error) {
    refuse(at, error.what());
  }
}

bool Parser::accept(std::string_view mark) {
  if (!peek(mark)) return false;
  advance();
  return true;
}

Token Parser::expect(std::string_view mark) {
  if (!peek(mark)) fail(token_, fmt::format("'{}'", mark));
  return advance();
}

Token Parser::expect(Kind kind, std::string_view what) {
  if (token_.kind != kind) fail(token_, what);
  return advance();
}

// --- sizes and attributes
// -----------------------------------------------------------------------

std::int64_t Parser::integer(std::string_view what) {
  const bool negative = accept("-");
  const Token digits = expect(Kind::kNumber, what);
  const std::string text = (negative ? "-" : "") + std::string(digits.text);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) fail(digits, "a number that fits 64 bits");
  if (end != text.data() + text.size()) fail(digits, what);
  return value;
}

double Parser::real() {
  const bool negative = accept("-");
  if (token_.is(Kind::kName, "nan") || token_.is(Kind::kName, "inf")) {
    if (advance().text == "nan") return std::numeric_limits<double>::quiet_NaN();
    return negative ? -std::numeric_limits<double>::infinity()
                    : std::numeric_limits<double>::infinity();
  }
  const Token digits = expect(Kind::kNumber, "a number, inf or nan");
  double value = 0;
  const char* end = digits.text.data() + digits.text.size();
  if (std::from_chars(digits.text.data(), end, value).ec != std::errc())
    fail(digits, "a number that fits 64 bits");
  return negative ? -value : value;
}

DType Parser::dtype() {
  const Token name = expect(Kind::kName, "an element type such as f32");
  std::vector<std::string> known;
  for (int i = 0; i <= static_cast<int>(DType::kF64); ++i) {
    known.emplace_back(name_of(static_cast<DType>(i)));
    if (known.back() == name.text) return static_cast<DType>(i);
  }
  fail(name, "an element type, one of " + quoted_list(known));
}

Extents Parser::extents() {
  Extents all;
  expect("[");
  if (accept("]")) return all;
  do all.push_back(extent());
  while (accept(","));
  if (!peek("]")) fail(token_, "',' or ']'");
  advance();
  return all;
}

Extent Parser::extent(int depth) {
  const Token first = token_;
  Extent sum = term(accept("-"), depth);
  while (peek("+") || peek("-")) {
    const bool negative = advance().text == "-";
    const Extent next = term(negative, depth);
    sum = at_place(first, [&] { return sum + next; });
  }
  return sum;
}

Extent Parser::term(bool negative, int depth) {
  const Token first = token_;
  Extent product = factor(negative, depth);
  while (accept("*")) {
    bool plain = false;
    const Extent next = factor(plain, depth);
    product = at_place(first, [&] { return product * next; });
  }
  return at_place(first, [&] { return negative ? Extent(-1) * product : product; });
}

/// A number takes the sign along, since the smallest one has no positive.
Extent Parser::factor(bool& negative, int depth) {
  if (token_.kind == Kind::kNumber) {
    const std::string text = (negative ? "-" : "") + std::string(token_.text);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
      fail(token_, "a whole number that fits 64 bits");
    advance();
    negative = false;
    return value;
  }
  if (token_.is(Kind::kName, "floordiv")) return division(depth + 1);
  const Token name = expect(Kind::kName, "a size: a number, a symbol or floordiv(size, number)");
  if (symbols_.count(name.text) == 0)
    fail(name, with_nearest("a symbol that is declared with 'symbols'", name.text,
                            std::vector<std::string>(symbols_.begin(), symbols_.end())));
  return fusion_.symbol(name.text);
}

Extent Parser::division(int depth) {
  const Token name = advance();
  if (depth > kMaxNesting) fail(name, fmt::format("at most {} nested divisions", kMaxNesting));
  expect("(");
  const Extent numerator = extent(depth);
  expect(",");
  const std::int64_t divisor = integer("a positive whole number");
  expect(")");
  return at_place(name, [&] { return fusion_.floordiv(numerator, divisor); });
}

Attr Parser::attribute(AttrType type) {
  switch (type) {
    case AttrType::kInt: return integer("a whole number");
    case AttrType::kFloat: return real();
    case AttrType::kDType: return dtype();
    case AttrType::kExtents: return extents();
    case AttrType::kBody: return body();
    case AttrType::kInts: break;
  }
  std::vector<std::int64_t> all;
  expect("[");
  if (accept("]")) return all;
  do all.push_back(integer("a whole number"));
  while (accept(","));
  if (!peek("]")) fail(token_, "',' or ']'");
  advance();
  return all;
}

Attrs Parser::attributes(const OpInfo& rules) {
  Attrs attrs(rules.attrs.size());
  if (attrs.empty()) return attrs;
  std::vector<bool> given(attrs.size(), false);
  std::vector<std::string> names;
  for (const AttrSpec& spec : rules.attrs) names.emplace_back(spec.name);
  if (!peek("{")) fail(token_, fmt::format("'{{' and the attributes {}", quoted_list(names)));
  do {
    advance();
    const Token name = expect(Kind::kName, "the name of an attribute");
    const auto found = std::find(names.begin(), names.end(), name.text);
    const auto i = static_cast<std::size_t>(found - names.begin());
    if (found == names.end())
      fail(name, with_nearest(fmt::format("an attribute of {}, {}", rules.name, quoted_list(names)),
                              name.text, names));
    if (given[i]) fail(name, "each attribute once");
    given[i] = true;
    expect("=");
    attrs[i] = attribute(rules.attrs[i].type);
  } while (peek(","));
  for (std::size_t i = 0; i < given.size(); ++i)
    if (!given[i]) fail(token_, fmt::format("the attribute '{}' of {}", names[i], rules.name));
  if (!peek("}")) fail(token_, "',' or '}'");
  advance();
  return attrs;
}

// --- statements
// -----------------------------------------------------------------------

void Parser::symbols() {
  do {
    const Token name = expect(Kind::kName, "the name of a size");
    if (symbols_.count(name.text)) fail(name, "a name that is not declared already");
    at_place(name, [&] { return fusion_.symbol(name.text); });
    symbols_.emplace(name.text);
  } while (accept(","));
}

void Parser::requirement() {
  const Token first = token_;
  const Extent left = extent();
  expect("==");
  const Extent right = extent();
  if (!at_place(first, [&] { return fusion_.unify(left, right); }))
    refuse(first, fmt::format("found the requirement {} == {}, expected sizes that can be equal",
                              fusion_.to_string(left), fusion_.to_string(right)));
}

void Parser::define(const Token& name, ValId id) {
  if (!values_.emplace(name.text, id).second) fail(name, "a name that is not defined already");
}

void Parser::input(std::vector<Token> names) {
  if (names.size() != 1) fail(names[1], "one name for an input");
  const Token name = expect(Kind::kString, "the name of the input between quotes");
  expect(":");
  const DType type = dtype();
  Extents shape = extents();
  define(names[0], at_place(name, [&] {
           return fusion_.add_input(unquoted(name.text), type, std::move(shape));
         }));
}

ValId Parser::operand() {
  const Token name = expect(Kind::kValue, "a value such as %0");
  const auto found = values_.find(name.text);
  if (found != values_.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& entry : values_) known.push_back(entry.first);
  fail(name, with_nearest("a value that is defined above", name.text, known));
}

std::vector<ValId> Parser::operands() {
  std::vector<ValId> all;
  expect("(");
  if (accept(")")) return all;
  do all.push_back(operand());
  while (accept(","));
  if (!peek(")")) fail(token_, "',' or ')'");
  advance();
  return all;
}

ExprId Parser::add(Op op, std::vector<ValId> inputs, Attrs attrs) {
  if (op == Op::constant && inputs.empty()) {
    const double value = std::get<double>(attrs[0]);
    const DType type = std::get<DType>(attrs[1]);
    if (!fusion_.storage().constants.contains({type, std::bit_cast<std::uint64_t>(value)}))
      return fusion_.val(fusion_.constant(value, type)).definition;
  }
  return fusion_.add_expr(op, std::move(inputs), std::move(attrs));
}

void Parser::check_types(const std::vector<Token>& names, ExprId id) {
  const auto& results = fusion_.expr(id).results;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i) expect(",");
    const Token at = token_;
    const DType type = dtype();
    const Extents shape = extents();
    const Val& val = fusion_.val(results[i]);
    if (val.dtype == type && fusion_.canonical(val.shape) == fusion_.canonical(shape)) continue;
    refuse(at, fmt::format("found {}{}, expected {}{}, the type of {}", name_of(type),
                           fusion_.to_string(shape), name_of(val.dtype),
                           fusion_.to_string(val.shape), names[i].text));
  }
}

void Parser::expression(const std::vector<Token>& names, const Token& op_name) {
  const auto op = op_from_name(op_name.text);
  if (!op) {
    std::vector<std::string> known{"input"};
    for (const OpInfo& candidate : all_ops()) known.emplace_back(candidate.name);
    fail(op_name, with_nearest("an operation", op_name.text, known));
  }
  std::vector<ValId> inputs;
  if (info(*op).min_operands > 0 || peek("(")) inputs = operands();
  Attrs attrs = attributes(info(*op));
  const ExprId id =
      at_place(op_name, [&] { return add(*op, std::move(inputs), std::move(attrs)); });
  const auto& results = fusion_.expr(id).results;
  if (results.size() != names.size())
    refuse(names[0], fmt::format("found {} names, expected {} for the results of {}", names.size(),
                                 results.size(), op_name.text));
  for (std::size_t i = 0; i < names.size(); ++i) define(names[i], results[i]);
  if (accept(":")) check_types(names, id);
}

void Parser::definition() {
  std::vector<Token> names;
  do names.push_back(expect(Kind::kValue, "a value such as %0"));
  while (accept(","));
  expect("=");
  const Token op_name = expect(Kind::kName, "'input' or an operation");
  if (op_name.text == "input") {
    input(std::move(names));
  } else {
    expression(names, op_name);
  }
}

void Parser::output() {
  const ValId id = operand();
  std::string name;
  if (token_.kind == Kind::kString) name = unquoted(advance().text);
  fusion_.add_output(id, std::move(name));
}

void Parser::alias() {
  const Token first = token_;
  const ValId from = operand();
  expect("->");
  const ValId to = operand();
  at_place(first, [&] {
    fusion_.add_alias(from, to);
    return 0;
  });
}

void Parser::statement() {
  if (token_.kind == Kind::kValue) return definition();
  const Token word = token_;
  const std::vector<std::string> known{"symbols", "require", "output", "alias"};
  if (word.kind == Kind::kName) advance();
  if (word.is(Kind::kName, "symbols")) return symbols();
  if (word.is(Kind::kName, "require")) return requirement();
  if (word.is(Kind::kName, "output")) return output();
  if (word.is(Kind::kName, "alias")) return alias();
  fail(word, with_nearest("'symbols', 'require', 'output', 'alias', a value such as %0, or '}'",
                          word.kind == Kind::kName ? word.text : "", known));
}

/// Names and sizes of a body are its own.
Body Parser::body() {
  if (nesting_ == kMaxNesting) fail(token_, fmt::format("at most {} nested bodies", kMaxNesting));
  Fusion outer = std::exchange(fusion_, Fusion());
  auto values = std::exchange(values_, {});
  auto symbols = std::exchange(symbols_, {});
  ++nesting_;
  Body made{std::make_shared<const Fusion>(block())};
  --nesting_;
  fusion_ = std::move(outer);
  values_ = std::move(values);
  symbols_ = std::move(symbols);
  return made;
}

Fusion Parser::block() {
  if (!token_.is(Kind::kName, "fusion")) fail(token_, "'fusion'");
  advance();
  if (token_.kind == Kind::kString) fusion_.set_name(unquoted(advance().text));
  if (!peek("{")) fail(token_, "'{'");
  advance();
  while (!accept("}")) statement();
  return std::move(fusion_);
}

Fusion Parser::run() {
  Fusion fusion = block();
  if (token_.kind != Kind::kEnd) fail(token_, "the end of the text");
  return fusion;
}

}  // namespace

Fusion parse(std::string_view text, std::string_view source) { return Parser(text, source).run(); }

}  // namespace segfuse::ir
