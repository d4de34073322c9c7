// The symbolic sizes of a Fusion: symbols, divisions, and what is known to be equal.

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "ir/fusion.h"
#include "ir/rules/infer.h"

namespace segfuse::ir {
namespace {

/// A size is refused when its text, divisions written out, has more symbols than this.
constexpr std::size_t kMaxWeight = 1000;

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  return a / b - (a % b < 0 ? 1 : 0);  // b > 0
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

bool is_symbol_name(std::string_view name) {
  if (name.empty() || !is_letter(name[0]) || name == "floordiv") return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

/// The greatest common divisor of the coefficients, without that of the constant; 0 if there are
/// none.
std::uint64_t content(const Extent& extent) {
  std::uint64_t common = 0;
  for (const Extent::Term& term : extent.terms()) {
    if (term.factors.empty()) continue;
    const auto bits = static_cast<std::uint64_t>(term.coefficient);
    common = std::gcd(common, term.coefficient < 0 ? 0 - bits : bits);
  }
  return common;
}

/// Every coefficient divided by a divisor of all of them; the constant is rounded down.
Extent quotient_of(const Extent& extent, std::int64_t divisor) {
  Extent result;
  for (const Extent::Term& term : extent.terms())
    result = result + Extent::of({term.factors, floor_divide(term.coefficient, divisor)});
  return result;
}

/// The other factors of a term that has all of `part`; nothing if it has not.
std::optional<std::vector<SymbolId>> without(const std::vector<SymbolId>& factors,
                                             const std::vector<SymbolId>& part) {
  if (!std::includes(factors.begin(), factors.end(), part.begin(), part.end())) return {};
  std::vector<SymbolId> rest;
  std::set_difference(factors.begin(), factors.end(), part.begin(), part.end(),
                      std::back_inserter(rest));
  return rest;
}

/// `zero` without multiples of the leading terms of `zeros`, all of which are 0: if nothing is left
/// it is 0 as well. Multiples of `zero` are as good as itself. Each step replaces a term by smaller
/// ones, so it ends.
Extent reduced(Extent zero, const std::vector<Extent>& zeros) {
  for (std::size_t i = zero.terms().size(); i-- > 0;) {
    const Extent::Term term = zero.terms()[i];
    for (const Extent& known : zeros) {
      const Extent::Term& lead = known.terms().back();
      const auto factors = without(term.factors, lead.factors);
      if (!factors) continue;
      const std::int64_t common = std::gcd(term.coefficient, lead.coefficient);
      zero = zero * Extent(lead.coefficient / common) -
             known * Extent::of({*factors, term.coefficient / common});
      i = zero.terms().size();
      break;
    }
  }
  return zero;
}

}  // namespace

SymbolId Fusion::symbol(std::string_view name) {
  for (std::uint32_t i = 0; i < ir_.symbols.size(); ++i)
    if (ir_.symbols[i].name == name && !ir_.symbols[i].derived) return SymbolId{i};
  if (!is_symbol_name(name))
    throw UsageError(fmt::format(
        "'{}' cannot name a size; a name has letters, digits and '_', begins with no digit and is "
        "not 'floordiv'",
        name));
  const SymbolId id{static_cast<std::uint32_t>(ir_.symbols.size())};
  ir_.symbols.push_back({std::string(name), {}});
  ir_.symbol_parent.emplace_back(id);
  return id;
}

Extent Fusion::canonical(const Extent& extent) const {
  if (extent.is_constant()) return extent;
  bool changes = false;
  for (const Extent::Term& term : extent.terms()) {
    for (const SymbolId symbol : term.factors) {
      if (symbol.index >= ir_.symbols.size())
        throw UsageError(fmt::format("a size has a symbol that is not of the Fusion '{}'", name_));
      changes = changes || ir_.symbol_parent[symbol.index] != Extent(symbol);
    }
  }
  if (!changes) return extent;
  return extent.substitute([&](SymbolId symbol) { return ir_.symbol_parent[symbol.index]; });
}

Extents Fusion::canonical(const Extents& extents) const {
  Extents all;
  all.reserve(extents.size());
  for (const Extent& extent : extents) all.push_back(canonical(extent));
  return all;
}

bool Fusion::equal(const Extent& a, const Extent& b) const {
  const Extent left = canonical(a);
  const Extent right = canonical(b);
  return left == right || follows(left - right);
}

bool Fusion::equal(const Extents& a, const Extents& b) const {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const Extent& left, const Extent& right) { return equal(left, right); });
}

bool Fusion::follows(const Extent& zero) const {
  if (ir_.requirements.empty() || zero.is_constant()) return zero == Extent(0);
  try {
    std::vector<Extent> zeros;  // no leading term is a multiple of a former one
    for (const auto& [left, right] : ir_.requirements) {
      const Extent known = left - right;
      if (zero * known.terms().back().coefficient == known * zero.terms().back().coefficient)
        return true;
      Extent more = reduced(known, zeros);
      if (!more.is_constant()) zeros.push_back(std::move(more));
    }
    return reduced(zero, zeros) == Extent(0);
  } catch (const UsageError&) {  // numbers too large: not known
    return false;
  }
}

