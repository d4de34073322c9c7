#include "compiler/segment/reachability.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace segfuse::compiler {

namespace {

constexpr std::size_t kBits = 64;

template <class Word>
void set_bit(Word* row, std::size_t bit) {
  row[bit / kBits] |= Word{1} << (bit % kBits);
}

template <class Visit>
void for_each_bit(const std::vector<std::uint64_t>& bits, Visit visit) {
  for (std::size_t w = 0; w < bits.size(); ++w)
    for (std::uint64_t word = bits[w]; word != 0; word &= word - 1)
      visit(
          static_cast<std::uint32_t>(w * kBits + static_cast<std::size_t>(std::countr_zero(word))));
}

}  // namespace

Reachability::Reachability(std::size_t count, std::span<const std::pair<Node, Node>> edges)
    : words_((count + kBits - 1) / kBits),
      ancestors_(count * words_, 0),
      descendants_(count * words_, 0),
      alive_(words_, 0),
      parent_(count) {
  std::vector<std::vector<Node>> users(count);
  std::vector<std::vector<Node>> needs(count);
  for (const auto& [from, to] : edges) {
    SEGFUSE_CHECK(from < to && to < count, "edges go upward: {} to {} of {}", from, to, count);
    users[from].push_back(to);
    needs[to].push_back(from);
  }
  auto absorb = [&](std::vector<Word>& bits, Node into, Node other) {
    Word* mine = row(bits, into);
    const Word* theirs = row(bits, other);
    for (std::size_t w = 0; w < words_; ++w) mine[w] |= theirs[w];
    set_bit(mine, other);
  };
  for (Node node = 0; node < count; ++node) {
    set_bit(alive_.data(), node);
    parent_[node] = node;
    for (const Node before : needs[node]) absorb(ancestors_, node, before);
  }
  for (Node node = static_cast<Node>(count); node-- > 0;)
    for (const Node after : users[node]) absorb(descendants_, node, after);
}

Reachability::Node Reachability::find(Node node) const {
  while (parent_[node] != node) node = parent_[node] = parent_[parent_[node]];
  return node;
}

bool Reachability::reaches(Node from, Node to) const {
  const Node name = find(to);
  return (row(descendants_, find(from))[name / kBits] >> (name % kBits) & 1U) != 0;
}

/// ORs `what` into the row of every node in `whom`.
void Reachability::spread(std::vector<Word>& rows, const std::vector<Word>& whom,
                          const std::vector<Word>& what) {
  for_each_bit(whom, [&](Node node) {
    Word* mine = row(rows, node);
    for (std::size_t w = 0; w < words_; ++w) mine[w] |= what[w];
  });
}

bool Reachability::add_edge(Node from, Node to) {
  const Node a = find(from);
  const Node b = find(to);
  if (a == b || reaches(b, a)) return false;
  if (reaches(a, b)) return true;
  std::vector<Word> above(row(ancestors_, a), row(ancestors_, a) + words_);
  std::vector<Word> below(row(descendants_, b), row(descendants_, b) + words_);
  set_bit(above.data(), a);
  set_bit(below.data(), b);
  for (std::size_t w = 0; w < words_; ++w) {
    above[w] &= alive_[w];
    below[w] &= alive_[w];
  }
  spread(descendants_, above, below);
  spread(ancestors_, below, above);
  return true;
}

std::vector<Reachability::Node> Reachability::between(std::span<const Node> set,
                                                      std::size_t most) const {
  std::vector<Node> names;
  for (const Node node : set) names.push_back(find(node));
  std::vector<Node> found;
  for (std::size_t w = 0; w < words_; ++w) {
    Word above = 0;
    Word below = 0;
    for (const Node name : names) {
      above |= row(ancestors_, name)[w];
      below |= row(descendants_, name)[w];
    }
    for (Word both = above & below & alive_[w]; both != 0; both &= both - 1) {
      const auto name =
          static_cast<Node>(w * kBits + static_cast<std::size_t>(std::countr_zero(both)));
      if (std::find(names.begin(), names.end(), name) != names.end()) continue;
      found.push_back(name);
      if (found.size() >= most) return found;
    }
  }
  return found;
}

