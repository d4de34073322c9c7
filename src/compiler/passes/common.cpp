#include <algorithm>
#include <bit>
#include <unordered_map>

#include "compiler/passes/passes.h"
#include "compiler/passes/rewrite.h"
#include "compiler/passes/value_hash.h"

namespace segfuse::compiler {

using ir::Attr;
using ir::Attrs;
using ir::Expr;
using ir::ExprId;
using ir::Op;

namespace {

/// Operations whose operands may change places without a change of bits. Not maximum: it gives the
/// first of 0 and -0.
bool commutes(Op op) {
  const std::string_view sign = ir::infix(op);
  return sign == "+" || sign == "*" || sign == "==" || sign == "!=" || sign == "&&" || sign == "||";
}

bool same_attrs(const ir::Fusion& fusion, const Attrs& a, const Attrs& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto* x = std::get_if<double>(&a[i]);
    if (x) {
      const double y = std::get<double>(b[i]);
      const bool both_nan = *x != *x && y != y;
      if (!both_nan && std::bit_cast<std::uint64_t>(*x) != std::bit_cast<std::uint64_t>(y))
        return false;
    } else if (const auto* extents = std::get_if<ir::Extents>(&a[i])) {
      if (fusion.canonical(*extents) != fusion.canonical(std::get<ir::Extents>(b[i]))) return false;
    } else if (a[i] != b[i]) {
      return false;
    }
  }
  return true;
}

bool same(const ir::Fusion& fusion, const Expr& a, const Expr& b) {
  return a.op == b.op && a.operands == b.operands && same_attrs(fusion, a.attrs, b.attrs);
}

void replace_all(Rewriter& r, ExprId from, ExprId to) {
  const std::vector<ir::ValId> old = r.fusion().expr(from).results;
  const std::vector<ir::ValId> with = r.fusion().expr(to).results;
  for (std::size_t i = 0; i < old.size(); ++i)
    if (r.fusion().contains(old[i])) r.replace(old[i], with[i]);
}

/// f(b, a) where f(a, b) stands too: of the two the one stays whose operands are in the order of
/// their hashes, so that the choice does not depend on ids.
ExprId twin(const ir::Fusion& fusion, ExprId id, const std::vector<std::uint64_t>& hashes) {
  const Expr& e = fusion.expr(id);
  if (!commutes(e.op) || hashes[e.operands[0].index] <= hashes[e.operands[1].index]) return {};
  for (const ExprId other : fusion.val(e.operands[0]).uses) {
    const Expr& o = fusion.expr(other);
    if (o.op == e.op && o.operands[0] == e.operands[1] && o.operands[1] == e.operands[0])
      return other;
  }
  return {};
}

bool merge_exchanged(Rewriter& r) {
  const std::vector<std::uint64_t> hashes = value_hashes(r.fusion());
  bool changed = false;
  for (const ExprId id : r.fusion().live_exprs()) {
    if (!r.fusion().contains(id)) continue;
    const ExprId other = twin(r.fusion(), id, hashes);
    if (!other.valid()) continue;
    replace_all(r, id, other);
    changed = true;
  }
  return changed;
}

bool merge_equal(Rewriter& r) {
  // Hashes of values do not change when equal values are merged.
  const std::vector<std::uint64_t> hashes = value_hashes(r.fusion());
  std::unordered_multimap<std::uint64_t, ExprId> known;
  bool changed = false;
  for (const ExprId id : r.fusion().live_exprs()) {
    const Expr& e = r.fusion().expr(id);
    const std::uint64_t key = hashes[e.results[0].index];
    const auto [first, last] = known.equal_range(key);
    const auto found = std::find_if(first, last, [&](const auto& entry) {
      return same(r.fusion(), r.fusion().expr(entry.second), e);
    });
    if (found == last) {
      known.emplace(key, id);
      continue;
    }
    replace_all(r, id, found->second);
    changed = true;
  }
  return changed;
}

}  // namespace

bool merge_common_expressions(ir::Fusion& fusion) {
  Rewriter rewriter(fusion);
  bool changed = false;
  while (merge_equal(rewriter) || merge_exchanged(rewriter)) changed = true;
  return changed;
}

}  // namespace segfuse::compiler
