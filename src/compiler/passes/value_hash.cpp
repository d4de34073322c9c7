#include "compiler/passes/value_hash.h"

#include <bit>
#include <cmath>
#include <string>

#include "base/code/fnv.h"

namespace segfuse::compiler {
namespace {

std::uint64_t mix(std::uint64_t seed, std::uint64_t value) {
  std::uint64_t x = seed ^ (value + 0x9E3779B97F4A7C15U + (seed << 6U) + (seed >> 2U));
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

std::uint64_t hash_extents(const ir::Fusion& fusion, const ir::Extents& extents) {
  std::uint64_t all = extents.size();
  for (const ir::Extent& extent : extents) {
    const ir::Extent known = fusion.canonical(extent);
    all = mix(all, known.is_constant() ? static_cast<std::uint64_t>(known.constant())
                                       : fnv1a(fusion.to_string(known)));
  }
  return all;
}

std::uint64_t hash_body(const ir::Fusion& body) {
  const std::vector<std::uint64_t> hashes = value_hashes(body);
  std::uint64_t all = 11;
  for (const ir::Input& input : body.inputs())
    all = mix(all, static_cast<std::uint64_t>(body.val(input.val).dtype));
  for (const ir::Output& output : body.outputs()) all = mix(all, hashes[output.val.index]);
  return all;
}

std::uint64_t hash_attr(const ir::Fusion& fusion, const ir::Attr& attr) {
  if (const auto* one = std::get_if<std::int64_t>(&attr)) return static_cast<std::uint64_t>(*one);
  if (const auto* dtype = std::get_if<DType>(&attr)) return static_cast<std::uint64_t>(*dtype);
  if (const auto* extents = std::get_if<ir::Extents>(&attr)) return hash_extents(fusion, *extents);
  if (const auto* real = std::get_if<double>(&attr))
    return std::isnan(*real) ? 1 : std::bit_cast<std::uint64_t>(*real);
  if (const auto* body = std::get_if<ir::Body>(&attr)) return hash_body(*body->fusion);
  std::uint64_t all = 7;
  for (const std::int64_t axis : std::get<std::vector<std::int64_t>>(attr))
    all = mix(all, static_cast<std::uint64_t>(axis));
  return all;
}

}  // namespace

std::vector<std::uint64_t> value_hashes(const ir::Fusion& fusion) {
  std::vector<std::uint64_t> hashes(fusion.storage().vals.size(), 0);
  for (std::size_t i = 0; i < fusion.inputs().size(); ++i)
    hashes[fusion.inputs()[i].val.index] = mix(17, i);
  for (const ir::ExprId id : fusion.sorted_exprs()) {
    const ir::Expr& e = fusion.expr(id);
    std::uint64_t all = mix(29, static_cast<std::uint64_t>(e.op));
    for (const ir::ValId operand : e.operands) all = mix(all, hashes[operand.index]);
    for (const ir::Attr& attr : e.attrs) all = mix(all, hash_attr(fusion, attr));
    for (std::size_t r = 0; r < e.results.size(); ++r) hashes[e.results[r].index] = mix(all, r);
  }
  return hashes;
}

}  // namespace segfuse::compiler
