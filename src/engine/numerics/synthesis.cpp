#include "engine/numerics/synthesis.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/rng.h"
#include "base/text.h"
#include "segfuse/error.h"

namespace segfuse::engine::numerics {
namespace {

constexpr std::int64_t kUnnamedSize = 16;
constexpr std::int64_t kSmallInteger = 8;

/// A size from those of the symbols.
std::int64_t size_of_extent(const ir::Fusion& fusion, const SizeExamples& sizes,
                            const ir::Extent& extent) {
  return fusion.canonical(extent).evaluate([&](ir::SymbolId id) -> std::int64_t {
    const ir::Symbol& symbol = fusion.storage().symbols[id.index];
    if (symbol.derived) {
      const std::int64_t numerator = size_of_extent(fusion, sizes, symbol.derived->numerator);
      return static_cast<std::int64_t>(std::floor(static_cast<double>(numerator) /
                                                  static_cast<double>(symbol.derived->divisor)));
    }
    const auto found = sizes.find(symbol.name);
    return found == sizes.end() ? kUnnamedSize : found->second;
  });
}

Shape shape_of(const ir::Fusion& fusion, const SizeExamples& sizes, ir::ValId val) {
  Shape shape;
  for (const ir::Extent& extent : fusion.val(val).shape)
    shape.push_back(size_of_extent(fusion, sizes, extent));
  return shape;
}

void check_sizes(const ir::Fusion& fusion, const SizeExamples& sizes,
                 std::vector<std::string>& notes) {
  std::vector<std::string> names;
  std::vector<std::string> unnamed;
  const ir::IrStorage& ir = fusion.storage();
  for (std::uint32_t i = 0; i < ir.symbols.size(); ++i) {
    if (ir.symbols[i].derived || ir.symbol_parent[i] != ir::Extent(ir::SymbolId{i})) continue;
    names.push_back(ir.symbols[i].name);
    if (!sizes.contains(names.back())) unnamed.push_back(names.back());
  }
  for (const auto& [name, size] : sizes)
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw UsageError(fmt::format("--size {}={}: the program has no size '{}'; {}", name, size,
                                   name, suggestion(name, names)));
  if (!unnamed.empty())
    notes.push_back(fmt::format("{} taken as {}; --size sets {}", fmt::join(unnamed, ", "),
                                kUnnamedSize, unnamed.size() == 1 ? "it" : "them"));
}

/// What an input is used for.
struct Use {
  bool positive = false;
  std::optional<ir::Extent> indices_below;
  std::optional<ir::ExprId> crf;  ///< reads it as one of:
  enum class Role { kLengths, kLabels, kStarts } role = Role::kLengths;
};

Use use_of(const ir::Fusion& fusion, ir::ValId val) {
  Use use;
  for (const ir::ExprId id : fusion.val(val).uses) {
    const ir::Expr& expr = fusion.expr(id);
    use.positive = use.positive || (ir::info(expr.op).domain == ir::Domain::kPositive &&
                                    expr.operands.back() == val);
    const bool second = expr.operands.size() > 1 && expr.operands[1] == val;
    if (second && ir::has_indices(expr.op)) {
      const auto axis = static_cast<std::size_t>(fusion.attr<std::int64_t>(id, "axis"));
      const ir::ValId table = ir::adds(expr.op) ? expr.results[0] : expr.operands[0];
      use.indices_below = fusion.val(table).shape[axis];
    }
    if (expr.op != ir::Op::semicrf_loss && expr.op != ir::Op::semicrf_loss_grad) continue;
    const std::size_t scores = expr.operands.size() - (expr.op == ir::Op::semicrf_loss ? 3 : 4);
    for (std::size_t i = 0; i < 3; ++i)
      if (expr.operands[scores + i] == val) {
        use.crf = id;
        use.role = static_cast<Use::Role>(i);
      }
  }
  return use;
}

/// Segments of 1 to K frames with labels of their own, the same for labels and starts of a CRF.
void fill_crf(const ir::Fusion& fusion, const SizeExamples& sizes, std::uint64_t seed,
              const Use& use, Tensor& tensor) {
  const ir::Expr& expr = fusion.expr(*use.crf);
  const Shape emission = shape_of(fusion, sizes, expr.operands[0]);
  const std::int64_t longest = shape_of(fusion, sizes, expr.operands[2])[0];
  if (use.role == Use::Role::kLengths) {
    for (std::int64_t b = 0; b < tensor.size(); ++b)
      tensor.set(b, static_cast<double>(emission[1]));
    return;
  }
  Rng rng(seed, 0x5E6);
  for (std::int64_t b = 0; b < emission[0]; ++b) {
    for (std::int64_t t = 0; t < emission[1];) {
      const auto label = static_cast<double>(rng.below(static_cast<std::uint64_t>(emission[2])));
      const auto length = static_cast<std::int64_t>(
          1 + rng.below(static_cast<std::uint64_t>(std::max<std::int64_t>(1, longest))));
      for (std::int64_t i = 0; i < length && t < emission[1]; ++i, ++t)
        tensor.set(b * emission[1] + t,
                   use.role == Use::Role::kLabels ? label : static_cast<double>(i == 0));
    }
  }
}

Tensor synthesised(const ir::Fusion& fusion, const SizeExamples& sizes, std::uint64_t seed,
                   std::size_t number) {
  const ir::ValId val = fusion.inputs()[number].val;
  const DType dtype = fusion.val(val).dtype;
  Tensor tensor(dtype, shape_of(fusion, sizes, val));
  const Use use = use_of(fusion, val);
  if (use.crf) {
    fill_crf(fusion, sizes, seed, use, tensor);
    return tensor;
  }
  Rng rng(seed, number);
  std::int64_t below = dtype == DType::kBool ? 2 : kSmallInteger;
  if (use.indices_below) below = size_of_extent(fusion, sizes, *use.indices_below);
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    if (!is_float(dtype)) {
      tensor.set(i, static_cast<double>(
                        rng.below(static_cast<std::uint64_t>(std::max<std::int64_t>(1, below)))));
    } else {
      const double value = rng.normal();
      tensor.set(i, use.positive ? std::abs(value) + 0x1p-4 : value);
    }
  }
  return tensor;
}

}  // namespace

