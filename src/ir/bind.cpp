#include "ir/bind.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>

#include "segfuse/error.h"

namespace segfuse::ir {

/// Collects what is known about the symbols of one Fusion.
class Binder {
 public:
  Binder(const Fusion& fusion, std::span<const Shape> shapes) : fusion_(fusion), shapes_(shapes) {
    const auto& symbols = fusion.storage().symbols;
    sizes_.symbols_.resize(symbols.size());
    source_.resize(symbols.size());
    for (std::uint32_t i = 0; i < symbols.size(); ++i)
      sizes_.symbols_[i].name =
          symbols[i].derived ? fusion.to_string(Extent(SymbolId{i})) : symbols[i].name;
  }

  Sizes run() {
    check_ranks();
    collect();
    solve();
    spread();
    check_equations();
    check_live_sizes();
    return std::move(sizes_);
  }

 private:
  /// `left` must be `right`; both canonical. For an input axis `right` is its number of elements.
  struct Equation {
    Extent left;
    Extent right;
    std::string where;  ///< "axis 0 of input 'x'", or empty for a requirement
  };

  void check_ranks() const;
  void collect();
  void solve();
  bool solve_alone(const Equation& equation);
  bool solve_linear(const Equation& equation);
  bool solve_derived();
  void spread();
  void check_equations() const;
  void check_live_sizes() const;
  void check_attributes(ExprId id) const;

  bool known(SymbolId id) const { return sizes_.symbols_[id.index].value.has_value(); }
  bool known(const Extent& extent) const {
    const std::vector<SymbolId> all = extent.symbols();
    return std::all_of(all.begin(), all.end(), [&](SymbolId id) { return known(id); });
  }
  void set(SymbolId id, std::int64_t value, const std::string& where) {
    sizes_.symbols_[id.index].value = value;
    source_[id.index] = where;
  }
  /// `what` makes the words for an error; almost always it is not called.
  template <class What>
  std::int64_t checked(const Extent& extent, What what) const;
  [[noreturn]] void fail_unsolved(const Extent& extent, std::string_view what) const;
  [[noreturn]] void fail_axis(const Equation& equation, std::string_view why) const;
  void add_plain(const Extent& extent, std::vector<SymbolId>& plain) const;
  /// " with B = 3 (axis 0 of input 'x'), ..." for the known symbols in it; empty if there are none.
  std::string given(const Extent& extent) const;
  /// "B*T = 12 with B = 3 (axis 0 of input 'x'), ..."
  std::string value_of(const Extent& extent) const;

  const Fusion& fusion_;
  std::span<const Shape> shapes_;
  Sizes sizes_;
  std::vector<std::string> source_;  // by SymbolId: what set it
  std::vector<Equation> equations_;
};

std::int64_t Sizes::of(const Extent& extent) const {
  return extent.evaluate([&](SymbolId id) {
    if (id.index >= symbols_.size())
      throw UsageError(
          "found a size of another Fusion, or one made after bind(); expected a size of this "
          "Fusion");
    const Entry& entry = symbols_[id.index];
    if (!entry.value) throw UsageError(fmt::format("the size {} is set by no input", entry.name));
    return *entry.value;
  });
}

Shape Sizes::of(const Extents& extents) const {
  Shape shape;
  shape.reserve(extents.size());
  for (const Extent& extent : extents) shape.push_back(of(extent));
  return shape;
}

void Binder::check_ranks() const {
  const auto& inputs = fusion_.inputs();
  if (inputs.size() != shapes_.size())
    throw UsageError(fmt::format("the Fusion '{}' has {} inputs; {} were given", fusion_.name(),
                                 inputs.size(), shapes_.size()));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Extents& expected = fusion_.val(inputs[i].val).shape;
    if (shapes_[i].size() != expected.size())
      throw UsageError(fmt::format("input '{}' has the shape {} with {} axes; expected {} with {}",
                                   inputs[i].name, to_string(shapes_[i]), shapes_[i].size(),
                                   fusion_.to_string(expected), expected.size()));
    for (const std::int64_t size : shapes_[i])
      if (size < 0)
        throw UsageError(fmt::format("input '{}' has the shape {}; sizes must not be negative",
                                     inputs[i].name, to_string(shapes_[i])));
  }
}

void Binder::collect() {
  const auto& inputs = fusion_.inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Extents shape = fusion_.canonical(fusion_.val(inputs[i].val).shape);
    for (std::size_t a = 0; a < shape.size(); ++a)
      equations_.push_back(
          {shape[a], shapes_[i][a], fmt::format("axis {} of input '{}'", a, inputs[i].name)});
  }
  for (const auto& [left, right] : fusion_.storage().requirements)
    equations_.push_back({fusion_.canonical(left), fusion_.canonical(right), ""});
}

