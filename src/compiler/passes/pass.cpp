#include "compiler/passes/pass.h"

#include <fmt/core.h>

#include <chrono>
#include <string>

#include "base/check.h"
#include "base/text.h"
#include "compiler/passes/passes.h"
#include "ir/rules/verify.h"

namespace segfuse::compiler {
namespace {

constexpr int kMaxRounds = 100;  // two or three are usual

constexpr Pass kPasses[] = {
    {"dead-code", "a legal Fusion", "every expression is live", remove_dead_code},
    {"extents", "no dead code", "equal sizes are equal objects", unify_extents},
    {"empty", "no dead code", "a value without elements is a constant", remove_empty_tensors},
    {"fold", "no dead code", "no exact formula of constants; no neutral operand", fold_constants},
    {"casts", "no dead code", "no cast undoes or repeats another", clean_casts},
    {"broadcasts", "no dead code", "broadcasts stand alone and after what they can follow",
     clean_broadcasts},
    {"movement", "no dead code", "no permute, reshape or slice of its own kind", clean_movement},
    {"common", "no dead code", "no two expressions are the same", merge_common_expressions},
    {"aliases", "no dead code", "every alias writes something", prepare_aliases},
};

void check(const Pass& pass, const ir::Fusion& fusion) {
  try {
    ir::verify(fusion);
  } catch (const InternalError& error) {
    throw InternalError(fmt::format("after the pass '{}': {}", pass.name, error.what()));
  }
}

}  // namespace

std::span<const Pass> all_passes() { return kPasses; }

const Pass& find_pass(std::string_view name) {
  std::vector<std::string> names;
  for (const Pass& pass : kPasses) {
    if (pass.name == name) return pass;
    names.emplace_back(pass.name);
  }
  throw UsageError(fmt::format("there is no pass '{}'; there are {}", name, quoted_list(names)));
}

std::vector<PassTime> run_passes(ir::Fusion& fusion, const PassOptions& options) {
  std::vector<PassTime> times;
  for (const Pass& pass : kPasses) times.push_back({&pass});
  bool changed = true;
  for (int round = 0; changed; ++round) {
    SEGFUSE_CHECK(round < kMaxRounds, "the passes over '{}' come to rest", fusion.name());
    changed = false;
    for (PassTime& time : times) {
      if (time.runs++ == 0) time.before = fusion.exprs().size();
      const auto start = std::chrono::steady_clock::now();
      const bool now = time.pass->run(fusion);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      time.seconds += taken.count();
      time.changes += now;
      time.after = fusion.exprs().size();
      changed = changed || now;
      if (options.verify) check(*time.pass, fusion);
      if (options.after) options.after(*time.pass, fusion);
    }
  }
  return times;
}

}  // namespace segfuse::compiler
