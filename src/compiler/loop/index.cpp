#include "compiler/loop/index.h"

#include <algorithm>

#include "base/check.h"

namespace segfuse::compiler::loop {

using ir::Extent;

namespace {

/// a / b for a product b.
std::optional<Extent> divide_by_term(const Extent& a, const Extent::Term& b) {
  Extent quotient;
  for (const Extent::Term& term : a.terms()) {
    if (term.coefficient % b.coefficient != 0) return {};
    std::vector<ir::SymbolId> factors = term.factors;
    for (const ir::SymbolId factor : b.factors) {
      const auto found = std::find(factors.begin(), factors.end(), factor);
      if (found == factors.end()) return {};
      factors.erase(found);
    }
    quotient = quotient + Extent::of({std::move(factors), term.coefficient / b.coefficient});
  }
  return quotient;
}

/// Whether it is seen that a size is not negative: symbols are not.
bool natural(const Extent& size) {
  return std::ranges::all_of(size.terms(), [](const auto& term) { return term.coefficient > 0; });
}

}  // namespace

std::optional<Extent> divide_exactly(const Extent& a, const Extent& b) {
  if (b.terms().empty()) return {};
  if (b.terms().size() == 1) return divide_by_term(a, b.terms()[0]);
  // Long division: the last terms tell by how much.
  constexpr int kMaxTerms = 64;
  Extent quotient;
  Extent rest = a;
  for (int terms = 0; !rest.terms().empty(); ++terms) {
    const auto factor = divide_by_term(Extent::of(rest.terms().back()), b.terms().back());
    if (!factor || terms == kMaxTerms) return {};
    quotient = quotient + *factor;
    rest = rest - *factor * b;
  }
  return quotient;
}

VarId Indices::add_var(std::string name, Extent bound) {
  if (next_var_ < vars_.size()) {
    const Var& before = vars_[next_var_];
    SEGFUSE_CHECK(before.name == name && before.bound == bound,
                  "a kernel that is written again has variable '{}' where '{}' was", name,
                  before.name);
  } else {
    vars_.push_back({std::move(name), std::move(bound)});
  }
  return {static_cast<std::uint32_t>(next_var_++)};
}

void Indices::again() {
  next_var_ = 0;
  for (Atom& atom : atoms_) atom.value = {};
}

AtomId Indices::intern(Atom atom) {
  auto found = std::find(atoms_.begin(), atoms_.end(), atom);
  if (found == atoms_.end()) found = atoms_.insert(atoms_.end(), std::move(atom));
  return {static_cast<std::uint32_t>(found - atoms_.begin())};
}

Index Indices::just(Atom atom) {
  Index index;
  index.terms.push_back({intern(std::move(atom)), 1});
  return index;
}

void Indices::add_term(Index& index, AtomId atom, const Extent& coefficient) const {
  auto place = std::lower_bound(index.terms.begin(), index.terms.end(), atom,
                                [](const Index::Term& t, AtomId id) { return t.atom < id; });
  if (place != index.terms.end() && place->atom == atom) {
    place->coefficient = place->coefficient + coefficient;
    if (place->coefficient.is_constant(0)) index.terms.erase(place);
  } else if (!coefficient.is_constant(0)) {
    index.terms.insert(place, {atom, coefficient});
  }
}

Index Indices::of(VarId var) {
  if (vars_.at(var.index).bound.is_constant(1)) return 0;
  Atom atom;
  atom.var = var;
  return just(std::move(atom));
}

Index Indices::of(ValueId value) {
  Atom atom;
  atom.kind = Atom::Kind::kValue;
  atom.value = value;
  return just(std::move(atom));
}

Index Indices::of(ValueId value, std::uint32_t origin) {
  Atom atom;
  atom.kind = Atom::Kind::kValue;
  atom.value = value;
  atom.origin = origin;
  const bool known = std::find(atoms_.begin(), atoms_.end(), atom) != atoms_.end();
  for (Atom& other : atoms_)
    if (!known && other.kind == Atom::Kind::kValue && other.origin == origin &&
        !other.value.valid()) {
      other.value = value;
      break;
    }
  return just(std::move(atom));
}

/// by * (f / by) + f % by is f.
void Indices::join_parts(Index& index) const {
  for (std::size_t i = 0; i < index.terms.size(); ++i) {
    const Atom& quotient = atoms_[index.terms[i].atom.index];
    if (quotient.kind != Atom::Kind::kDiv) continue;
    for (std::size_t j = 0; j < index.terms.size(); ++j) {
      const Atom& rest = atoms_[index.terms[j].atom.index];
      if (rest.kind != Atom::Kind::kMod || rest.of != quotient.of || rest.by != quotient.by ||
          index.terms[i].coefficient != index.terms[j].coefficient * rest.by)
        continue;
      const Extent scale = index.terms[j].coefficient;
      const Index whole = rest.of;
      index.terms.erase(index.terms.begin() + static_cast<std::ptrdiff_t>(std::max(i, j)));
      index.terms.erase(index.terms.begin() + static_cast<std::ptrdiff_t>(std::min(i, j)));
      index.constant = index.constant + whole.constant * scale;
      for (const Index::Term& term : whole.terms)
        add_term(index, term.atom, term.coefficient * scale);
      return join_parts(index);
    }
  }
}

Index Indices::add(const Index& a, const Index& b) {
  Index sum = a;
  sum.constant = sum.constant + b.constant;
  for (const Index::Term& term : b.terms) add_term(sum, term.atom, term.coefficient);
  join_parts(sum);
  return sum;
}

Index Indices::subtract(const Index& a, const Index& b) { return add(a, multiply(b, -1)); }

Index Indices::multiply(const Index& a, const Extent& by) {
  Index product(a.constant * by);
  for (const Index::Term& term : a.terms) add_term(product, term.atom, term.coefficient * by);
  return product;
}

Indices::Parts Indices::without_multiples(const Index& of, const Extent& by) const {
  Parts parts;
  if (const auto exact = divide_exactly(of.constant, by)) {
    parts.quotient.constant = *exact;
  } else {
    parts.rest.constant = of.constant;
  }
  for (const Index::Term& term : of.terms) {
    if (const auto exact = divide_exactly(term.coefficient, by)) {
      add_term(parts.quotient, term.atom, *exact);
    } else {
      add_term(parts.rest, term.atom, term.coefficient);
    }
  }
  return parts;
}

bool Indices::is_natural(const Index& index) const {
  return natural(index.constant) && std::ranges::all_of(index.terms, [&](const Index::Term& term) {
           const Atom& atom = atoms_[term.atom.index];
           if (!natural(term.coefficient) || atom.kind == Atom::Kind::kValue) return false;
           return atom.kind != Atom::Kind::kMin || (is_natural(atom.of) && is_natural(atom.other));
         });
}

std::optional<std::int64_t> Indices::greatest(const Index& index) const {
  constexpr std::int64_t kMany = std::int64_t{1} << 31;  // so that no product is too large
  if (!index.constant.is_constant() || !is_natural(index)) return {};
  std::int64_t sum = index.constant.constant();
  for (const Index::Term& term : index.terms) {
    const Atom& atom = atoms_[term.atom.index];
    std::optional<std::int64_t> most;
    if (atom.kind == Atom::Kind::kVar) {
      const Extent& bound = vars_[atom.var.index].bound;
      if (bound.is_constant()) most = bound.constant() - 1;
    } else if (atom.kind == Atom::Kind::kDiv && atom.by.is_constant()) {
      most = greatest(atom.of);
      if (most) *most /= atom.by.constant();
    } else if (atom.kind == Atom::Kind::kMod && atom.by.is_constant()) {
      most = atom.by.constant() - 1;
    }
    if (!most || *most >= kMany || !term.coefficient.is_constant() ||
        term.coefficient.constant() >= kMany)
      return {};
    sum += term.coefficient.constant() * *most;
    if (sum >= kMany) return {};
  }
  return sum;
}

bool Indices::is_below(const Index& index, const Extent& bound) const {
  if (index == Index(0)) return true;
  if (bound.is_constant()) {
    const auto most = greatest(index);
    if (most && *most < bound.constant()) return true;
  }
  // One atom that is less than a size.
  if (index.terms.size() != 1 || !index.constant.is_constant(0) ||
      !index.terms[0].coefficient.is_constant(1))
    return false;
  const Atom& atom = atoms_[index.terms[0].atom.index];
  if (atom.kind == Atom::Kind::kVar) return vars_[atom.var.index].bound == bound;
  return atom.kind == Atom::Kind::kMod && atom.by == bound;
}

std::optional<Indices::Parts> Indices::split(const Index& of, const Extent& by) const {
  Parts parts = without_multiples(of, by);
  if (!is_below(parts.rest, by)) return {};
  return parts;
}

std::optional<Extent> Indices::common_factor(const Index& of, const Extent& by) const {
  for (const Index::Term& term : of.terms) {
    const Extent& factor = term.coefficient;
    if (factor.is_constant(1) || factor == by || !natural(factor) || !divide_exactly(by, factor))
      continue;
    if (is_below(without_multiples(of, factor).rest, factor)) return factor;
  }
  return {};
}

Index Indices::part(Atom::Kind kind, const Index& of, const Extent& by) {
  Atom atom;
  atom.kind = kind;
  atom.of = of;
  atom.by = by;
  return just(std::move(atom));
}

Index Indices::divide(const Index& a, const Extent& by) {
  if (by.is_constant(1)) return a;
  if (const auto parts = split(a, by)) return parts->quotient;
  if (const auto factor = common_factor(a, by))
    return divide(without_multiples(a, *factor).quotient, *divide_exactly(by, *factor));
  const Parts parts = without_multiples(a, by);
  if (parts.quotient != Index(0) && is_natural(parts.rest))
    return add(parts.quotient, divide(parts.rest, by));
  return part(Atom::Kind::kDiv, a, by);
}

Index Indices::modulo(const Index& a, const Extent& by) {
  if (by.is_constant(1)) return 0;
  if (const auto parts = split(a, by)) return parts->rest;
  if (const auto factor = common_factor(a, by)) {
    const Parts parts = without_multiples(a, *factor);
    return add(multiply(modulo(parts.quotient, *divide_exactly(by, *factor)), *factor), parts.rest);
  }
  const Parts parts = without_multiples(a, by);
  if (parts.quotient != Index(0) && is_natural(parts.rest)) return modulo(parts.rest, by);
  return part(Atom::Kind::kMod, a, by);
}

Index Indices::minimum(const Index& a, const Index& b) {
  if (a == b) return a;
  if (a.is_constant() && b.is_constant() && a.constant.is_constant() && b.constant.is_constant())
    return std::min(a.constant.constant(), b.constant.constant());
  Atom atom;
  atom.kind = Atom::Kind::kMin;
  atom.of = a;
  atom.other = b;
  return just(std::move(atom));
}

void Indices::each_var(const Index& index, const std::function<void(VarId)>& visit) const {
  for (const Index::Term& term : index.terms) {
    const Atom& atom = atoms_[term.atom.index];
    if (atom.kind == Atom::Kind::kVar) visit(atom.var);
    each_var(atom.of, visit);
    each_var(atom.other, visit);
  }
}

void Indices::each_value(const Index& index, const std::function<void(ValueId)>& visit) const {
  for (const Index::Term& term : index.terms) {
    const Atom& atom = atoms_[term.atom.index];
    if (atom.kind == Atom::Kind::kValue) visit(atom.value);
    each_value(atom.of, visit);
    each_value(atom.other, visit);
  }
}

bool Indices::depends_on(const Index& index, VarId var) const {
  bool found = false;
  each_var(index, [&](VarId other) { found = found || other == var; });
  return found;
}

std::optional<Extent> Indices::stride(const Index& index, VarId var) const {
  Extent stride = 0;
  for (const Index::Term& term : index.terms) {
    const Atom& atom = atoms_[term.atom.index];
    if (atom.kind == Atom::Kind::kVar && atom.var == var) {
      stride = term.coefficient;
    } else if (depends_on(atom.of, var) || depends_on(atom.other, var)) {
      return {};
    }
  }
  return stride;
}

std::int64_t Indices::evaluate(const Index& index, const Numbers& numbers) const {
  std::int64_t sum = numbers.size(index.constant);
  for (const Index::Term& term : index.terms) {
    const Atom& atom = atoms_[term.atom.index];
    std::int64_t value = 0;
    switch (atom.kind) {
      case Atom::Kind::kVar: value = numbers.var(atom.var); break;
      case Atom::Kind::kValue: value = numbers.value(atom.value); break;
      case Atom::Kind::kDiv: value = evaluate(atom.of, numbers) / numbers.size(atom.by); break;
      case Atom::Kind::kMod: value = evaluate(atom.of, numbers) % numbers.size(atom.by); break;
      case Atom::Kind::kMin:
        value = std::min(evaluate(atom.of, numbers), evaluate(atom.other, numbers));
        break;
    }
    sum += numbers.size(term.coefficient) * value;
  }
  return sum;
}

}  // namespace segfuse::compiler::loop
