#pragma once
// Symbolic sizes of axes: polynomials with integer coefficients over the symbols of a Fusion.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ir/id.h"

namespace segfuse::ir {

/// A polynomial in normal form: terms sorted by their symbols, no zero coefficients. Equal
/// polynomials are equal objects. Arithmetic that overflows 64 bits, or makes more than kMaxTerms
/// terms, throws UsageError.
class Extent {
 public:
  Extent() = default;  ///< zero
  Extent(
      std::int64_t constant);  // NOLINT(google-explicit-constructor): sizes are written as numbers
  Extent(SymbolId symbol);     // NOLINT(google-explicit-constructor)

  bool is_constant() const noexcept;
  bool is_constant(std::int64_t value) const noexcept {
    return is_constant() && constant() == value;
  }
  /// The constant term.
  std::int64_t constant() const noexcept;
  /// The symbol, if the polynomial is just one symbol.
  std::optional<SymbolId> as_symbol() const noexcept;
  /// All symbols in it, ascending, each once.
  std::vector<SymbolId> symbols() const;

  friend Extent operator+(const Extent& a, const Extent& b);
  friend Extent operator-(const Extent& a, const Extent& b);
  friend Extent operator*(const Extent& a, const Extent& b);
  friend bool operator==(const Extent&, const Extent&) = default;

  /// Replaces every symbol by `value_of(symbol)`.
  Extent substitute(const std::function<Extent(SymbolId)>& value_of) const;
  /// Evaluates with numbers for the symbols.
  std::int64_t evaluate(const std::function<std::int64_t(SymbolId)>& value_of) const;
  /// Text as in `2*B*T + 3`; `0` when empty. Terms of many factors come first, then by name: the
  /// text does not depend on the ids.
  std::string to_string(const std::function<std::string(SymbolId)>& name_of) const;

  struct Term {
    std::vector<SymbolId> factors;  ///< ascending, repeated for powers; empty for the constant
    std::int64_t coefficient = 0;
    friend bool operator==(const Term&, const Term&) = default;
  };
  const std::vector<Term>& terms() const noexcept { return terms_; }
  static Extent of(const Term& term);
  static constexpr std::size_t kMaxTerms = 1000;

 private:
  void add_term(std::vector<SymbolId> factors, std::int64_t coefficient);
  std::vector<Term>
      terms_;  // ascending by (number of factors, factors); the constant, if any, comes first
};

using Extents = std::vector<Extent>;

/// A named size that is only known at run time, or `floordiv(numerator, divisor)` of other sizes.
struct Symbol {
  std::string name;
  struct FloorDiv {
    Extent numerator;
    std::int64_t divisor = 1;
    friend bool operator==(const FloorDiv&, const FloorDiv&) = default;
  };
  std::optional<FloorDiv> derived;
};

}  // namespace segfuse::ir
