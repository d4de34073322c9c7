#pragma once
// What sums over ranks are compared with: shards of awkward values, and one rank's recursion over
// them, written down on its own.

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/tree.h"

namespace segfuse::test {

using Values = std::vector<float>;

/// The gradient of a shard: values of both signs and all sizes, with -0, subnormals, infinities and
/// NaNs of several payloads among them. No two shards have the same.
inline Values values_of_shard(std::int64_t shard, std::int64_t words) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::array<float, 16> kSome = {-0.0F,  1e8F,    -1e8F, 3.14159F, 1e-40F, -7.25F,
                                           0.1F,   -1e-3F,  2e30F, -2e30F,   1e-8F,  0.0F,
                                           5e-45F, -1e-39F, 12.5F, -0.3F};
  Values values;
  for (std::int64_t i = 0; i < words; ++i) {
    const std::int64_t kind = i % 29;
    const auto which = static_cast<std::size_t>((i / 29 * 5 + shard * 7 + kind) % 16);
    float value = kSome[which];
    if (kind == 0) value = -0.0F;
    if (kind == 1) value = shard % 2 == 0 ? 3e-45F : -1e-42F;
    if (kind == 2 && shard % 3 == 1) value = shard % 2 == 0 ? kInfinity : -kInfinity;
    if (kind == 3 && shard % 4 != 2)
      value = std::bit_cast<float>(0x7FC00000U | static_cast<std::uint32_t>(shard * 64 + i % 64));
    if (kind == 4) value = static_cast<float>(1 + shard) * 1e-7F;
    values.push_back(value);
  }
  return values;
}

/// The sum below a node as the order is defined: left and right, and nothing in place of an
/// absent shard.
inline std::optional<Values> sum_below(comm::TreeNode node, std::int64_t present,
                                       std::int64_t words) {
  if (node.index << node.level >= present) return {};
  if (node.level == 0) return values_of_shard(node.index, words);
  auto left = sum_below({node.level - 1, node.index * 2}, present, words);
  const auto right = sum_below({node.level - 1, node.index * 2 + 1}, present, words);
  if (right)
    for (std::size_t i = 0; i < left->size(); ++i)
      if (!std::isnan((*left)[i])) (*left)[i] += (*right)[i];
  return left;
}

/// What one rank makes of all shards.
inline Values sum_of_shards(std::int64_t shards, std::int64_t present, std::int64_t words) {
  const int level = std::countr_zero(static_cast<std::uint64_t>(shards));
  return sum_below({level, 0}, present, words).value();
}

/// The nodes that a rank with `range` hands over.
inline std::vector<Values> nodes_of_range(comm::ShardRange range, std::int64_t shards,
                                          std::int64_t present, std::int64_t words) {
  std::vector<Values> nodes;
  for (const comm::TreeNode node : comm::nodes_of(range, shards, present))
    nodes.push_back(sum_below(node, present, words).value());
  return nodes;
}

/// The first word whose bits differ, in words; empty where there is none.
inline std::string first_difference(std::span<const float> got, std::span<const float> expected) {
  if (got.size() != expected.size()) return "the sizes differ";
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto a = std::bit_cast<std::uint32_t>(got[i]);
    const auto b = std::bit_cast<std::uint32_t>(expected[i]);
    if (a != b)
      return "word " + std::to_string(i) + " is " + std::to_string(a) + ", expected " +
             std::to_string(b) + " (bits)";
  }
  return "";
}

}  // namespace segfuse::test
