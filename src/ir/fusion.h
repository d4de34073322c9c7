#pragma once
// The Fusion IR.
//
// Meaning. A Fusion is a pure tensor program: values (Val) are arrays with an element type and one
// symbolic extent per axis; expressions (Expr) define values from values. Every value has one
// definition: a Fusion input, or a result of an Expr. There is no order but that of the data, and
// no effect but that of aliases: an aliased output replaces the content of its input when the
// program has ended, after every read of it. Dead expressions (no output needs them) are legal and
// change nothing. Floating point follows IEEE 754 in the value's type; f16 and bf16 are computed in
// f32 and rounded at each value. Integers wrap. Reductions may associate in any fixed order. NaN
// propagates through every operation whose formula (ops.def) reads it, maximum and minimum
// included.
//
// Ownership. A Fusion owns its statements by composition; Vals and Exprs are named by ids that are
// only meaningful in that Fusion and its copies. Nothing points back at the container, so copy,
// move and swap are the plain C++ ones. A moved-from Fusion is empty and can be used again.

#include <any>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/extent.h"
#include "ir/id.h"
#include "ir/op.h"

namespace segfuse::ir {

struct Val {
  DType dtype = DType::kF32;
  Extents shape;
  ExprId definition;         ///< invalid for an input
  std::uint32_t result = 0;  ///< which result of the definition
  std::vector<ExprId>
      uses;  ///< every Expr that has it as an operand, dead or alive, ascending, each once
  std::uint32_t outputs = 0;  ///< how many outputs of the Fusion it is
};

struct Expr {
  Op op = Op::constant;
  std::vector<ValId> operands;
  std::vector<ValId> results;
  Attrs attrs;  ///< in the order of info(op).attrs

  template <class T>
  const T& attr(std::string_view name) const;
};

struct Output {
  ValId val;
  std::string name;
  friend bool operator==(const Output&, const Output&) = default;
};

struct Input {
  ValId val;
  std::string name;
  friend bool operator==(const Input&, const Input&) = default;
};

/// When the program has ended, `input` holds the content of `output`.
struct Alias {
  ValId output;
  ValId input;
  friend bool operator==(const Alias&, const Alias&) = default;
};

/// The new ids after compact(); an erased id maps to an invalid one.
struct Renumbering {
  std::vector<ValId> vals;
  std::vector<ExprId> exprs;
};

/// All statements of one Fusion. A plain value: copying it copies everything.
struct IrStorage {
  template <class T>
  struct Slot {
    T item;
    bool alive = true;
  };
  // Deques: references to statements stay good while others are added.
  std::deque<Slot<Val>> vals;
  std::deque<Slot<Expr>> exprs;
  std::vector<Symbol> symbols;
  /// What each symbol equals, over representatives; a representative equals itself.
  std::vector<Extent> symbol_parent;
  /// Sizes that must be equal at run time, none of them decided yet, each once.
  std::vector<std::pair<Extent, Extent>> requirements;
  std::map<std::pair<DType, std::uint64_t>, ValId> constants;  ///< by type and bits of the value
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<Alias> aliases;
  std::map<std::string, std::any> data;
};

class Fusion {
 public:
  explicit Fusion(std::string name = "main") : name_(std::move(name)) {}
  Fusion(const Fusion&) = default;
  Fusion& operator=(const Fusion&) = default;
  Fusion(Fusion&& other) noexcept
      : name_(std::move(other.name_)), ir_(std::exchange(other.ir_, {})) {}
  Fusion& operator=(Fusion&& other) noexcept;
  ~Fusion() = default;
  void swap(Fusion& other) noexcept;
  /// Back to an empty program; the name stays.
  void clear() { ir_ = {}; }

  const std::string& name() const noexcept { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }

  // --- sizes
  // -----------------------------------------------------------------------
  /// The symbol of that name, made if it does not exist. A name is a letter or '_' and then
  /// letters, digits and '_', and not `floordiv` (UsageError).
  SymbolId symbol(std::string_view name);
  /// numerator / divisor rounded toward minus infinity, in a normal form: multiples of the divisor
  /// stand outside, common factors are cancelled. UsageError unless divisor > 0.
  Extent floordiv(const Extent& numerator, std::int64_t divisor);
  /// States that two sizes are equal. If one symbol can be written in the others it is, so that
  /// equal sizes are equal polynomials: M == N + 1 makes every M an N + 1. What has no such symbol,
  /// as 2*M == 3*N, becomes a requirement. Both are checked at run time. Returns false, and changes
  /// nothing, if they can never be equal for sizes that are not negative, or only by being zero as
  /// 4*N and 5*N are, or if an expression would break its rule. O(size of the Fusion) when a symbol
  /// is united.
  [[nodiscard]] bool unify(const Extent& a, const Extent& b);
  /// The extent over representative symbols.
  Extent canonical(const Extent& extent) const;
  Extents canonical(const Extents& extents) const;
  /// Whether two sizes are equal in every run: they have one canonical form, or the difference
  /// follows from the requirements. False says only that it is not known.
  bool equal(const Extent& a, const Extent& b) const;
  bool equal(const Extents& a, const Extents& b) const;
  std::string to_string(const Extent& extent) const;
  std::string to_string(const Extents& extents) const;  ///< "[B, T, 64]"