std::string Fusion::to_string(const Extent& extent) const {
  return canonical(extent).to_string([&](SymbolId id) -> std::string {
    const Symbol& symbol = ir_.symbols[id.index];
    if (!symbol.derived) return symbol.name;
    return "floordiv(" + to_string(symbol.derived->numerator) + ", " +
           std::to_string(symbol.derived->divisor) + ")";
  });
}

std::string Fusion::to_string(const Extents& extents) const {
  std::string text = "[";
  for (std::size_t i = 0; i < extents.size(); ++i) text += (i ? ", " : "") + to_string(extents[i]);
  return text + "]";
}

// --- divisions

Extent Fusion::floordiv(const Extent& numerator, std::int64_t divisor) {
  if (divisor <= 0)
    throw UsageError(fmt::format("floordiv by {}; the divisor must be positive", divisor));
  const Extent top = canonical(numerator);
  Extent quotient;  // the whole multiples of the divisor
  Extent rest;      // coefficients in [0, divisor), the constant in (-divisor, 0]
  for (const Extent::Term& term : top.terms()) {
    std::int64_t whole = floor_divide(term.coefficient, divisor);
    if (term.factors.empty() && term.coefficient % divisor != 0) ++whole;
    quotient = quotient + Extent::of({term.factors, whole});
    rest = rest + Extent::of({term.factors, term.coefficient}) -
           Extent::of({term.factors, whole}) * Extent(divisor);
  }
  if (rest.is_constant()) return quotient + floor_divide(rest.constant(), divisor);
  // floor(g*n / (g*d)) = floor(n / d), and a constant below g does not matter.
  const auto common =
      static_cast<std::int64_t>(std::gcd(content(rest), static_cast<std::uint64_t>(divisor)));
  if (common > 1) return quotient + floordiv(quotient_of(rest, common), divisor / common);
  // A division of a division stays two: to join them would lose forms that are equal when more
  // becomes known, so that the form would depend on the order in which that happens.
  return quotient + add_derived(rest, divisor);
}

Extent Fusion::add_derived(const Extent& numerator, std::int64_t divisor) {
  for (std::uint32_t i = 0; i < ir_.symbols.size(); ++i) {
    const auto& derived = ir_.symbols[i].derived;
    if (derived && derived->divisor == divisor && canonical(derived->numerator) == numerator)
      return ir_.symbol_parent[i];
  }
  if (weight(numerator) > kMaxWeight)
    throw UsageError(
        fmt::format("a size of the Fusion '{}' is made of more than {} symbols and divisions",
                    name_, kMaxWeight));
  const SymbolId id{static_cast<std::uint32_t>(ir_.symbols.size())};
  ir_.symbols.push_back({"", Symbol::FloorDiv{numerator, divisor}});
  ir_.symbol_parent.emplace_back(id);
  return id;
}

std::size_t Fusion::weight(const Extent& extent) const {
  std::size_t total = 0;
  for (const Extent::Term& term : extent.terms()) {
    for (const SymbolId symbol : term.factors) {
      const auto& derived = ir_.symbols[symbol.index].derived;
      total += 1 + (derived ? weight(derived->numerator) : 0);
    }
  }
  return total;
}

bool Fusion::occurs(SymbolId symbol, const Extent& inside) const {
  const std::vector<SymbolId> all = inside.symbols();
  return std::any_of(all.begin(), all.end(), [&](SymbolId id) {
    const auto& derived = ir_.symbols[id.index].derived;
    return id == symbol || (derived && occurs(symbol, canonical(derived->numerator)));
  });
}

// --- equalities

void Fusion::restore(SizeState state) {
  ir_.symbols = std::move(state.symbols);
  ir_.symbol_parent = std::move(state.symbol_parent);
  ir_.requirements = std::move(state.requirements);
}

bool Fusion::unify(const Extent& a, const Extent& b) {
  const Extent left = canonical(a);
  const Extent right = canonical(b);
  if (left == right) return true;
  SizeState before = size_state();
  try {
    if (settle(left, right) && (ir_.symbol_parent == before.symbol_parent || rules_hold()))
      return true;
  } catch (...) {
    restore(std::move(before));
    throw;
  }
  restore(std::move(before));
  return false;
}

/// Whether all inputs and expressions are still legal, now that more is known about sizes.
bool Fusion::rules_hold() {
  for (const Input& input : ir_.inputs)
    for (const Extent& extent : canonical(val(input.val).shape))
      if (extent.is_constant() && extent.constant() < 0) return false;
  try {
    for (const ExprId id : exprs())
      (void)infer(*this, expr(id).op, expr(id).operands, expr(id).attrs);
  } catch (const UsageError&) {
    return false;
  }
  return true;
}

