#pragma once
// Strong ids: 32-bit indices into the storage of one Fusion, not convertible into each other.

#include <compare>
#include <cstdint>
#include <functional>

namespace segfuse::ir {

template <class Tag>
struct Id {
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;
  std::uint32_t index = kNone;

  constexpr bool valid() const noexcept { return index != kNone; }
  friend constexpr auto operator<=>(Id, Id) = default;
};

using ValId = Id<struct ValTag>;
using ExprId = Id<struct ExprTag>;
using SymbolId = Id<struct SymbolTag>;

}  // namespace segfuse::ir

template <class Tag>
struct std::hash<segfuse::ir::Id<Tag>> {
  std::size_t operator()(segfuse::ir::Id<Tag> id) const noexcept { return id.index; }
};
