#pragma once
// The sum of a step's gradients over the GPUs of one machine, by one kernel on each that writes
// into the memory of the others: nccl/kernels/sum_over_peers.cuh. A sum costs the host one launch.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "comm/device_exchange.h"
#include "comm/group.h"
#include "comm/peer/peer_plan.h"
#include "runtime/open_device.h"

namespace segfuse::comm {

class PeerExchange final : public DeviceExchange {
 public:
  /// All ranks of `control` call it; each has a GPU of its own. Work goes on `stream` of `device`.
  /// Null, with the same `reason` on all ranks, where the GPUs cannot reach each other's memory or
  /// a first sum over it is wrong. UsageError for more ranks than shards; CommError where a rank is
  /// lost. `control` and `device` outlive it.
  static std::unique_ptr<PeerExchange> open(Group& control, std::int64_t shards,
                                            runtime::OpenDevice& device, runtime::StreamId stream,
                                            std::string& reason, const PeerOptions& options = {});
  ~PeerExchange() override;

  using DeviceExchange::sum;
  void sum(std::span<const runtime::Buffer> nodes, std::int64_t present, const runtime::Buffer& sum,
           const SumBegin& begin) override;
  void wait() override;
  void finish() override;
  void abort(std::string_view reason) noexcept override;
  ShardRange own_shards() const override;
  std::string name() const override;

  PeerPlan plan(std::int64_t words, std::int64_t present) const;

 private:
  struct State;
  explicit PeerExchange(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;  ///< work that is not over has it, too
};

}  // namespace segfuse::comm
