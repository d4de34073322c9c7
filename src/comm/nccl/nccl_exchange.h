#pragma once
// The sum of a step's gradients over GPUs by NCCL and a kernel of our own.
//
// The first words are cut into equal parts, one a rank. Each rank sends the parts of its nodes to
// their owners, the owner adds in the order of the tree, and the sums are gathered by all. The
// words behind them, which do not make a part for everybody, and short sums as a whole, go one
// step: all nodes are gathered by all ranks, and each adds them itself.

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/device_exchange.h"
#include "comm/group.h"
#include "comm/nccl/nccl_api.h"
#include "comm/tree.h"
#include "runtime/open_device.h"

namespace segfuse::comm {

struct NcclOptions {
  const NcclApi* api = nullptr;  ///< null: nccl()
  /// How long NCCL may work on one call, which includes the wait for the other ranks; 0: forever.
  std::chrono::milliseconds limit{0};
  /// Up to so many bytes of all ranks' nodes go in one step. The host needs 70 µs for each of the
  /// calls of NCCL, of which two steps have two: on two H200 150 µs for a MiB.
  std::int64_t one_step_bytes = std::int64_t{4} << 20;
};

/// How one sum is made: numbers, the same on all ranks but for `own_nodes` and `others`.
struct NcclPlan {
  std::int64_t words = 0;
  std::int64_t part = 0;      ///< words of each rank's part, whole blocks
  std::int64_t parted = 0;    ///< words that are cut into parts; those behind go in one step
  std::vector<int> nodes;     ///< of each rank
  int most_nodes = 0;         ///< of a rank
  std::size_t own_nodes = 0;  ///< nodes[rank]
  std::int64_t others = 0;    ///< nodes of all other ranks
  std::vector<unsigned char> additions;  ///< after each node, in the order of ranks (add_nodes.h)

  std::int64_t rest() const { return words - parted; }
  std::size_t scratch_bytes() const {
    return static_cast<std::size_t>(others * part + most_nodes * std::ssize(nodes) * rest()) *
           sizeof(float);
  }
};

/// Addresses on the device, f32: `plan.own_nodes` nodes and the sum of `plan.words` each, and
/// scratch memory. The sum may be one of the nodes.
struct NcclAddresses {
  std::vector<const float*> nodes;
  float* scratch = nullptr;
  float* sum = nullptr;
};

/// Makes the sums of a run on one GPU of each rank.
class NcclExchange final : public DeviceExchange {
 public:
  /// All ranks of `control` make one; its calls come from the thread that made it. Work goes on
  /// `stream` of `device`. Throws UsageError for more ranks than shards, CommError where there is
  /// no NCCL, where ranks have different ones, or where it does not start; its other ranks notice
  /// when this one aborts `control` (run_rank() does). `control` and `device` outlive it.
  NcclExchange(Group& control, std::int64_t shards, runtime::OpenDevice& device,
               runtime::StreamId stream, const NcclOptions& options = {});
  ~NcclExchange() override;

  using DeviceExchange::sum;
  /// It returns when NCCL has put its work on the stream, which can take until the other ranks have
  /// come.
  void sum(std::span<const runtime::Buffer> nodes, std::int64_t present, const runtime::Buffer& sum,
           const SumBegin& begin) override;
  void wait() override;
  void finish() override;
  void abort(std::string_view reason) noexcept override;
  ShardRange own_shards() const override;
  std::string name() const override;

  // The same for those who enqueue and order by themselves: three pieces of work on one stream, in
  // this order, each called where the device calls a Work's run().

  NcclPlan plan(std::int64_t words, std::int64_t present) const;
  /// Reads the nodes, writes the scratch memory.
  void hand_over(runtime::StreamHandle stream, const NcclPlan& plan, const NcclAddresses& at) const;
  /// Reads the nodes and the scratch memory, writes the sum.
  void add(runtime::StreamHandle stream, const NcclPlan& plan, const NcclAddresses& at) const;
  /// Writes the sum; not needed where plan.parted is 0.
  void give_back(runtime::StreamHandle stream, const NcclPlan& plan, const NcclAddresses& at) const;

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< work that is not over has it, too
};

}  // namespace segfuse::comm
