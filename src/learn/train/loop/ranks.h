#pragma once
// The ranks of a training as its loop sees them. All have the same data and the same state; each
// computes its shards, and what all have to know goes through here, so that all decide the same.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/tree.h"
#include "segfuse/error.h"
#include "segfuse/tensor.h"

namespace segfuse::comm {
class Group;
struct NcclApi;
class TreeExchange;
namespace meet {
enum class Phase : std::uint8_t;
}
}  // namespace segfuse::comm

namespace segfuse::engine {
class Accelerator;
}

namespace segfuse::runtime {
class Frontier;
}

namespace segfuse::learn {

class RankWatch;
class Stragglers;

class TrainingRanks {
 public:
  /// Null: one rank. UsageError for more ranks than shards. `group` outlives this.
  TrainingRanks(comm::Group* group, std::int64_t shards, RankWatch* watch = nullptr);
  ~TrainingRanks();

  bool alone() const { return group_ == nullptr; }
  /// Work of all ranks that those which are left do again where one is lost: see comm/group.h. Each
  /// call below is a unit of its own.
  void together(const std::function<void()>& work) const;
  /// At the beginning of a unit: deals the shards out again where the ranks changed, and says so.
  bool deal_again();
  /// Whether this rank came while the others were at work, and is none of them yet.
  bool is_outside() const;
  /// All ranks, and one that is outside, which waits for the others: those that came later are
  /// ranks from now on, and take() gets there what state() gave on the leading rank. Both may be
  /// called again, see together().
  void take_in(const std::function<std::string()>& state,
               const std::function<void(std::string)>& take);
  /// What the leading rank tells those that come later.
  void leave_note(const std::string& name, const std::string& text) const;
  std::string note(const std::string& name) const;
  /// The one that writes files and speaks.
  bool leads() const;
  comm::ShardRange shards() const;
  /// Tells the other ranks what this one does; nothing without a watch.
  void report(comm::meet::Phase phase, std::int64_t step, std::int64_t shard = -1) const;

  /// Why the ranks cannot do what was asked for.
  struct Obstacle {
    std::string text;
    bool usage = true;  ///< it was asked for wrongly
  };
  /// All ranks call it before the first sum. Gradients on GPUs are summed there where each rank has
  /// a GPU of its own: over peer memory where the GPUs reach each other's, else by NCCL where it is
  /// found; else in host memory. The leading rank says which it is and why. `comm` as in
  /// TrainOptions: UsageError or CommError where it names what cannot be used. `accelerator`, this
  /// rank's, may be null and outlives this.
  void choose_exchange(const std::string& comm, engine::Accelerator* accelerator,
                       const comm::NcclApi* nccl = nullptr);

  /// The values of all ranks, by rank.
  std::vector<std::string> gather(std::string_view own);

  /// The data of one rank on a step before the update.
  struct Report {
    std::vector<float> losses;  ///< of shards, in their order
    bool stop = false;          ///< whether the process is to end
    bool take_in = false;       ///< of all: whether somebody came later and waits
    std::string failure{};      ///< failure_text() of what the rank ended by
    double seconds = 0;         ///< that its shards took
  };
  /// Of all ranks together: the losses in the order of shards, and whether any is to end. Where one
  /// has failed, the leading rank throws its failure and the others wait. The leading rank says
  /// which one is slow.
  Report join(const Report& own);
  /// The sum of the gradients of all ranks; see TreeExchange::sum(). Tensors of the accelerator of
  /// choose_exchange(), or of the host.
  void sum(std::span<const Tensor> nodes, std::int64_t present, const Tensor& sum);
  /// Whether sums may go beside the shards' backward passes. Then all ranks call all_ready() in
  /// each step, and start_sum() if it says so.
  bool overlaps() const { return gpus_ != nullptr; }
  /// Whether the shards of all ranks are on their way. `pieces` says how this rank cuts the vector:
  /// CommError where ranks differ in it.
  bool all_ready(bool own, const std::string& pieces);
  /// Elements [begin, end) of the gradient.
  struct Piece {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  /// Enqueues the sum, piece by piece. The first `nodes` of `slots` are this rank's nodes; the last
  /// of them is still to be the sum of itself and of all slots behind it, added from the last on.
  /// `over`: by piece, after what the last slot's is there; null: after all that is enqueued.
  void start_sum(std::span<const Tensor> slots, std::size_t nodes, std::int64_t present,
                 const Tensor& sum, std::span<const Piece> pieces,
                 const std::vector<runtime::Frontier>* over);
  /// Waits until it is there.
  void wait_for_sum();
  /// After the last sum of all ranks.
  void finish();

  /// The leading rank's value, on all ranks.
  std::string from_leader(std::string text);
  /// The first text that is not empty, by rank.
  std::string first_of(std::string_view own);
  /// The leading rank throws what is to be said; the others wait for it to end them.
  void let_leader_speak();

 private:
  void deal();
  void choose_gpus(const std::string& comm, const comm::NcclApi* nccl);
  std::optional<Obstacle> open_on_gpus(const std::string& comm, const comm::NcclApi* nccl);
  void sum_on_host(std::span<const Tensor> nodes, std::int64_t present, const Tensor& sum);

  comm::Group* group_;
  RankWatch* watch_;
  std::int64_t all_shards_;
  std::int64_t generation_ = 0;  ///< of the group for which they are dealt out
  engine::Accelerator* accelerator_ = nullptr;
  std::unique_ptr<comm::TreeExchange> exchange_;
  struct OnGpus;
  std::unique_ptr<OnGpus> gpus_;  ///< sums on GPUs; null: through the host
  comm::ShardRange shards_;
  std::unique_ptr<Stragglers> stragglers_;
};

}  // namespace segfuse::learn
