#include "engine/plan/bad_index.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "ir/bind.h"
#include "ir/interpret/interpreter.h"

namespace segfuse::engine {
namespace {

constexpr std::int64_t kMaxElements = std::int64_t{1} << 26;  // of a value that is found again

bool is_whole(DType dtype) {
  return dtype == DType::kBool || dtype == DType::kI32 || dtype == DType::kI64;
}

/// What a value is made of, in any order.
std::vector<ir::ValId> origins_of(const ir::Fusion& fusion, ir::ValId val) {
  std::vector<ir::ValId> all = {val};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const ir::ExprId made_by = fusion.val(all[i]).definition;
    if (!made_by.valid()) continue;
    for (const ir::ValId operand : fusion.expr(made_by).operands)
      if (std::ranges::find(all, operand) == all.end()) all.push_back(operand);
  }
  return all;
}

/// A program's indices, if they can be found again.
std::optional<Tensor> find_again(const ir::Fusion& fusion, const ir::Sizes& sizes, ir::ValId val,
                                 std::span<const Tensor> inputs) {
  const std::vector<ir::ValId> origins = origins_of(fusion, val);
  for (const ir::ValId id : origins) {
    std::int64_t elements = 1;
    for (const std::int64_t size : sizes.of(fusion.val(id).shape)) elements *= size;
    if (!is_whole(fusion.val(id).dtype) || elements > kMaxElements) return std::nullopt;
    if (std::ranges::any_of(fusion.aliases(), [&](const ir::Alias& a) { return a.input == id; }))
      return std::nullopt;
  }
  ir::Fusion part = fusion;
  for (const ir::Alias& alias : fusion.aliases()) part.remove_alias(alias.input);
  while (!part.outputs().empty()) part.remove_output(part.outputs().size() - 1);
  part.add_output(val);
  std::vector<Tensor> given;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool read = std::ranges::find(origins, fusion.inputs()[i].val) != origins.end();
    given.push_back(read ? inputs[i].to_host() : Tensor(inputs[i].dtype(), inputs[i].shape()));
  }
  return ir::interpret(part, given).at(0);
}

}  // namespace

void explain(const BadIndex& found, const ir::Fusion& fusion, std::span<const Tensor> inputs) {
  std::optional<ir::Sizes> sizes;
  try {
    sizes = ir::bind_inputs(fusion, inputs);
  } catch (const UsageError&) {
    throw found;  // an input is absent
  }
  for (const ir::ExprId id : fusion.live_exprs()) {
    const ir::Expr& expr = fusion.expr(id);
    if (!ir::has_indices(expr.op)) continue;
    const std::optional<Tensor> indices = find_again(fusion, *sizes, expr.operands[1], inputs);
    if (!indices) continue;
    const auto axis = static_cast<std::size_t>(fusion.attr<std::int64_t>(id, "axis"));
    const ir::ValId table = ir::adds(expr.op) ? expr.results[0] : expr.operands[0];
    const std::int64_t size = sizes->of(fusion.val(table).shape)[axis];
    for (std::int64_t i = 0; i < indices->size(); ++i)
      ir::check_index(expr.op,
                      indices->dtype() == DType::kI32
                          ? indices->span<std::int32_t>()[static_cast<std::size_t>(i)]
                          : indices->span<std::int64_t>()[static_cast<std::size_t>(i)],
                      size);
  }
  throw found;
}

}  // namespace segfuse::engine
