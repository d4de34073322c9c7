#include <fmt/core.h>

#include <memory>

#include "engine/ops/state.h"
#include "ir/rules/verify.h"

namespace segfuse::ops {
namespace {

/// A name is one size here and there.
void unite_names(const ir::Fusion& body, Call& call) {
  ir::Fusion& around = call.fusion();
  for (std::size_t i = 0; i < body.inputs().size() && i < call.ids().size(); ++i) {
    const ir::Extents own = body.canonical(body.val(body.inputs()[i].val).shape);
    const ir::Extents given = around.canonical(around.val(call.id(i)).shape);
    // Of a sequence the first axis is that of the steps.
    for (std::size_t a = 1; a <= own.size() && a <= given.size(); ++a) {
      const ir::Extent& size = own[own.size() - a];
      const auto symbol = size.as_symbol();
      if (!symbol || body.storage().symbols[symbol->index].derived) continue;
      const ir::Extent named = around.symbol(body.storage().symbols[symbol->index].name);
      if (!around.unify(named, given[given.size() - a]))
        call.refuse(fmt::format("the size {} of the body is {} here", body.to_string(size),
                                around.to_string(given[given.size() - a])));
    }
  }
}

/// Sizes of the body that stand alone in none of its inputs get one: an array whose only use is its
/// length.
void add_sizes(ir::Fusion& body, ir::Fusion& around, std::vector<ir::ValId>& operands) {
  std::vector<bool> alone(body.storage().symbols.size(), false);
  for (const ir::Input& input : body.inputs())
    for (const ir::Extent& size : body.canonical(body.val(input.val).shape))
      if (const auto symbol = size.as_symbol()) alone[symbol->index] = true;
  for (std::uint32_t i = 0; i < alone.size(); ++i) {
    const ir::Symbol symbol = body.storage().symbols[i];
    const ir::Extent size(ir::SymbolId{i});
    if (alone[i] || symbol.derived || body.canonical(size) != size) continue;
    body.add_input("size " + symbol.name, DType::kBool, {size});
    ir::Builder builder(around);
    operands.push_back(builder.full(0, {around.symbol(symbol.name)}, DType::kBool));
  }
}

}  // namespace

Scanned scan(const FusionBuilder& body, std::span<const Value> carries,
             std::span<const Value> sequences, std::span<const Value> constants, const Size& length,
             bool reverse) {
  std::vector<Value> all(carries.begin(), carries.end());
  all.insert(all.end(), sequences.begin(), sequences.end());
  all.insert(all.end(), constants.begin(), constants.end());
  Call call("scan", all);
  ir::Fusion copy = body.state()->fusion;
  ir::verify(copy);
  unite_names(copy, call);
  std::vector<ir::ValId> operands = call.ids();
  add_sizes(copy, call.fusion(), operands);
  const ir::Extent steps = to_extent(call.fusion(), length);
  const std::vector<ir::ValId> results = call.run([&](ir::Builder& b) {
    return b.make_all(
        ir::Op::scan, operands,
        {static_cast<std::int64_t>(carries.size()), static_cast<std::int64_t>(sequences.size()),
         ir::Extents{steps}, std::int64_t{reverse},
         ir::Body{std::make_shared<const ir::Fusion>(std::move(copy))}});
  });
  Scanned scanned;
  for (std::size_t i = 0; i < results.size(); ++i)
    (i < carries.size() ? scanned.carries : scanned.stacked).push_back(call.value(results[i]));
  return scanned;
}

}  // namespace segfuse::ops
