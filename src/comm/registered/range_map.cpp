#include "comm/registered/range_map.h"

#include "base/check.h"

namespace segfuse::comm {

RangeMap::Edges::iterator RangeMap::edge_at(std::uint64_t place) {
  const auto next = edges_.lower_bound(place);
  if (next != edges_.end() && next->first == place) return next;
  const std::uint32_t count = next == edges_.begin() ? 0 : std::prev(next)->second.count;
  return edges_.emplace_hint(next, place, Edge{count});
}

void RangeMap::drop_unused(Edges::iterator edge) {
  if (edge->second.unused()) edges_.erase(edge);
}

void RangeMap::add(std::uint64_t begin, std::uint64_t end) {
  SEGFUSE_CHECK(begin < end, "a range from {} to {}", begin, end);
  const auto first = edge_at(begin);
  Edges::iterator last;
  try {
    last = edge_at(end);
  } catch (...) {
    drop_unused(first);
    throw;
  }
  ++first->second.begins;
  ++last->second.ends;
  for (auto edge = first; edge != last; ++edge) ++edge->second.count;
}

void RangeMap::remove(std::uint64_t begin, std::uint64_t end) {
  const auto first = edges_.find(begin);
  const auto last = edges_.find(end);
  bool there = begin < end && first != edges_.end() && last != edges_.end() &&
               first->second.begins > 0 && last->second.ends > 0;
  for (auto edge = first; there && edge != last; ++edge) there = edge->second.count > 0;
  SEGFUSE_CHECK(there, "no range from {} to {} is registered", begin, end);
  --first->second.begins;
  --last->second.ends;
  for (auto edge = first; edge != last; ++edge) --edge->second.count;
  drop_unused(first);
  drop_unused(last);
}

bool RangeMap::touches(std::uint64_t begin, std::uint64_t end, std::uint32_t count) const {
  if (begin >= end) return false;
  auto edge = edges_.upper_bound(begin);
  if (edge != edges_.begin()) --edge;
  for (; edge != edges_.end() && edge->first < end; ++edge)
    if (edge->second.count >= count) return true;
  return false;
}

std::uint32_t RangeMap::count_at(std::uint64_t at) const {
  const auto next = edges_.upper_bound(at);
  return next == edges_.begin() ? 0 : std::prev(next)->second.count;
}

std::uint64_t RangeMap::covered() const {
  std::uint64_t total = 0;
  for (const CountedRange& range : ranges()) total += range.end - range.begin;
  return total;
}

std::vector<CountedRange> RangeMap::ranges() const {
  std::vector<CountedRange> out;
  for (auto edge = edges_.begin(); edge != edges_.end(); ++edge) {
    if (edge->second.count == 0) continue;
    const std::uint64_t end = std::next(edge)->first;
    if (!out.empty() && out.back().end == edge->first && out.back().count == edge->second.count)
      out.back().end = end;
    else
      out.push_back({edge->first, end, edge->second.count});
  }
  return out;
}

}  // namespace segfuse::comm
