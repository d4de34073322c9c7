#pragma once
// Positions in memory, as the loops of a kernel make them: whole numbers, 64 bits.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ir/extent.h"

namespace segfuse::compiler::loop {

using VarId = ir::Id<struct VarTag>;      ///< a loop's variable
using ValueId = ir::Id<struct ValueTag>;  ///< a scalar that the kernel computes
using AtomId = ir::Id<struct AtomTag>;    ///< what an index is a sum of

/// constant + the sum of coefficient * atom. Coefficients are sizes, known when the kernel starts.
/// A normal form: equal sums are equal objects.
struct Index {
  struct Term {
    AtomId atom;
    ir::Extent coefficient;
    friend bool operator==(const Term&, const Term&) = default;
  };
  std::vector<Term> terms;  ///< ascending by atom; no coefficient is zero
  ir::Extent constant;

  Index() = default;
  Index(ir::Extent value) : constant(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Index(std::int64_t value) : constant(value) {}           // NOLINT(google-explicit-constructor)
  bool is_constant() const { return terms.empty(); }
  friend bool operator==(const Index&, const Index&) = default;
};

struct Atom {
  enum class Kind : std::uint8_t {
    kVar,    ///< a loop's variable
    kValue,  ///< an integer that the kernel loaded or computed
    kDiv,    ///< of / by, both not negative
    kMod,    ///< of % by
    kMin,    ///< the smaller of two
  };
  Kind kind = Kind::kVar;
  VarId var;
  ValueId value;             ///< invalid: of a kernel that this one is numbered after (again())
  std::uint32_t origin = 0;  ///< kValue: see Indices::of
  Index of;
  ir::Extent by;
  Index other;
  friend bool operator==(const Atom&, const Atom&) = default;
};

struct Var {
  std::string name;
  ir::Extent bound;  ///< it is at least 0 and less than this
};

/// a / b, if that is a polynomial.
std::optional<ir::Extent> divide_exactly(const ir::Extent& a, const ir::Extent& b);

/// The variables and atoms of one kernel: makes indices and simplifies them.
class Indices {
 public:
  VarId add_var(std::string name, ir::Extent bound);
  const Var& var(VarId id) const { return vars_.at(id.index); }
  const Atom& atom(AtomId id) const { return atoms_.at(id.index); }
  std::size_t vars() const { return vars_.size(); }
  std::size_t atoms() const { return atoms_.size(); }

  Index of(VarId var);
  Index of(ValueId value);
  /// The same of a value that comes from a place with that number, not 0: by it the kernel that is
  /// written after this one finds the value again.
  Index of(ValueId value, std::uint32_t origin);
  /// For a kernel that is written once more. Its variables are the same, in the same order, and
  /// what is equal in one of the kernels is equal in the other; ids of values are those of the new
  /// kernel, where it has them.
  void again();
  Index add(const Index& a, const Index& b);
  Index subtract(const Index& a, const Index& b);
  Index multiply(const Index& a, const ir::Extent& by);
  /// Rounded down; `a` is not negative and `by` positive whenever it is evaluated.
  Index divide(const Index& a, const ir::Extent& by);
  Index modulo(const Index& a, const ir::Extent& by);
  Index minimum(const Index& a, const Index& b);

  /// Whether the index, or what its atoms are made of, holds the variable.
  bool depends_on(const Index& index, VarId var) const;
  /// Calls visit for every value in it, at any depth.
  void each_value(const Index& index, const std::function<void(ValueId)>& visit) const;
  void each_var(const Index& index, const std::function<void(VarId)>& visit) const;
  /// How far it moves when the variable grows by one; nothing if that is not one number for all
  /// values of the variable.
  std::optional<ir::Extent> stride(const Index& index, VarId var) const;
  /// With numbers for variables, values and sizes.
  struct Numbers {
    std::function<std::int64_t(VarId)> var;
    std::function<std::int64_t(ValueId)> value;
    std::function<std::int64_t(const ir::Extent&)> size;
  };
  std::int64_t evaluate(const Index& index, const Numbers& numbers) const;

 private:
  AtomId intern(Atom atom);
  Index just(Atom atom);
  Index part(Atom::Kind kind, const Index& of, const ir::Extent& by);
  void add_term(Index& index, AtomId atom, const ir::Extent& coefficient) const;
  void join_parts(Index& index) const;
  struct Parts {
    Index quotient;
    Index rest;
  };
  /// of = by * quotient + rest, where nothing in the rest is a multiple of `by`.
  Parts without_multiples(const Index& of, const ir::Extent& by) const;
  /// of = by * quotient + rest with 0 <= rest < by, if that can be seen.
  std::optional<Parts> split(const Index& of, const ir::Extent& by) const;
  /// The factor of an `of` and a `by` that makes of / by the same as (of / factor) / (by / factor),
  /// as of = factor * quotient + rest with 0 <= rest < factor; not one.
  std::optional<ir::Extent> common_factor(const Index& of, const ir::Extent& by) const;
  /// Whether it is seen that 0 <= index, or 0 <= index < bound.
  bool is_natural(const Index& index) const;
  bool is_below(const Index& index, const ir::Extent& bound) const;
  /// The greatest value of an index that is_natural, if it is known.
  std::optional<std::int64_t> greatest(const Index& index) const;

  std::vector<Var> vars_;
  std::vector<Atom> atoms_;
  std::size_t next_var_ = 0;  ///< less than there are: variables that come again
};

}  // namespace segfuse::compiler::loop
