#include "ir/rules/verify.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <set>

#include "ir/rules/infer.h"
#include "segfuse/error.h"

namespace segfuse::ir {
namespace {

class Verifier {
 public:
  explicit Verifier(const Fusion& fusion) : fusion_(fusion), ir_(fusion.storage()) {}

  void run() const {
    check_symbols();
    check_definitions();
    check_uses();
    check_inputs_and_outputs();
    check_constants();
    check_acyclic();
    check_types();
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw InternalError(fmt::format("the Fusion '{}' is broken: {}", fusion_.name(),
                                    fmt::format(format, std::forward<Args>(args)...)));
  }
  std::string name(ExprId id) const {
    return fmt::format("expression {} ({})", id.index, info(fusion_.expr(id).op).name);
  }
  void need_val(ValId id, std::string_view role) const {
    if (!fusion_.contains(id)) fail("value {} ({}) is not a live value", id.index, role);
  }
  void need_extent(const Extent& extent, std::string_view where) const {
    for (const SymbolId id : extent.symbols())
      if (id.index >= ir_.symbols.size()) fail("symbol {} in {} does not exist", id.index, where);
  }

  void check_symbols() const;
  void check_requirements() const;
  void check_definitions() const;
  void check_results(ExprId id) const;
  void check_uses() const;
  void check_inputs_and_outputs() const;
  void check_aliases() const;
  void check_constants() const;
  void check_acyclic() const;
  void check_types() const;