std::vector<Tensor> make_inputs(const ir::Fusion& fusion, const SizeExamples& sizes,
                                std::uint64_t seed, std::span<const GivenValues> given,
                                std::vector<std::string>& notes) {
  check_sizes(fusion, sizes, notes);
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < fusion.inputs().size(); ++i) {
    const ir::Input& input = fusion.inputs()[i];
    const auto values = std::find_if(given.begin(), given.end(),
                                     [&](const GivenValues& g) { return g.input == input.name; });
    if (values == given.end()) {
      inputs.push_back(synthesised(fusion, sizes, seed, i));
      continue;
    }
    const Shape shape = shape_of(fusion, sizes, input.val);
    if (std::ssize(values->elements) != num_elements(shape))
      throw DataError(fmt::format("input '{}' has {} values in the file, expected {} for shape {}",
                                  input.name, values->elements.size(), num_elements(shape),
                                  to_string(shape)));
    Tensor tensor(fusion.val(input.val).dtype, shape);
    for (std::int64_t e = 0; e < tensor.size(); ++e)
      tensor.set(e, values->elements[static_cast<std::size_t>(e)]);
    inputs.push_back(tensor);
  }
  for (const GivenValues& values : given)
    if (std::none_of(fusion.inputs().begin(), fusion.inputs().end(),
                     [&](const ir::Input& input) { return input.name == values.input; }))
      throw DataError(fmt::format(
          "the file has values of '{}', which is not an input of its program", values.input));
  return inputs;
}

}  // namespace segfuse::engine::numerics
