#pragma once
// Which groups come before and after which, while groups are merged.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace segfuse::compiler {

/// A directed acyclic graph over nodes 0..count-1 whose nodes are merged step by step. Every merged
/// node keeps one row of ancestors and one of descendants, in bits over names; a merge ORs rows and
/// tells those who knew one half only. A merged node is named by one of its members, and all
/// functions take any of them.
class Reachability {
 public:
  using Node = std::uint32_t;
  /// Edges go from lower to higher numbers (InternalError otherwise).
  Reachability(std::size_t count, std::span<const std::pair<Node, Node>> edges);

  /// Adds an edge unless it closes a cycle; false if it would.
  [[nodiscard]] bool add_edge(Node from, Node to);

  /// Whether a path leads from one to the other; not from a node to itself.
  bool reaches(Node from, Node to) const;
  /// Whether no path leaves the set and enters it again: descendants ∩ ancestors ⊆ set.
  bool may_merge(std::span<const Node> set) const;
  /// The least set around this one that may merge, one name for each merged node, ascending; empty
  /// if it has more than `most`.
  std::vector<Node> hull(std::span<const Node> set, std::size_t most) const;
  /// Makes one node of two. Only if may_merge() said so for a set that holds both and whose rest
  /// is merged next.
  void merge(Node a, Node b);
  /// The name that all members of a merged node share.
  Node find(Node node) const;

 private:
  using Word = std::uint64_t;
  Word* row(std::vector<Word>& bits, Node node) { return bits.data() + node * words_; }
  const Word* row(const std::vector<Word>& bits, Node node) const {
    return bits.data() + node * words_;
  }
  void spread(std::vector<Word>& rows, const std::vector<Word>& whom,
              const std::vector<Word>& what);
  struct News;
  News news(const Word* whom_has, const Word* whom_lacks, const Word* brings,
            const Word* known) const;
  void tell(std::vector<Word>& rows, const News& news, Node name, bool name_is_known);
  /// Other nodes that lie on a path from the set back into it.
  std::vector<Node> between(std::span<const Node> set, std::size_t most) const;

  std::size_t words_;
  std::vector<Word> ancestors_;  // rows by name; bits of former names mean nothing
  std::vector<Word> descendants_;
  std::vector<Word> alive_;  // the names
  mutable std::vector<Node> parent_;
};

}  // namespace segfuse::compiler