bool Reachability::may_merge(std::span<const Node> set) const { return between(set, 1).empty(); }

std::vector<Reachability::Node> Reachability::hull(std::span<const Node> set,
                                                   std::size_t most) const {
  std::vector<Node> all;
  for (const Node node : set) all.push_back(find(node));
  // What lies on a path between two members has all its own paths between them inside.
  for (const Node node : between(set, most + 1)) all.push_back(node);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  if (all.size() > most) return {};
  return all;
}

/// What must be added to those before or after a merged node that knew only one of its halves.
struct Reachability::News {
  std::vector<Word> whom;  ///< who knew one half
  std::vector<Word> what;  ///< all that the whole brings
  bool only_name = true;   ///< nothing but the new name is news
  std::size_t count = 0;   ///< how many must hear it
};

/// `mine` and `theirs`: what lies on one side of the half that keeps its name and of the other;
/// `beyond`, `other_beyond`: the same on the other side. Those who know the other half only have to
/// hear the name and what the first half brings.
Reachability::News Reachability::news(const Word* whom_has, const Word* whom_lacks,
                                      const Word* brings, const Word* known) const {
  News all{std::vector<Word>(words_), std::vector<Word>(words_)};
  for (std::size_t w = 0; w < words_; ++w) {
    all.whom[w] = whom_has[w] & ~whom_lacks[w] & alive_[w];
    all.what[w] = brings[w] & ~known[w] & alive_[w];
    all.only_name = all.only_name && all.what[w] == 0;
    all.count += static_cast<std::size_t>(std::popcount(all.whom[w]));
  }
  return all;
}

void Reachability::tell(std::vector<Word>& rows, const News& news, Node name, bool name_is_known) {
  if (news.only_name && name_is_known) return;
  for_each_bit(news.whom, [&](Node member) {
    Word* mine = row(rows, member);
    if (!news.only_name)
      for (std::size_t w = 0; w < words_; ++w) mine[w] |= news.what[w];
    set_bit(mine, name);
  });
}

void Reachability::merge(Node first, Node second) {
  const Node a = find(first);
  const Node b = find(second);
  if (a == b) return;
  for (const Node half : {a, b}) alive_[half / kBits] &= ~(Word{1} << (half % kBits));
  // Who comes after one half only hears of what comes before the other, and the other way round.
  const News after_a =
      news(row(descendants_, a), row(descendants_, b), row(ancestors_, b), row(ancestors_, a));
  const News after_b =
      news(row(descendants_, b), row(descendants_, a), row(ancestors_, a), row(ancestors_, b));
  const News before_a =
      news(row(ancestors_, a), row(ancestors_, b), row(descendants_, b), row(descendants_, a));
  const News before_b =
      news(row(ancestors_, b), row(ancestors_, a), row(descendants_, a), row(descendants_, b));
  // The half keeps its name that fewer have to learn.
  const bool keep_a = after_b.count + before_b.count <= after_a.count + before_a.count;
  const Node name = keep_a ? a : b;
  const Node other = keep_a ? b : a;
  tell(ancestors_, after_a, name, keep_a);
  tell(ancestors_, after_b, name, !keep_a);
  tell(descendants_, before_a, name, keep_a);
  tell(descendants_, before_b, name, !keep_a);
  for (std::vector<Word>* rows : {&ancestors_, &descendants_}) {
    Word* mine = row(*rows, name);
    for (std::size_t w = 0; w < words_; ++w) mine[w] |= row(*rows, other)[w];
    for (const Node half : {a, b}) mine[half / kBits] &= ~(Word{1} << (half % kBits));
  }
  parent_[other] = name;
  alive_[name / kBits] |= Word{1} << (name % kBits);
}

}  // namespace segfuse::compiler