bool Binder::solve_alone(const Equation& equation) {
  const auto symbol = equation.left.as_symbol();
  if (!symbol || known(*symbol) || equation.where.empty()) return false;
  if (fusion_.storage().symbols[symbol->index].derived) return false;
  set(*symbol, equation.right.constant(), equation.where);
  return true;
}

bool Binder::solve_linear(const Equation& equation) {
  const Extent rest = (equation.left - equation.right).substitute([&](SymbolId id) -> Extent {
    return known(id) ? Extent(*sizes_.symbols_[id.index].value) : Extent(id);
  });
  const std::vector<SymbolId> unknown = rest.symbols();
  if (unknown.size() != 1 || fusion_.storage().symbols[unknown[0].index].derived) return false;
  const Extent::Term& term = rest.terms().back();  // the highest power
  if (term.factors.size() != 1) return false;
  const std::int64_t offset = rest.constant();
  // coefficient * x + offset = 0; the smallest offset has no negative in 64 bits.
  const bool whole = term.coefficient == -1 || offset % term.coefficient == 0;
  const Extent solution = whole ? Extent(-1) * Extent(offset) : Extent(-1);
  const std::int64_t value = whole ? solution.constant() / term.coefficient : -1;
  const std::string& name = sizes_.symbols_[unknown[0].index].name;
  if (value < 0) fail_axis(equation, fmt::format("; there is no whole {} >= 0 for that", name));
  set(unknown[0], value, equation.where.empty() ? "a requirement" : equation.where);
  return true;
}

bool Binder::solve_derived() {
  bool progress = false;
  const auto& symbols = fusion_.storage().symbols;
  for (std::uint32_t i = 0; i < symbols.size(); ++i) {
    const SymbolId id{i};
    if (!symbols[i].derived || known(id)) continue;
    const Extent numerator = fusion_.canonical(symbols[i].derived->numerator);
    if (!known(numerator)) continue;
    const std::int64_t top = sizes_.of(numerator);
    const std::int64_t divisor = symbols[i].derived->divisor;
    set(id, top / divisor - (top % divisor < 0 ? 1 : 0), "");
    progress = true;
  }
  return progress;
}

void Binder::solve() {
  for (const Equation& equation : equations_) solve_alone(equation);
  for (bool progress = true; progress;) {
    progress = solve_derived();
    for (const Equation& equation : equations_) progress = solve_linear(equation) || progress;
  }
}

void Binder::spread() {
  for (std::uint32_t i = 0; i < sizes_.symbols_.size(); ++i) {
    const Extent value = fusion_.canonical(Extent(SymbolId{i}));
    if (!known(SymbolId{i}) && known(value)) set(SymbolId{i}, sizes_.of(value), "");
  }
}

void Binder::add_plain(const Extent& extent, std::vector<SymbolId>& plain) const {
  for (const SymbolId id : extent.symbols()) {
    const auto& derived = fusion_.storage().symbols[id.index].derived;
    if (derived) {
      add_plain(fusion_.canonical(derived->numerator), plain);
    } else if (std::find(plain.begin(), plain.end(), id) == plain.end()) {
      plain.push_back(id);
    }
  }
}

std::string Binder::given(const Extent& extent) const {
  std::vector<SymbolId> plain;
  add_plain(extent, plain);
  std::string text;
  for (const SymbolId id : plain) {
    const auto& entry = sizes_.symbols_[id.index];
    if (!entry.value) continue;
    text += fmt::format("{}{} = {}", text.empty() ? " with " : ", ", entry.name, *entry.value);
    if (!source_[id.index].empty()) text += fmt::format(" ({})", source_[id.index]);
  }
  return text;
}

std::string Binder::value_of(const Extent& extent) const {
  if (extent.is_constant() || !known(extent)) return fusion_.to_string(extent) + given(extent);
  std::string text = fmt::format("{} = {}", fusion_.to_string(extent), sizes_.of(extent));
  const auto symbol = extent.as_symbol();
  if (!symbol || fusion_.storage().symbols[symbol->index].derived) return text + given(extent);
  const std::string& source = source_[symbol->index];
  return source.empty() ? text : fmt::format("{} ({})", text, source);
}

