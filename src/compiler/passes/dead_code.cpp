#include "compiler/passes/passes.h"

namespace segfuse::compiler {

bool remove_dead_code(ir::Fusion& fusion) {
  std::vector<bool> live(fusion.storage().exprs.size(), false);
  for (const ir::ExprId id : fusion.live_exprs()) live[id.index] = true;
  const std::vector<ir::ExprId> order = fusion.sorted_exprs();
  bool changed = false;
  for (auto id = order.rbegin(); id != order.rend(); ++id) {
    if (live[id->index]) continue;
    fusion.erase(*id);
    changed = true;
  }
  return changed;
}

bool unify_extents(ir::Fusion& fusion) { return fusion.canonicalise_sizes(); }

bool prepare_aliases(ir::Fusion& fusion) {
  std::vector<ir::ValId> idle;
  for (const ir::Alias& alias : fusion.aliases())
    if (alias.output == alias.input) idle.push_back(alias.input);
  for (const ir::ValId input : idle) fusion.remove_alias(input);
  return !idle.empty();
}

}  // namespace segfuse::compiler
