#include "compiler/codegen/c_program/sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <limits>

namespace segfuse::compiler::cpu {

using ir::Extent;

namespace {

/// A number that may be multiplied by another one here.
bool is_small(const std::string& text) {
  return !text.empty() && text.size() < 9 &&
         std::all_of(
             text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// A number as C has it; the least one has no literal of its own.
std::string whole(std::int64_t value) {
  if (value == std::numeric_limits<std::int64_t>::min()) return fmt::format("({} - 1)", value + 1);
  return fmt::format("{}", value);
}

}  // namespace

SizeTable::SizeTable(const ir::Fusion& fusion, std::vector<std::string> names)
    : fusion_(fusion), names_(std::move(names)) {}

std::string SizeTable::entry(const std::string& expression, const std::string& comment) {
  const auto found = entries_.find(expression);
  if (found != entries_.end()) return found->second;
  const std::string name = fmt::format("n[{}]", count_++);
  text_ +=
      fmt::format("  {} = {};{}\n", name, expression, comment.empty() ? "" : "  // " + comment);
  return entries_[expression] = name;
}

std::string SizeTable::symbol(ir::SymbolId id) {
  const ir::Symbol& symbol = fusion_.storage().symbols.at(id.index);
  if (!symbol.derived) return names_.at(id.index);
  const std::string top = of(symbol.derived->numerator);
  return entry(fmt::format("sf_size_floordiv({}, {})", top, whole(symbol.derived->divisor)),
               fusion_.to_string(Extent(id)));
}

std::string SizeTable::term(const Extent::Term& term) {
  std::string text = term.factors.empty() || term.coefficient != 1 ? whole(term.coefficient) : "";
  for (const ir::SymbolId factor : term.factors) {
    const std::string name = symbol(factor);
    text = text.empty() ? name : fmt::format("sf_size_times({}, {}, &bad)", text, name);
  }
  return text;
}

std::string SizeTable::of(const Extent& size) {
  const Extent canonical = fusion_.canonical(size);
  if (canonical.is_constant()) return whole(canonical.constant());
  if (const auto alone = canonical.as_symbol()) return symbol(*alone);
  std::string text;
  for (const Extent::Term& one : canonical.terms()) {
    const std::string next = term(one);
    text = text.empty() ? next : fmt::format("sf_size_plus({}, {}, &bad)", text, next);
  }
  return entry(text, fusion_.to_string(canonical));
}

std::string SizeTable::product(const std::vector<std::string>& factors) {
  std::string all = "1";
  for (const std::string& factor : factors) {
    if (factor == "1") continue;
    if (all == "1") {
      all = factor;
    } else if (is_small(all) && is_small(factor)) {
      all = whole(std::stoll(all) * std::stoll(factor));
    } else {
      all = entry(fmt::format("sf_size_times({}, {}, &bad)", all, factor), "");
    }
  }
  return all;
}

std::string SizeTable::elements(const ir::Extents& shape) {
  std::vector<std::string> factors;
  for (const Extent& extent : shape) factors.push_back(of(extent));
  return product(factors);
}

std::string SizeTable::bytes(const std::string& elements, DType dtype) {
  return product({elements, fmt::format("{}", size_of(dtype))});
}

std::string SizeTable::rounded(const std::string& bytes) {
  return entry(fmt::format("sf_size_plus({}, 63, &bad) / 64 * 64", bytes), "");
}

std::string SizeTable::sum(const std::string& a, const std::string& b) {
  if (a == "0") return b;
  if (b == "0") return a;
  return entry(fmt::format("sf_size_plus({}, {}, &bad)", a, b), "");
}

std::string SizeTable::greater(const std::string& a, const std::string& b) {
  if (a == "0" || a == b) return b;
  if (b == "0") return a;
  return entry(fmt::format("{0} > {1} ? {0} : {1}", a, b), "");
}

/// Sums of products of what is not negative.
bool SizeTable::never_negative(const Extent& size) const {
  return std::all_of(size.terms().begin(), size.terms().end(), [&](const Extent::Term& term) {
    return term.coefficient >= 0 &&
           std::all_of(term.factors.begin(), term.factors.end(), [&](ir::SymbolId id) {
             const auto& derived = fusion_.storage().symbols[id.index].derived;
             return !derived || never_negative(fusion_.canonical(derived->numerator));
           });
  });
}

void SizeTable::check(const std::string& condition, const std::string& comment) {
  if (!checked_.emplace(condition, true).second) return;
  text_ +=
      fmt::format("  if ({}) return 1;{}\n", condition, comment.empty() ? "" : "  // " + comment);
}

void SizeTable::check_not_negative(const Extent& size) {
  const Extent canonical = fusion_.canonical(size);
  if (!never_negative(canonical)) check(of(canonical) + " < 0", "");
}

void SizeTable::check_program(const ir::Fusion& program) {
  for (const std::string& name : names_)
    if (!name.empty()) check(name + " < 0", "");
  for (const ir::Input& input : program.inputs())
    for (const Extent& size : program.val(input.val).shape) check_not_negative(size);
  for (const auto& [left, right] : program.storage().requirements)
    check(of(left) + " != " + of(right),
          fmt::format("{} has to be {}", fusion_.to_string(left), fusion_.to_string(right)));
  for (const ir::ExprId id : program.live_exprs()) {
    const ir::Expr& e = program.expr(id);
    for (const ir::ValId result : e.results)
      for (const Extent& size : program.val(result).shape) check_not_negative(size);
    const auto& attrs = ir::info(e.op).attrs;
    for (std::size_t i = 0; i < attrs.size(); ++i)
      if (attrs[i].type == ir::AttrType::kExtents)
        for (const Extent& size : std::get<ir::Extents>(e.attrs[i])) check_not_negative(size);
    if (e.op != ir::Op::slice) continue;
    const ir::Extents& from = program.val(e.operands[0]).shape;
    for (std::size_t a = 0; a < from.size(); ++a) {
      const Extent left = fusion_.canonical(from[a] - program.attr<ir::Extents>(id, "sizes")[a] -
                                            program.attr<ir::Extents>(id, "starts")[a]);
      if (!never_negative(left)) check(of(left) + " < 0", "a slice inside its operand");
    }
  }
}

std::string SizeTable::text() const { return "  int bad = 0;\n" + text_ + "  return bad;\n"; }

std::string size_functions(const std::string& text) {
  const std::pair<const char*, const char*> functions[] = {
      {"sf_size_times(", R"(// a * b and a + b; `bad` where they do not fit.
static int64_t sf_size_times(int64_t a, int64_t b, int *bad) {
  if (a == 0 || b == 0) return 0;
  if (a > 0 ? (b > 0 ? a > INT64_MAX / b : b < INT64_MIN / a)
            : (b > 0 ? a < INT64_MIN / b : b < INT64_MAX / a)) {
    *bad = 1;
    return 0;
  }
  return a * b;
}
)"},
      {"sf_size_plus(", R"(static int64_t sf_size_plus(int64_t a, int64_t b, int *bad) {
  if (b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b) {
    *bad = 1;
    return 0;
  }
  return a + b;
}
)"},
      {"sf_size_floordiv(", R"(// Toward minus infinity.
static int64_t sf_size_floordiv(int64_t a, int64_t b) { return a / b - (a % b < 0); }
)"}};
  std::string used;
  for (const auto& [name, function] : functions)
    if (text.find(name) != text.npos) used += function;
  return used;
}

}  // namespace segfuse::compiler::cpu