void Binder::fail_axis(const Equation& equation, std::string_view why) const {
  if (equation.where.empty())
    throw UsageError(fmt::format(
        "the inputs of the Fusion '{}' must satisfy {} == {}; found {} and {}{}", fusion_.name(),
        fusion_.to_string(equation.left), fusion_.to_string(equation.right),
        value_of(equation.left), value_of(equation.right), why));
  throw UsageError(fmt::format("{} has {} elements; expected {}{}", equation.where,
                               equation.right.constant(), value_of(equation.left), why));
}

void Binder::check_equations() const {
  for (const Equation& equation : equations_) {
    if (!known(equation.left) || !known(equation.right)) {
      if (equation.where.empty()) continue;  // of dead sizes, or reported where they are used
      fail_unsolved(equation.left, equation.where);
    }
    if (sizes_.of(equation.left) != sizes_.of(equation.right)) fail_axis(equation, "");
  }
}

void Binder::fail_unsolved(const Extent& extent, std::string_view what) const {
  for (const SymbolId id : extent.symbols())
    if (!known(id))
      throw UsageError(fmt::format(
          "the size {} ({}) of the Fusion '{}' cannot be found from its inputs; let an input have "
          "an axis of that size",
          sizes_.symbols_[id.index].name, what, fusion_.name()));
  throw InternalError("fail_unsolved of a solved size");
}

template <class What>
std::int64_t Binder::checked(const Extent& extent, What what) const {
  const Extent canonical = fusion_.canonical(extent);
  if (!known(canonical)) fail_unsolved(canonical, what());
  const std::int64_t size = sizes_.of(canonical);
  if (size < 0)
    throw UsageError(fmt::format("{} in the Fusion '{}' would be {}; sizes must not be negative",
                                 what(), fusion_.name(), value_of(canonical)));
  return size;
}

void Binder::check_attributes(ExprId id) const {
  const Expr& e = fusion_.expr(id);
  const auto& specs = info(e.op).attrs;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].type != AttrType::kExtents) continue;
    for (const Extent& extent : std::get<Extents>(e.attrs[i]))
      checked(extent, [&] { return fmt::format("'{}' of {}", specs[i].name, info(e.op).name); });
  }
  if (e.op != Op::slice) return;
  const Extents& from = fusion_.val(e.operands[0]).shape;
  const auto& starts = fusion_.attr<Extents>(id, "starts");
  const auto& sizes = fusion_.attr<Extents>(id, "sizes");
  for (std::size_t a = 0; a < from.size(); ++a) {
    const std::int64_t start = sizes_.of(starts[a]);
    const std::int64_t size = sizes_.of(sizes[a]);
    if (start > sizes_.of(from[a]) - size)
      throw UsageError(fmt::format(
          "slice: [{}, {} + {}) is outside axis {} of {} elements ({}) in '{}'", start, start, size,
          a, sizes_.of(from[a]), fusion_.to_string(from[a]), fusion_.name()));
  }
}

void Binder::check_live_sizes() const {
  for (const ExprId id : fusion_.live_exprs()) {
    const Expr& e = fusion_.expr(id);
    for (const ValId result : e.results) {
      const Extents& shape = fusion_.val(result).shape;
      for (std::size_t a = 0; a < shape.size(); ++a)
        checked(shape[a],
                [&] { return fmt::format("axis {} of the result of {}", a, info(e.op).name); });
    }
    check_attributes(id);
  }
}

Sizes bind(const Fusion& fusion, std::span<const Shape> input_shapes) {
  return Binder(fusion, input_shapes).run();
}

Sizes bind_inputs(const Fusion& fusion, std::span<const Tensor> inputs) {
  const auto& expected = fusion.inputs();
  if (inputs.size() != expected.size())
    throw UsageError(fmt::format("the Fusion '{}' has {} inputs; {} were given", fusion.name(),
                                 expected.size(), inputs.size()));
  std::vector<Shape> shapes;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const DType dtype = fusion.val(expected[i].val).dtype;
    if (inputs[i].dtype() != dtype)
      throw UsageError(fmt::format("input '{}' of the Fusion '{}' must be {}; it is {}",
                                   expected[i].name, fusion.name(), name_of(dtype),
                                   name_of(inputs[i].dtype())));
    shapes.push_back(inputs[i].shape());
  }
  return ir::bind(fusion, shapes);
}

void check_index(Op op, std::int64_t index, std::int64_t size) {
  if (index < 0 || index >= size)
    throw UsageError(fmt::format("{}: index {} is out of range; the axis has {} elements",
                                 info(op).name, index, size));
}

}  // namespace segfuse::ir