  // --- building
  // -----------------------------------------------------------------------
  ValId add_input(std::string name, DType dtype, Extents shape);
  /// Infers the results by the operation's rules; throws UsageError that names the operation and
  /// the rule broken, and then nothing is changed.
  ExprId add_expr(Op op, std::vector<ValId> operands, Attrs attrs = {});
  /// A scalar constant; equal constants (bit for bit; all NaN are one) are one value while it
  /// lives.
  ValId constant(double value, DType dtype);
  /// A value may be output more than once, and an input may be an output.
  void add_output(ValId val, std::string name = "");
  /// `output` must be an output and `input` an input of equal type and shape; an input is aliased
  /// at most once.
  void add_alias(ValId output, ValId input);

  // --- reading
  // -----------------------------------------------------------------------
  const Val& val(ValId id) const;
  const Expr& expr(ExprId id) const;
  ValId result(ExprId id, std::size_t index = 0) const { return expr(id).results.at(index); }
  bool contains(ValId id) const noexcept;
  bool contains(ExprId id) const noexcept;
  const std::vector<Input>& inputs() const noexcept { return ir_.inputs; }
  const std::vector<Output>& outputs() const noexcept { return ir_.outputs; }
  const std::vector<Alias>& aliases() const noexcept { return ir_.aliases; }
  const IrStorage& storage() const noexcept { return ir_; }
  bool is_input(ValId id) const;
  bool is_output(ValId id) const;
  /// Every Val and Expr in storage, ascending by id, dead ones included.
  std::vector<ValId> vals() const;
  std::vector<ExprId> exprs() const;
  /// The Exprs that outputs need, in topological order (of the ready ones the smallest id first).
  std::vector<ExprId> live_exprs() const;
  /// All Exprs, dead ones included, in topological order.
  std::vector<ExprId> sorted_exprs() const;
  template <class T>
  const T& attr(ExprId id, std::string_view name) const;

  // --- editing
  // -----------------------------------------------------------------------
  /// Removes an Expr and its results. UsageError if a result is still used or is an output.
  void erase(ExprId id);
  /// Removes the definition of `val` and, transitively, every Expr that uses a result of a removed
  /// Expr. Returns them, users before definitions. UsageError, and nothing is changed, if an input
  /// or output would go.
  std::vector<ExprId> erase_with_users(ValId val);
  /// Lets every use of `val`, outputs included, be `with` instead. Types and shapes must agree, and
  /// `with` must not depend on `val` (UsageError). Aliases of an output follow it.
  void replace_uses(ValId val, ValId with);
  /// The same without the search for a dependence, which is O(size of the Fusion): the caller knows
  /// that `with` does not depend on `val`; verify() finds the cycle if it does.
  void redirect_uses(ValId val, ValId with);
  /// Lets one user read `with` in place of `val`; types and order as for redirect_uses().
  void replace_operand(ExprId user, ValId val, ValId with);
  /// Lets `input` be no alias's target any more. Nothing if it is none.
  void remove_alias(ValId input);
  /// Writes all sizes in storage (shapes and attributes) over representatives, so that equal sizes
  /// are equal objects. Returns whether one was not.
  bool canonicalise_sizes();
  /// Removes the output at that position, and its aliases if the value is no output any more.
  void remove_output(std::size_t position);
  /// Removes an input without uses.
  void remove_input(ValId id);
  /// Drops the slots of erased statements. Ids inside attached data are the owner's to renumber.
  Renumbering compact();

  // --- attached data
  // -----------------------------------------------------------------------
  /// Anything a user wants to travel with the Fusion and its copies.
  void set_data(const std::string& key, std::any value) { ir_.data[key] = std::move(value); }
  const std::any* data(const std::string& key) const;

 private:
  friend class FusionTester;  // tests break invariants on purpose to see verify() find it
  /// All that unify() and floordiv() change.
  struct SizeState {
    std::vector<Symbol> symbols;
    std::vector<Extent> symbol_parent;
    std::vector<std::pair<Extent, Extent>> requirements;
  };
  SizeState size_state() const { return {ir_.symbols, ir_.symbol_parent, ir_.requirements}; }
  void restore(SizeState state);
  bool settle(const Extent& first, const Extent& second);
  bool follows(const Extent& zero) const;
  bool rules_hold();
  bool bind_one(const Extent& difference, bool& possible);
  void refresh_sizes();
  bool occurs(SymbolId symbol, const Extent& inside) const;
  std::size_t weight(const Extent& extent) const;
  Extent add_derived(const Extent& numerator, std::int64_t divisor);

  Val& mutable_val(ValId id);
  Expr& mutable_expr(ExprId id);
  std::vector<ExprId> sort(const std::vector<bool>& wanted) const;
  bool depends_on(ValId val, ValId ancestor) const;
  void need_same_type(ValId val, ValId with) const;
  void drop_use(ValId val, ExprId user);

  std::string name_;
  IrStorage ir_;
};

/// Position of the attribute `name` in Expr::attrs; InternalError if the operation has none of that
/// name.
std::size_t attr_position(Op op, std::string_view name);

template <class T>
const T& Expr::attr(std::string_view name) const {
  return std::get<T>(attrs[attr_position(op, name)]);
}
template <class T>
const T& Fusion::attr(ExprId id, std::string_view name) const {
  return expr(id).attr<T>(name);
}

inline void swap(Fusion& a, Fusion& b) noexcept { a.swap(b); }

}  // namespace segfuse::ir
