#include "ir/body.h"

#include <fmt/core.h>

#include "ir/text.h"
#include "segfuse/error.h"

namespace segfuse::ir {

bool operator==(const Body& a, const Body& b) {
  return a.fusion == b.fusion || print(*a.fusion) == print(*b.fusion);
}

BodySizes::BodySizes(Fusion& around, const Fusion& body, std::span<const Extents> shapes)
    : around_(around), body_(body) {
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const Input& input = body.inputs()[i];
    const Extents own = body.canonical(body.val(input.val).shape);
    if (own.size() != shapes[i].size())
      throw UsageError(fmt::format("the input '{}' of the body has the shape {} and gets {}",
                                   input.name, body.to_string(own), around.to_string(shapes[i])));
    for (std::size_t a = 0; a < own.size(); ++a)
      if (const auto symbol = own[a].as_symbol())
        if (!body.storage().symbols[symbol->index].derived) known_.emplace(*symbol, shapes[i][a]);
  }
}

Extent BodySizes::of(const Extent& size) {
  return body_.canonical(size).substitute([&](SymbolId id) -> Extent {
    if (const auto found = known_.find(id); found != known_.end()) return found->second;
    const Symbol& symbol = body_.storage().symbols[id.index];
    if (!symbol.derived)
      throw UsageError(fmt::format(
          "the size {} of the body stands alone in no axis of its inputs, so it is not known",
          symbol.name));
    return around_.floordiv(of(symbol.derived->numerator), symbol.derived->divisor);
  });
}

Extents BodySizes::of(const Extents& sizes) {
  Extents all;
  for (const Extent& size : sizes) all.push_back(of(size));
  return all;
}

namespace {

Extent same_name(Fusion& into, const Fusion& from, const Extent& size) {
  return from.canonical(size).substitute([&](SymbolId id) -> Extent {
    const Symbol& symbol = from.storage().symbols[id.index];
    if (!symbol.derived) return into.symbol(symbol.name);
    return into.floordiv(same_name(into, from, symbol.derived->numerator), symbol.derived->divisor);
  });
}

}  // namespace

Extents same_names(Fusion& into, const Fusion& from, const Extents& sizes) {
  Extents all;
  for (const Extent& size : sizes) all.push_back(same_name(into, from, size));
  return all;
}

std::vector<ValId> inline_body(Fusion& into, const Fusion& body, std::span<const ValId> inputs) {
  std::vector<Extents> shapes;
  for (const ValId input : inputs) shapes.push_back(into.canonical(into.val(input).shape));
  BodySizes sizes(into, body, shapes);
  const auto need = [&](const Extent& a, const Extent& b) {
    if (!into.unify(a, b))
      throw UsageError(
          fmt::format("the sizes {} and {} must agree", into.to_string(a), into.to_string(b)));
  };
  std::vector<ValId> made(body.storage().vals.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const ValId input = body.inputs()[i].val;
    made[input.index] = inputs[i];
    const Extents own = sizes.of(body.val(input).shape);
    for (std::size_t a = 0; a < own.size(); ++a) need(own[a], shapes[i][a]);
  }
  for (const auto& [left, right] : body.storage().requirements)
    need(sizes.of(left), sizes.of(right));
  for (const ExprId id : body.live_exprs()) {
    const Expr& e = body.expr(id);
    if (e.op == Op::constant) {
      made[e.results[0].index] = into.constant(e.attr<double>("value"), e.attr<DType>("dtype"));
      continue;
    }
    std::vector<ValId> operands;
    for (const ValId operand : e.operands) operands.push_back(made[operand.index]);
    Attrs attrs = e.attrs;
    for (Attr& attr : attrs)
      if (auto* extents = std::get_if<Extents>(&attr)) *extents = sizes.of(*extents);
    const ExprId copy = into.add_expr(e.op, std::move(operands), std::move(attrs));
    for (std::size_t r = 0; r < e.results.size(); ++r)
      made[e.results[r].index] = into.result(copy, r);
  }
  std::vector<ValId> outputs;
  for (const Output& output : body.outputs()) outputs.push_back(made[output.val.index]);
  return outputs;
}

}  // namespace segfuse::ir