  const Fusion& fusion_;
  const IrStorage& ir_;
};

void Verifier::check_symbols() const {
  if (ir_.symbols.size() != ir_.symbol_parent.size())
    fail("{} symbols have {} parents", ir_.symbols.size(), ir_.symbol_parent.size());
  std::set<std::string> names;
  for (std::uint32_t i = 0; i < ir_.symbols.size(); ++i) {
    const Extent& parent = ir_.symbol_parent[i];
    need_extent(parent, "the parent of a symbol");
    for (const SymbolId id : parent.symbols())
      if (ir_.symbol_parent[id.index] != Extent(id))
        fail("the parent of symbol {} is not over representatives", i);
    const auto& derived = ir_.symbols[i].derived;
    if (!derived) {
      if (!names.insert(ir_.symbols[i].name).second)
        fail("two symbols are named '{}'", ir_.symbols[i].name);
      continue;
    }
    if (derived->divisor <= 1) fail("symbol {} divides by {}", i, derived->divisor);
    need_extent(derived->numerator, "a division");
  }
  // A division may only be made of symbols that are not made of it.
  std::vector<int> state(ir_.symbols.size(), 0);  // 1: being visited, 2: done
  auto visit = [&](auto& self, SymbolId id) -> void {
    const auto& derived = ir_.symbols[id.index].derived;
    if (state[id.index] == 1) fail("symbol {} is made of itself", id.index);
    if (state[id.index] == 2) return;
    state[id.index] = 1;
    if (derived)
      for (const SymbolId inner : fusion_.canonical(derived->numerator).symbols())
        self(self, inner);
    state[id.index] = 2;
  };
  for (std::uint32_t i = 0; i < ir_.symbols.size(); ++i) visit(visit, SymbolId{i});
  for (const ValId id : fusion_.vals())
    for (const Extent& extent : fusion_.val(id).shape) need_extent(extent, "the shape of a value");
  check_requirements();
}

void Verifier::check_requirements() const {
  for (const auto& [left, right] : ir_.requirements) {
    need_extent(left, "a requirement");
    need_extent(right, "a requirement");
    if ((left - right).is_constant())
      fail("the requirement {} == {} is decided", fusion_.to_string(left),
           fusion_.to_string(right));
    if (!(fusion_.canonical(left) == left && fusion_.canonical(right) == right))
      fail("the requirement {} == {} is not over representatives", fusion_.to_string(left),
           fusion_.to_string(right));
  }
}

void Verifier::check_results(ExprId id) const {
  const Expr& e = fusion_.expr(id);
  if (static_cast<std::size_t>(e.op) >= all_ops().size())
    fail("expression {} has no operation", id.index);
  if (e.results.empty()) fail("{} has no results", name(id));
  for (std::uint32_t r = 0; r < e.results.size(); ++r) {
    need_val(e.results[r], "a result");
    const Val& val = fusion_.val(e.results[r]);
    if (!(val.definition == id && val.result == r))
      fail("value {} is result {} of {} but does not name it as its definition", e.results[r].index,
           r, name(id));
  }
  for (const ValId operand : e.operands) need_val(operand, "an operand");
}

void Verifier::check_definitions() const {
  for (const ExprId id : fusion_.exprs()) check_results(id);
  for (const ValId id : fusion_.vals()) {
    const Val& val = fusion_.val(id);
    if (!val.definition.valid()) {
      const auto inputs = std::count_if(ir_.inputs.begin(), ir_.inputs.end(),
                                        [&](const Input& input) { return input.val == id; });
      if (inputs != 1)
        fail("value {} has no definition and is listed as an input {} times", id.index, inputs);
      continue;
    }
    if (!fusion_.contains(val.definition))
      fail("the definition of value {} is not a live expression", id.index);
    const auto& results = fusion_.expr(val.definition).results;
    if (!(val.result < results.size() && results[val.result] == id))
      fail("value {} names {} as its definition but is not its result", id.index,
           name(val.definition));
  }
}

void Verifier::check_uses() const {
  std::vector<std::vector<ExprId>> uses(ir_.vals.size());
  for (const ExprId id : fusion_.exprs())
    for (const ValId operand : fusion_.expr(id).operands)
      if (uses[operand.index].empty() || uses[operand.index].back() != id)
        uses[operand.index].push_back(id);
  for (const ValId id : fusion_.vals())
    if (fusion_.val(id).uses != uses[id.index])
      fail("the uses of value {} are not exactly the expressions that use it", id.index);
}

void Verifier::check_inputs_and_outputs() const {
  std::set<std::string_view> names;
  for (const Input& input : ir_.inputs) {
    need_val(input.val, "an input");
    if (fusion_.val(input.val).definition.valid())
      fail("the input '{}' has a definition", input.name);
    if (!names.insert(input.name).second) fail("two inputs are named '{}'", input.name);
  }
  std::vector<std::uint32_t> outputs(ir_.vals.size(), 0);
  for (const Output& output : ir_.outputs) {
    need_val(output.val, "an output");
    ++outputs[output.val.index];
  }
  check_aliases();
  for (const ValId id : fusion_.vals())
    if (fusion_.val(id).outputs != outputs[id.index])
      fail("value {} is {} outputs and says that it is {}", id.index, outputs[id.index],
           fusion_.val(id).outputs);
}

void Verifier::check_aliases() const {
  std::set<ValId> taken;
  for (const Alias& alias : ir_.aliases) {
    need_val(alias.output, "an aliased output");
    need_val(alias.input, "an input that is aliased");
    if (std::none_of(ir_.outputs.begin(), ir_.outputs.end(),
                     [&](const Output& output) { return output.val == alias.output; }))
      fail("value {} is aliased but is not an output", alias.output.index);
    if (!fusion_.is_input(alias.input))
      fail("value {} is aliased onto but is not an input", alias.input.index);
    if (!taken.insert(alias.input).second)
      fail("the input value {} is aliased twice", alias.input.index);
    const Val& from = fusion_.val(alias.output);
    const Val& to = fusion_.val(alias.input);
    if (!(from.dtype == to.dtype && fusion_.canonical(from.shape) == fusion_.canonical(to.shape)))
      fail("the alias of value {} onto value {} changes the type", alias.output.index,
           alias.input.index);
  }
}

void Verifier::check_constants() const {
  for (const auto& [key, id] : ir_.constants) {
    need_val(id, "a constant");
    const ExprId definition = fusion_.val(id).definition;
    if (!(definition.valid() && fusion_.expr(definition).op == Op::constant))
      fail("value {} is in the table of constants but is not a constant", id.index);
    const Attrs& attrs = fusion_.expr(definition).attrs;
    const double* value = attrs.size() == 2 ? std::get_if<double>(&attrs[0]) : nullptr;
    const DType* dtype = attrs.size() == 2 ? std::get_if<DType>(&attrs[1]) : nullptr;
    if (!(value && dtype && *dtype == key.first &&
          std::bit_cast<std::uint64_t>(*value) == key.second))
      fail("value {} is in the table of constants under another number", id.index);
  }
}

void Verifier::check_acyclic() const {
  const std::size_t sorted = fusion_.sorted_exprs().size();
  if (sorted != fusion_.exprs().size()) fail("a value depends on itself");
}

void Verifier::check_types() const {
  Fusion scratch = fusion_;
  for (const ExprId id : fusion_.exprs()) {
    const Expr& e = fusion_.expr(id);
    std::vector<ValueType> types;
    try {
      types = infer(scratch, e.op, e.operands, e.attrs);
    } catch (const UsageError& error) {
      fail("{} breaks its rule: {}", name(id), error.what());
    }
    if (types.size() != e.results.size())
      fail("{} has {} results, not {}", name(id), e.results.size(), types.size());
    for (std::size_t r = 0; r < types.size(); ++r) {
      const Val& val = fusion_.val(e.results[r]);
      const Extents shape = fusion_.canonical(val.shape);
      if (!(val.dtype == types[r].dtype && shape == types[r].shape))
        fail("result {} of {} is {}{}, not {}{} as its rule says", r, name(id), name_of(val.dtype),
             fusion_.to_string(shape), name_of(types[r].dtype), scratch.to_string(types[r].shape));
    }
    if (!(scratch.storage().symbol_parent == ir_.symbol_parent &&
          scratch.storage().requirements == ir_.requirements))
      fail("the sizes that {} needs to be equal are not known to be", name(id));
  }
}

}  // namespace

void verify(const Fusion& fusion) { Verifier(fusion).run(); }

}  // namespace segfuse::ir
