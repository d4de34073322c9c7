#include "engine/ops/state.h"

#include <fmt/core.h>

#include <algorithm>

namespace segfuse::ops {
namespace {

using Node = Size::Node;
using Kind = Node::Kind;

bool is_name(std::string_view name) {
  auto letter = [](char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  if (name.empty() || !letter(name[0]) || name == "floordiv") return false;
  for (const char c : name)
    if (!letter(c) && !(c >= '0' && c <= '9')) return false;
  return true;
}

/// The depth of an operation over these.
int depth_over(int a, int b = 0) {
  constexpr int kDeepest = 1000;
  const int depth = std::max(a, b) + 1;
  if (depth > kDeepest)
    throw UsageError(fmt::format(
        "a size is the result of more than {} operations in sequence; add the terms as one number",
        kDeepest));
  return depth;
}

Size combine(Kind kind, const Size& a, const Size& b) {
  auto node = std::make_shared<Node>();
  node->kind = kind;
  node->depth = depth_over(a.node().depth, b.node().depth);
  node->a = std::make_shared<const Node>(a.node());
  node->b = std::make_shared<const Node>(b.node());
  return Size(std::move(node));
}

ir::Extent to_extent(ir::Fusion& fusion, const Node& node) {
  switch (node.kind) {
    case Kind::kNumber: return node.number;
    case Kind::kName: return fusion.symbol(node.name);
    case Kind::kAdd: return to_extent(fusion, *node.a) + to_extent(fusion, *node.b);
    case Kind::kSub: return to_extent(fusion, *node.a) - to_extent(fusion, *node.b);
    case Kind::kMul: return to_extent(fusion, *node.a) * to_extent(fusion, *node.b);
    case Kind::kFloorDiv: return fusion.floordiv(to_extent(fusion, *node.a), node.number);
  }
  throw InternalError(fmt::format("a size of kind {}", static_cast<int>(node.kind)));
}

std::int64_t evaluate(const Node& node,
                      const std::function<std::int64_t(std::string_view)>& value_of) {
  if (node.kind == Kind::kNumber) return node.number;
  if (node.kind == Kind::kName) return value_of(node.name);
  const std::int64_t a = evaluate(*node.a, value_of);
  if (node.kind == Kind::kFloorDiv) {
    const std::int64_t rest = a % node.number;
    return a / node.number - (rest < 0 ? 1 : 0);
  }
  const std::int64_t b = evaluate(*node.b, value_of);
  std::int64_t result = 0;
  bool overflow = false;
  if (node.kind == Kind::kAdd) overflow = __builtin_add_overflow(a, b, &result);
  if (node.kind == Kind::kSub) overflow = __builtin_sub_overflow(a, b, &result);
  if (node.kind == Kind::kMul) overflow = __builtin_mul_overflow(a, b, &result);
  if (overflow) throw UsageError("a size does not fit 64 bits");
  return result;
}

}  // namespace

Size Size::of_number(std::int64_t number) {
  auto node = std::make_shared<Node>();
  node->number = number;
  return Size(std::move(node));
}

Size::Size(std::string_view name) {
  if (!is_name(name))
    throw UsageError(fmt::format(
        "'{}' is not a name of a size; a name is a letter or '_', and then letters, digits and '_'",
        name));
  auto node = std::make_shared<Node>();
  node->kind = Kind::kName;
  node->name = name;
  node_ = std::shared_ptr<const Node>(std::move(node));
}

Size operator+(const Size& a, const Size& b) { return combine(Kind::kAdd, a, b); }
Size operator-(const Size& a, const Size& b) { return combine(Kind::kSub, a, b); }
Size operator*(const Size& a, const Size& b) { return combine(Kind::kMul, a, b); }

Size floordiv(const Size& a, std::int64_t divisor) {
  if (divisor <= 0)
    throw UsageError(fmt::format("a size is divided by {}, expected more than 0", divisor));
  auto node = std::make_shared<Node>();
  node->kind = Kind::kFloorDiv;
  node->depth = depth_over(a.node().depth);
  node->number = divisor;
  node->a = std::make_shared<const Node>(a.node());
  return Size(std::move(node));
}

std::optional<std::int64_t> Size::number() const {
  if (node_->kind == Kind::kNumber) return node_->number;
  ir::Fusion scratch;
  const ir::Extent extent = to_extent(scratch, *node_);
  if (!extent.is_constant()) return std::nullopt;
  return extent.constant();
}

std::int64_t Size::evaluate(const std::function<std::int64_t(std::string_view)>& value_of) const {
  return ops::evaluate(*node_, value_of);
}

std::string Size::text() const {
  ir::Fusion scratch;
  const ir::Extent extent = to_extent(scratch, *node_);
  return scratch.to_string(extent);
}

ir::Extent to_extent(ir::Fusion& fusion, const Size& size) {
  return to_extent(fusion, size.node());
}

ir::Extents to_extents(ir::Fusion& fusion, const Sizes& sizes) {
  ir::Extents extents;
  for (const Size& size : sizes) extents.push_back(to_extent(fusion, size));
  return extents;
}

Size to_size(const ir::Fusion& fusion, const ir::Extent& extent) {
  if (extent.is_constant()) return extent.constant();
  std::optional<Size> sum;
  for (const ir::Extent::Term& term : extent.terms()) {
    std::optional<Size> product;
    if (term.coefficient != 1 || term.factors.empty()) product = Size(term.coefficient);
    for (const ir::SymbolId id : term.factors) {
      const ir::Symbol& symbol = fusion.storage().symbols[id.index];
      const Size factor = symbol.derived ? floordiv(to_size(fusion, symbol.derived->numerator),
                                                    symbol.derived->divisor)
                                         : Size(std::string_view(symbol.name));
      product = product ? *product * factor : factor;
    }
    sum = sum ? *sum + *product : *product;
  }
  return *sum;
}

}  // namespace segfuse::ops
