#pragma once
// The processes that were started together to share a training.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "segfuse/context.h"
#include "segfuse/error.h"

namespace segfuse::comm {
class Group;
}

namespace segfuse::learn {

class RankWatch;

/// The place in a group; 0 without one.
int rank_of(const comm::Group* group);

/// An error on its way to another process.
std::string failure_text(const Error& error);
/// There it is thrown, with something before its sentence.
[[noreturn]] void throw_failure(const std::string& text, const std::string& before = "");

/// comm::together(); null: this process alone.
void together(comm::Group* group, const std::function<void()>& work);

/// Runs what each rank does by itself. Where it fails on some, the leading rank throws the first
/// failure, which is said once, and the others wait for it to end them. Null: one rank.
void agree(comm::Group* group, const std::function<void()>& work);

/// This process among the ranks that a launcher started together.
struct RankContext {
  comm::Group* group = nullptr;  ///< null: this process alone
  RankWatch* watch = nullptr;    ///< null: nobody hears what this process does
  /// Among those of this machine; none: it came later, and nobody says it.
  std::optional<std::int64_t> local_rank = 0;
};
/// The context of a rank: the device "cuda" is the GPU of its number on its machine, or the only
/// one that it sees. UsageError where there are fewer GPUs than ranks, or where that number is not
/// known.
Context context_of(const RankContext& rank, const Context& context);
struct RankSettings {
  std::string comm;      ///< TrainOptions::comm
  double timeout = 0;    ///< TrainOptions::rank_timeout
  int min_ranks = 0;     ///< TrainOptions::min_ranks
  bool compare = false;  ///< TrainOptions::compare
};
/// Runs work() on each rank, or on this process alone, which tells a launcher of ours what it does.
/// Ranks of an MPI's launcher use that MPI, all
/// others TCP. All ranks but the first log errors alone. UsageError for settings that do not fit,
/// CommError where the ranks cannot meet; what work() throws ends all of them, and is thrown as
/// EndedByRank on those that need not say it.
void run_on_ranks(const RankSettings& settings,
                  const std::function<void(const RankContext& context)>& work);

}  // namespace segfuse::learn
