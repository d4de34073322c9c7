#include "compiler/op_facts.h"

#include <algorithm>

namespace segfuse::compiler {

using ir::Op;

namespace {

constexpr int kLoad = 8;     ///< what a load of something near is worth
constexpr int kMemory = 16;  ///< a write and a read of memory

}  // namespace

bool rounds_once(Op op) {
  const ir::OpInfo& info = ir::info(op);
  return info.op_class == ir::OpClass::kElementwise &&
         (info.accuracy.kind == ir::Accuracy::Kind::kExact ||
          info.accuracy.kind == ir::Accuracy::Kind::kRounded);
}

bool keeps_precision(Op op) {
  return ir::info(op).op_class == ir::OpClass::kElementwise &&
         ir::info(op).accuracy.kind == ir::Accuracy::Kind::kExact;
}

bool costs_more_than_a_load(Op op) { return ir::info(op).instructions > kLoad; }

bool costs_less_than_memory(Op op) { return ir::info(op).instructions <= kMemory; }

bool keeps_positions(Op op) {
  return op == Op::permute || op == Op::squeeze || op == Op::broadcast;
}

bool is_monoid(Op op) {
  const auto& walks = ir::info(op).walks;
  return walks.size() == 1 && walks[0].size() == 1 && walks[0][0] != ir::Monoid::kArgmax;
}

int carried_values(Op op) {
  int most = 0;
  for (const std::vector<ir::Monoid>& states : ir::info(op).walks) {
    int all = 0;
    for (const ir::Monoid state : states) all += state == ir::Monoid::kArgmax ? 2 : 1;
    most = std::max(most, all);
  }
  return most;
}

}  // namespace segfuse::compiler