/// Makes two sizes equal, with all that follows from it. False if that cannot be.
bool Fusion::settle(const Extent& first, const Extent& second) {
  std::deque<std::pair<Extent, Extent>> open{{first, second}};
  for (; !open.empty(); open.pop_front()) {
    const Extent known_left = canonical(open.front().first);
    const Extent known_right = canonical(open.front().second);
    Extent zero = known_left - known_right;
    if (zero.is_constant()) {
      if (zero.constant() != 0) return false;
      continue;
    }
    const auto common = static_cast<std::int64_t>(content(zero));
    if (common > 1) {
      if (zero.constant() % common != 0) return false;
      zero = quotient_of(zero, common);
    }
    // 4*N and 5*N agree for N = 0 only; nobody means that who does not write 0.
    if (zero.terms().size() == 1 && !known_left.is_constant() && !known_right.is_constant() &&
        !follows(zero))
      return false;
    if (zero.terms().back().coefficient < 0) zero = Extent(-1) * zero;
    bool possible = true;
    const bool bound = bind_one(zero, possible);
    if (!possible) return false;
    Extent positive;
    for (const Extent::Term& term : zero.terms())
      if (term.coefficient > 0) positive = positive + Extent::of(term);
    if (!bound) {
      // What follows from others is kept as well, so that it is found again when more is known.
      std::pair<Extent, Extent> requirement{positive, positive - zero};
      if (std::find(ir_.requirements.begin(), ir_.requirements.end(), requirement) ==
          ir_.requirements.end())
        ir_.requirements.push_back(std::move(requirement));
      continue;
    }
    refresh_sizes();
    for (const auto& [left, right] : std::exchange(ir_.requirements, {}))
      open.emplace_back(left, right);
  }
  return true;
}

/// Writes one symbol in others if `zero` = 0 says what it is. Then what is equal to it by this
/// equation has the same polynomial. `possible` becomes false if no sizes satisfy it.
bool Fusion::bind_one(const Extent& zero, bool& possible) {
  const auto& terms = zero.terms();
  const bool all_plain_and_positive =
      std::all_of(terms.begin(), terms.end(), [&](const Extent::Term& term) {
        return term.coefficient > 0 &&
               std::none_of(term.factors.begin(), term.factors.end(),
                            [&](SymbolId id) { return ir_.symbols[id.index].derived.has_value(); });
      });
  possible = !all_plain_and_positive || zero.constant() == 0;
  if (!possible) return false;
  // Of all symbols that can be written in the others: sums of sizes are better than differences,
  // and the later symbol gives way to the earlier.
  std::optional<SymbolId> chosen;
  Extent solution;
  std::size_t fewest = 0;
  for (const Extent::Term& term : terms) {
    if (term.factors.size() != 1 || (term.coefficient != 1 && term.coefficient != -1)) continue;
    const SymbolId symbol = term.factors[0];
    const Extent rest = (zero - Extent::of(term)) * Extent(-term.coefficient);
    if (ir_.symbols[symbol.index].derived || occurs(symbol, rest)) continue;
    const auto negative = static_cast<std::size_t>(
        std::count_if(rest.terms().begin(), rest.terms().end(),
                      [](const Extent::Term& t) { return t.coefficient < 0; }));
    if (chosen && (negative > fewest || (negative == fewest && symbol < *chosen))) continue;
    chosen = symbol;
    solution = rest;
    fewest = negative;
  }
  if (chosen) ir_.symbol_parent[chosen->index] = solution;
  return chosen.has_value();
}

/// After a symbol was united: every parent is again over representatives, and every division in
/// normal form.
void Fusion::refresh_sizes() {
  for (bool changed = true; changed;) {
    changed = false;
    for (Extent& parent : ir_.symbol_parent) {
      Extent now = canonical(parent);
      changed = changed || now != parent;
      parent = std::move(now);
    }
    for (std::uint32_t i = 0; i < ir_.symbols.size(); ++i) {
      if (!ir_.symbols[i].derived || ir_.symbol_parent[i] != Extent(SymbolId{i})) continue;
      const auto division = *ir_.symbols[i].derived;
      ir_.symbols[i].derived->numerator = canonical(division.numerator);
      Extent now = floordiv(division.numerator, division.divisor);
      if (now == Extent(SymbolId{i})) continue;
      ir_.symbol_parent[i] = std::move(now);
      changed = true;
    }
  }
}

bool Fusion::canonicalise_sizes() {
  bool changed = false;
  auto settle_all = [&](Extents& extents) {
    Extents now = canonical(extents);
    changed = changed || now != extents;
    extents = std::move(now);
  };
  for (auto& slot : ir_.vals)
    if (slot.alive) settle_all(slot.item.shape);
  for (auto& slot : ir_.exprs) {
    if (!slot.alive) continue;
    for (Attr& attr : slot.item.attrs)
      if (auto* extents = std::get_if<Extents>(&attr)) settle_all(*extents);
  }
  return changed;
}

}  // namespace segfuse::ir
