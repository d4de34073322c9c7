#include "compiler/codegen/cuda/positions.h"

#include <fmt/format.h>

#include <algorithm>

#include "compiler/codegen/cuda/scalars.h"
#include "segfuse/error.h"

namespace segfuse::compiler::cuda {

using loop::Atom;
using loop::Index;

Positions::Positions(const loop::Kernel& kernel)
    : kernel_(kernel),
      sizes_(kernel.sizes()),
      vars_(kernel.indices.vars()),
      values_(kernel.values.size()),
      type_(kernel.schedule.narrow ? "int" : "long long") {
  for (std::size_t i = 0; i < vars_.size(); ++i) vars_[i] = fmt::format("i{}", i);
  for (std::size_t i = 0; i < values_.size(); ++i) values_[i] = fmt::format("v{}", i);
  for (std::uint32_t i = 0; i < kernel.indices.atoms();
       ++i) {  // what one is made of comes before it
    const Atom& atom = kernel.indices.atom(loop::AtomId{i});
    const bool divided = atom.kind == Atom::Kind::kDiv || atom.kind == Atom::Kind::kMod;
    of_outer_.push_back(atom.kind == Atom::Kind::kVar ? atom.var == kernel.outer
                                                      : divided && of_outer(atom.of));
  }
}

bool Positions::of_outer(const Index& index) const {
  return std::all_of(index.terms.begin(), index.terms.end(),
                     [&](const Index::Term& term) { return of_outer_.at(term.atom.index) != 0; });
}

std::vector<std::string> Positions::definitions() const {
  std::vector<std::string> lines;
  // A definition may name others: they come before it.
  for (auto id = defined_.rbegin(); id != defined_.rend(); ++id)
    lines.push_back(fmt::format("const {} q{} = {};", type_, id->index,
                                quotient(kernel_.indices.atom(*id), false)));
  std::reverse(lines.begin(), lines.end());
  return lines;
}

std::string Positions::size(const ir::Extent& extent) const {
  if (extent.is_constant()) return whole_literal(extent.constant());
  const auto found = std::find(sizes_.begin(), sizes_.end(), extent);
  if (found == sizes_.end())
    throw InternalError(
        fmt::format("kernel {}: a size that Kernel::sizes() does not list", kernel_.name));
  return fmt::format("n{}", found - sizes_.begin());
}

bool Positions::holds_value(const Index& index) const {
  bool found = false;
  kernel_.indices.each_value(index, [&](loop::ValueId) { found = true; });
  return found;
}

std::string Positions::index(const Index& index) const { return sum(index, holds_value(index)); }

std::string Positions::sum(const Index& index, bool wide) const {
  std::string text;
  for (const Index::Term& term : index.terms) {
    if (!text.empty()) text += " + ";
    text += atom(term.atom, wide);
    if (!term.coefficient.is_constant(1)) text += " * " + size(term.coefficient);
  }
  if (text.empty()) return size(index.constant);
  if (!index.constant.is_constant(0)) text += " + " + size(index.constant);
  return text;
}

void Positions::name_element(loop::VarId var, const std::string& base, int vector) {
  name(var, fmt::format("({} + e)", base));
  element_ = {var, base, vector};
}

/// The element's position divided by a multiple of the vector.
bool Positions::is_element(const Atom& atom) const {
  if (!element_.var.valid() || element_.vector == 0 || atom.of.terms.size() != 1 ||
      !atom.of.constant.is_constant(0) || !atom.of.terms[0].coefficient.is_constant(1) ||
      !atom.by.is_constant() || atom.by.constant() % element_.vector != 0)
    return false;
  const Atom& of = kernel_.indices.atom(atom.of.terms[0].atom);
  return of.kind == Atom::Kind::kVar && of.var == element_.var;
}

/// A quotient or remainder, which are not negative.
std::string Positions::quotient(const Atom& atom, bool wide) const {
  const bool narrow = !wide && kernel_.schedule.narrow;
  const char* const sign = atom.kind == Atom::Kind::kDiv ? "/" : "%";
  const bool element = is_element(atom);
  const std::string of = element ? element_.base : sum(atom.of, wide);
  const std::string by = size(atom.by);
  // The vector lies between two multiples: the compiler sees that addresses differ by numbers.
  const std::string more = element && atom.kind == Atom::Kind::kMod ? " + e" : "";
  if (narrow && more.empty()) return fmt::format("int(unsigned({}) {} unsigned({}))", of, sign, by);
  if (narrow) return fmt::format("(int(unsigned({}) {} unsigned({})){})", of, sign, by, more);
  if (element)
    return fmt::format("((long long)((unsigned long long)({}) {} (unsigned long long)({})){})", of,
                       sign, by, more);
  return fmt::format("(long long)((unsigned long long)({}) {} (unsigned long long)({}))", of, sign,
                     by);
}

std::string Positions::atom(loop::AtomId id, bool wide) const {
  const Atom& atom = kernel_.indices.atom(id);
  switch (atom.kind) {
    case Atom::Kind::kVar: return text(atom.var);
    case Atom::Kind::kValue: return fmt::format("(long long)({})", text(atom.value));
    case Atom::Kind::kDiv:
    case Atom::Kind::kMod:
      if (of_outer_.at(id.index) == 0) return quotient(atom, wide);
      defined_.insert(id);
      return fmt::format("{}q{}", wide && kernel_.schedule.narrow ? "(long long)" : "", id.index);
    case Atom::Kind::kMin: {
      const std::string type = !wide && kernel_.schedule.narrow ? "int" : "(long long)";
      return fmt::format("min({0}({1}), {0}({2}))", type, sum(atom.of, wide),
                         sum(atom.other, wide));
    }
  }
  throw InternalError("an atom of no kind");
}

std::string Positions::within(const loop::Within& condition) const {
  const bool narrow = kernel_.schedule.narrow && !holds_value(condition.index);
  const char* const type = narrow ? "unsigned" : "(unsigned long long)";
  return fmt::format("{0}({1}) < {0}({2})", type, index(condition.index), size(condition.bound));
}

std::string Positions::all(const std::vector<loop::Within>& conditions) const {
  std::string text;
  for (const loop::Within& condition : conditions)
    text += (text.empty() ? "" : " && ") + within(condition);
  return text.empty() ? "true" : text;
}

}  // namespace segfuse::compiler::cuda
