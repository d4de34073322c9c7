// How many shards a step has, where the configuration leaves it open.

#include <algorithm>
#include <cstdlib>
#include <span>

#include "base/console/log.h"
#include "base/os/file.h"
#include "comm/group.h"
#include "comm/tree.h"
#include "learn/train/commands/experiment.h"
#include "learn/train/files/checkpoint.h"
#include "learn/train/loop/company.h"

namespace segfuse::learn {
namespace {

/// What a checkpoint was trained with, if there is one; else 0.
std::int64_t shards_of_checkpoint(const std::filesystem::path& path) {
  if (!path_exists(path)) return 0;
  const Recipe recipe = recipe_of_checkpoint(path);
  const auto found = std::ranges::find(recipe, "training.shards", &Recipe::value_type::first);
  if (found == recipe.end()) return 1;
  const std::int64_t shards = std::strtoll(found->second.c_str(), nullptr, 10);
  return comm::valid_shards(shards) ? shards : 0;
}

}  // namespace

void choose_shards(TrainConfig& config, const std::filesystem::path& checkpoint, bool resume,
                   comm::Group* group) {
  // Some may be lost already, and the bits are those of a training that lost none.
  const int ranks = group == nullptr ? 1 : group->first_size();
  constexpr const char* kNote = "training.shards";
  if (config.training.chooses_shards && group != nullptr && group->is_outside()) {
    // The others have chosen.
    set_shards(config, std::strtoll(group->note(kNote).c_str(), nullptr, 10));
  } else if (config.training.chooses_shards) {
    std::int64_t former = 0;
    agree(group, [&] {
      if (resume && rank_of(group) == 0) former = shards_of_checkpoint(checkpoint);
    });
    together(group, [&] {
      if (group != nullptr) group->broadcast(std::as_writable_bytes(std::span(&former, 1)), 0);
    });
    agree(group, [&] { set_shards(config, former > 0 ? former : comm::least_shards(ranks)); });
    if (ranks > 1 && former == 0 && group->rank() == 0)
      log(LogLevel::kInfo, "the same bits on 1 to {0} ranks: training.shards = {0}",
          config.training.shards);
  }
  if (ranks > 1 && rank_of(group) == 0)
    group->leave_note(kNote, std::to_string(config.training.shards));
  agree(group, [&] {  // refuses too many ranks
    static_cast<void>(comm::deal_shards(config.training.shards, ranks));
  });
}

}  // namespace segfuse::learn
