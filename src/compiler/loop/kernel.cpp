#include "compiler/loop/kernel.h"

#include <algorithm>

namespace segfuse::compiler::loop {

namespace {

void walk_at(const std::vector<Statement>& body, int depth,
             const std::function<void(const Statement&, int)>& visit) {
  for (const Statement& statement : body) {
    visit(statement, depth);
    if (const auto* loop = std::get_if<For>(&statement.node)) walk_at(loop->body, depth + 1, visit);
    if (const auto* branch = std::get_if<If>(&statement.node))
      walk_at(branch->body, depth + 1, visit);
  }
}

/// Sizes in the order of first use.
class SizeList {
 public:
  explicit SizeList(const Indices& indices) : indices_(indices) {}

  void add(const ir::Extent& size) {
    if (size.is_constant()) return;
    if (std::find(all.begin(), all.end(), size) == all.end()) all.push_back(size);
  }
  void add(const Index& index) {
    add(index.constant);
    for (const Index::Term& term : index.terms) {
      add(term.coefficient);
      const Atom& atom = indices_.atom(term.atom);
      add(atom.of);
      add(atom.by);
      add(atom.other);
    }
  }
  void add(const std::vector<Within>& when) {
    for (const Within& condition : when) {
      add(condition.index);
      add(condition.bound);
    }
  }

  void add(const Statement& statement) {
    const auto& node = statement.node;
    if (const auto* s = std::get_if<FromIndex>(&node)) add(s->index);
    if (const auto* s = std::get_if<Random>(&node)) add(s->element);
    if (const auto* s = std::get_if<Load>(&node)) add(s->index), add(s->when);
    if (const auto* s = std::get_if<Store>(&node)) add(s->index), add(s->when);
    if (const auto* s = std::get_if<Check>(&node)) add({s->within}), add(s->when);
    if (const auto* s = std::get_if<Accumulate>(&node)) add(s->position);
    if (const auto* s = std::get_if<Transpose>(&node)) {
      add(s->to_at), add(s->to_step);
      add(s->from_at), add(s->from_step);
      add(s->height), add(s->width);
    }
    if (const auto* s = std::get_if<For>(&node)) add(s->begin), add(s->end);
    if (const auto* s = std::get_if<If>(&node)) add(s->when);
  }

  std::vector<ir::Extent> all;

 private:
  const Indices& indices_;
};

}  // namespace

std::vector<ir::Extent> Kernel::sizes() const {
  SizeList list(indices);
  for (const KernelBuffer& buffer : buffers)
    if (buffer.kind == KernelBuffer::Kind::kRow) list.add(buffer.elements);
  walk(body, [&](const Statement& statement, int) { list.add(statement); });
  return std::move(list.all);
}

void walk(const std::vector<Statement>& body,
          const std::function<void(const Statement&, int depth)>& visit) {
  walk_at(body, 0, visit);
}

}  // namespace segfuse::compiler::loop
