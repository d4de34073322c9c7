#pragma once
// How many registrations cover which bytes: disjoint ranges with counts.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <vector>

#include "segfuse/registered.h"

namespace segfuse::comm {

/// A range is removed as it was added; that needs no memory, so it cannot fail half way. Not
/// synchronised.
class RangeMap {
 public:
  explicit RangeMap(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : edges_(memory) {}

  /// begin < end, else InternalError. When memory runs out, everything is as before.
  void add(std::uint64_t begin, std::uint64_t end);
  /// InternalError, and everything as before, unless such a range was added and not yet removed.
  void remove(std::uint64_t begin, std::uint64_t end);

  /// Is a byte of [begin, end) covered by so many?
  bool touches(std::uint64_t begin, std::uint64_t end, std::uint32_t count = 1) const;
  std::uint32_t count_at(std::uint64_t at) const;
  /// Bytes that are covered.
  std::uint64_t covered() const;
  /// The covered ranges in order; neighbours have different counts or a gap between them.
  std::vector<CountedRange> ranges() const;
  bool empty() const { return edges_.empty(); }

 private:
  /// From its place to the next edge `count` ranges cover; begins + ends of them are at its place.
  struct Edge {
    std::uint32_t count = 0;
    std::uint32_t begins = 0;
    std::uint32_t ends = 0;
    bool unused() const { return begins == 0 && ends == 0; }
  };
  using Edges = std::pmr::map<std::uint64_t, Edge>;

  Edges::iterator edge_at(std::uint64_t place);
  void drop_unused(Edges::iterator edge);

  Edges edges_;
};

}  // namespace segfuse::comm
