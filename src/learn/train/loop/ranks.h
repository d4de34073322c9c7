#pragma once
// The ranks of a training as its loop sees them. All have the same data and the same state; each
// computes its shards, and what all have to know goes through here, so that all decide the same.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/tree.h"
#include "segfuse/error.h"

namespace segfuse::comm {
class Group;
class TreeExchange;
namespace meet {
enum class Phase : std::uint8_t;
}
}  // namespace segfuse::comm

namespace segfuse::learn {

class RankWatch;

/// See files/recipe.h.
using Recipe = std::vector<std::pair<std::string, std::string>>;

/// The place in a group; 0 without one.
int rank_of(const comm::Group* group);

class TrainingRanks {
 public:
  /// Null: one rank. UsageError for more ranks than shards. `group` outlives this.
  TrainingRanks(comm::Group* group, std::int64_t shards, RankWatch* watch = nullptr);
  ~TrainingRanks();

  bool alone() const { return group_ == nullptr; }
  /// The one that writes files and speaks.
  bool leads() const { return rank_of(group_) == 0; }
  comm::ShardRange shards() const;
  /// Tells the other ranks what this one does; nothing without a watch.
  void report(comm::meet::Phase phase, std::int64_t step, std::int64_t shard = -1) const;

  /// Refuses ranks that train something else: UsageError that names what differs.
  void compare(const Recipe& recipe);

  /// What a rank knows of a step before the update.
  struct Report {
    std::vector<float> losses;  ///< of shards, in their order
    bool stop = false;          ///< whether the process is to end
    std::string failure{};      ///< failure_text() of what the rank ended by
  };
  /// Of all ranks together: the losses in the order of shards, and whether any is to end. Where one
  /// has failed, the leading rank throws its failure and the others wait.
  Report join(const Report& own);
  /// The sum of the gradients of all ranks; see TreeExchange::sum().
  void sum(std::span<const std::span<const float>> nodes, std::int64_t present,
           std::span<float> sum);

  /// What the leading rank has, on all.
  std::string from_leader(std::string text);
  /// The first text that is not empty, by rank.
  std::string first_of(std::string_view own);
  /// The leading rank throws what is to be said; the others wait for it to end them.
  void let_leader_speak();

 private:
  comm::Group* group_;
  RankWatch* watch_;
  std::unique_ptr<comm::TreeExchange> exchange_;
  comm::ShardRange shards_;
};

/// An error on its way to another process.
std::string failure_text(const Error& error);

/// Runs what each rank does by itself. Where it fails on some, the leading rank throws the first
/// failure, which is said once, and the others wait for it to end them. Null: one rank.
void agree(comm::Group* group, const std::function<void()>& work);

/// What a launcher started together.
struct RankContext {
  comm::Group* group = nullptr;        ///< null: this process alone
  std::shared_ptr<RankWatch> watch{};  ///< work() may make one
};
/// Runs work() on each rank, or on this process alone. All ranks but the first log errors alone.
/// CommError where the ranks cannot meet; what work() throws ends all of them.
void run_on_ranks(const std::function<void(RankContext& context)>& work);

/// See train_on_ranks() in segfuse/train.h.
int start_ranks(int ranks, const std::vector<std::string>& command);

}  // namespace segfuse::learn
