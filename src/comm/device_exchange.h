#pragma once
// The sum of a step's gradients over GPUs, in the order of the tree: what tree_exchange.h does in
// host memory, with the same bits. nccl/ makes it by calls of NCCL, peer/ by a kernel of our own.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "comm/tree.h"
#include "runtime/memory/buffer.h"
#include "runtime/timeline.h"

namespace segfuse::comm {

/// What is known of a sum's memory beside its uses.
struct SumBegin {
  /// Values that are still to be added, from the last to the first, to be this rank's last node,
  /// whose memory the first of them is in. Fewer than two: that node is there.
  std::span<const runtime::Buffer> last_node{};
  /// The sum may begin after this, whatever else uses its memory; null: after all uses.
  const runtime::Frontier* after = nullptr;
};

/// Makes the sums of a run on one GPU of each rank.
class DeviceExchange {
 public:
  DeviceExchange() = default;
  /// Aborts, unless it has finished.
  virtual ~DeviceExchange() = default;
  DeviceExchange(const DeviceExchange&) = delete;
  DeviceExchange& operator=(const DeviceExchange&) = delete;

  /// Enqueues a sum. All ranks call it with equal `present` (1 to shards) and as many words.
  /// `nodes` are the nodes that nodes_of() names for this rank's shards, each as large as `sum`,
  /// which may be one of them. All ranks get the same bits.
  virtual void sum(std::span<const runtime::Buffer> nodes, std::int64_t present,
                   const runtime::Buffer& sum, const SumBegin& begin) = 0;
  void sum(std::span<const runtime::Buffer> nodes, std::int64_t present,
           const runtime::Buffer& to) {
    sum(nodes, present, to, {});
  }
  /// The host waits until the last sum is over; CommError if the exchange or another rank fails
  /// before.
  virtual void wait() = 0;
  /// Waits for the last sum and for the other ranks: the last call.
  virtual void finish() = 0;
  /// Ends this rank's sums: their work on the stream ends, its result undefined, and calls, pending
  /// and later ones, throw a CommError with the first reason. Any thread. Other ranks hear of it by
  /// others.
  virtual void abort(std::string_view reason) noexcept = 0;

  /// The shards of this rank.
  virtual ShardRange own_shards() const = 0;
  /// For logs: "NCCL 2.28.9 (libnccl.so.2)".
  virtual std::string name() const = 0;
};

}  // namespace segfuse::comm
