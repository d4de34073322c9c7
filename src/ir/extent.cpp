#include "ir/extent.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>

#include "segfuse/error.h"

namespace segfuse::ir {
namespace {

constexpr std::size_t kMaxFactors = 256;  // of a term

std::int64_t add_checked(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum))
    throw UsageError(
        fmt::format("the size {} + {} does not fit 64 bits; use smaller shapes", a, b));
  return sum;
}

std::int64_t multiply_checked(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product))
    throw UsageError(
        fmt::format("the size {} * {} does not fit 64 bits; use smaller shapes", a, b));
  return product;
}

bool before(const std::vector<SymbolId>& a, const std::vector<SymbolId>& b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

}  // namespace

Extent::Extent(std::int64_t constant) { add_term({}, constant); }
Extent::Extent(SymbolId symbol) { add_term({symbol}, 1); }

void Extent::add_term(std::vector<SymbolId> factors, std::int64_t coefficient) {
  if (coefficient == 0) return;
  if (factors.size() > kMaxFactors)
    throw UsageError(
        fmt::format("a size is a product of more than {} symbols; name it with a symbol of its own",
                    kMaxFactors));
  std::sort(factors.begin(), factors.end());
  const auto place =
      std::lower_bound(terms_.begin(), terms_.end(), factors,
                       [](const Term& term, const auto& key) { return before(term.factors, key); });
  if (place == terms_.end() || place->factors != factors) {
    if (terms_.size() == kMaxTerms)
      throw UsageError(fmt::format(
          "a size has more than {} terms; name it with a symbol of its own", kMaxTerms));
    terms_.insert(place, Term{std::move(factors), coefficient});
    return;
  }
  place->coefficient = add_checked(place->coefficient, coefficient);
  if (place->coefficient == 0) terms_.erase(place);
}

bool Extent::is_constant() const noexcept {
  return terms_.empty() || (terms_.size() == 1 && terms_[0].factors.empty());
}

std::int64_t Extent::constant() const noexcept {
  return !terms_.empty() && terms_[0].factors.empty() ? terms_[0].coefficient : 0;
}

std::optional<SymbolId> Extent::as_symbol() const noexcept {
  if (terms_.size() != 1 || terms_[0].factors.size() != 1 || terms_[0].coefficient != 1) return {};
  return terms_[0].factors[0];
}

std::vector<SymbolId> Extent::symbols() const {
  std::vector<SymbolId> all;
  for (const Term& term : terms_) all.insert(all.end(), term.factors.begin(), term.factors.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

Extent operator+(const Extent& a, const Extent& b) {
  Extent sum = a;
  for (const Extent::Term& term : b.terms_) sum.add_term(term.factors, term.coefficient);
  return sum;
}

Extent operator-(const Extent& a, const Extent& b) { return a + Extent(-1) * b; }

Extent operator*(const Extent& a, const Extent& b) {
  Extent product;
  for (const Extent::Term& left : a.terms_) {
    for (const Extent::Term& right : b.terms_) {
      std::vector<SymbolId> factors = left.factors;
      factors.insert(factors.end(), right.factors.begin(), right.factors.end());
      product.add_term(std::move(factors), multiply_checked(left.coefficient, right.coefficient));
    }
  }
  return product;
}

Extent Extent::of(const Term& term) {
  Extent extent;
  extent.add_term(term.factors, term.coefficient);
  return extent;
}

Extent Extent::substitute(const std::function<Extent(SymbolId)>& value_of) const {
  Extent sum;
  for (const Term& term : terms_) {
    Extent product = term.coefficient;
    for (const SymbolId symbol : term.factors) product = product * value_of(symbol);
    sum = sum + product;
  }
  return sum;
}

std::int64_t Extent::evaluate(const std::function<std::int64_t(SymbolId)>& value_of) const {
  std::int64_t sum = 0;
  for (const Term& term : terms_) {
    std::int64_t product = term.coefficient;
    for (const SymbolId symbol : term.factors)
      product = multiply_checked(product, value_of(symbol));
    sum = add_checked(sum, product);
  }
  return sum;
}

std::string Extent::to_string(const std::function<std::string(SymbolId)>& name_of) const {
  if (terms_.empty()) return "0";
  struct NamedTerm {
    std::vector<std::string> factors;
    std::int64_t coefficient;
  };
  std::vector<NamedTerm> named;
  for (const Term& term : terms_) {
    NamedTerm& copy = named.emplace_back();
    copy.coefficient = term.coefficient;
    for (const SymbolId symbol : term.factors) copy.factors.push_back(name_of(symbol));
    std::sort(copy.factors.begin(), copy.factors.end());
  }
  // Names may be alike, so the coefficient decides last.
  std::sort(named.begin(), named.end(), [](const NamedTerm& a, const NamedTerm& b) {
    if (a.factors.size() != b.factors.size()) return a.factors.size() > b.factors.size();
    return std::tie(a.factors, a.coefficient) < std::tie(b.factors, b.coefficient);
  });
  std::string text;
  for (const NamedTerm& term : named) {
    std::uint64_t magnitude = static_cast<std::uint64_t>(term.coefficient);
    const bool negative = term.coefficient < 0;
    if (negative) magnitude = 0 - magnitude;
    if (text.empty()) {
      text += negative ? "-" : "";
    } else {
      text += negative ? " - " : " + ";
    }
    std::string product;
    if (magnitude != 1 || term.factors.empty()) product = std::to_string(magnitude);
    for (const std::string& factor : term.factors) product += (product.empty() ? "" : "*") + factor;
    text += product;
  }
  return text;
}

}  // namespace segfuse::ir
