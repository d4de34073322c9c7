#pragma once
// Ranks that make sums on devices, by NCCL or by peer memory: threads of this process, each with a
// device of its own.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/nccl/nccl_exchange.h"
#include "comm/peer/peer_exchange.h"
#include "runtime/check/race_checker.h"
#include "runtime/cpu/cpu_device.h"
#include "support/shard_sums.h"
#include "support/sim/sim_device.h"
#include "support/system/fake_cuda.h"
#include "support/system/fake_nccl.h"

namespace segfuse::test {

/// The fake of NCCL, opened as the real one is.
const comm::NcclApi& fake_api();
const FakeNccl& fake();

/// What the ranks' devices are.
class Devices {
 public:
  virtual ~Devices() = default;
  virtual std::shared_ptr<runtime::OpenDevice> open(int rank) = 0;
  virtual const comm::NcclApi& api() const { return fake_api(); }
  /// The calling thread is this rank.
  virtual void begin_rank(int rank) const { fake().begin_rank(rank); }
  /// Whether events can be requested until they are over; where the host has to wait for them, it
  /// does so before each question.
  virtual bool runs_by_itself() const { return true; }
  /// Bytes of device memory that are held, all devices together.
  virtual std::size_t held() const { return 0; }
};

/// Simulated devices, races checked. NCCL's work is done when the stream comes to it.
std::unique_ptr<Devices> simulated(std::function<std::shared_ptr<runtime::sim::Schedule>()> make);
/// Devices of a fake CUDA driver, races checked. As on a GPU, NCCL and the kernel put their work on
/// streams, and NCCL does so only after it was asked `asked` times how far it is.
std::unique_ptr<Devices> like_cuda(int asked, std::size_t memory = std::size_t{64} << 20);
/// GPUs, by rank, and the real NCCL. Why there are not so many: `reason`, and null.
std::unique_ptr<Devices> real_gpus(int ranks, std::string& reason);

/// Limits of one step: all sums, or none but those that do not make a part for everybody.
inline constexpr std::int64_t kOneStep = std::int64_t{1} << 40;
inline constexpr std::int64_t kTwoSteps = 0;

struct ByPeers {
  comm::PeerOptions options;
};

/// A rank at work. Nodes and sums are made on another stream than the exchange's.
class NcclRank {
 public:
  NcclRank(comm::Group& control, std::int64_t shards, Devices& devices,
           comm::NcclOptions options = {});
  /// By peer memory, which has to be usable.
  NcclRank(comm::Group& control, std::int64_t shards, Devices& devices, const ByPeers& options);
  ~NcclRank();
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  /// Enqueues a sum of the values of support/shard_sums.h. `in_place`: it replaces this
  /// rank's last node.
  void enqueue_sum(std::int64_t present, std::int64_t words, bool in_place = false);
  /// What is in the sum's memory when the stream that uses it comes to it.
  Values read_sum();
  /// Both, and the nodes are seen to be as they were.
  Values sum(std::int64_t present, std::int64_t words, bool in_place = false);
  /// As the exchange's, on any device.
  void wait();
  void finish();

  comm::NcclExchange& exchange() { return dynamic_cast<comm::NcclExchange&>(*exchange_); }
  comm::DeviceExchange& any_exchange() { return *exchange_; }
  runtime::OpenDevice& device() { return *device_; }

 private:
  void open_device();
  runtime::Buffer on_device(const Values& values);
  Values on_host(const runtime::Buffer& buffer);

  Devices& devices_;
  std::int64_t shards_;
  std::shared_ptr<runtime::OpenDevice> device_;
  runtime::StreamId compute_;
  runtime::StreamId transport_;
  std::vector<std::pair<std::byte*, std::size_t>> pinned_;
  std::unique_ptr<comm::DeviceExchange> exchange_;
  std::vector<Values> values_;
  std::vector<runtime::Buffer> nodes_;
  runtime::Buffer sum_;
};

/// Runs work(rank) on so many ranks; the exchanges finish with it, and what a rank throws ends all,
/// as comm::run_ranks() says.
void run_nccl_ranks(int ranks, std::int64_t shards, Devices& devices,
                    const comm::NcclOptions& options,
                    const std::function<void(comm::Group&, NcclRank&)>& work);
/// The same by peer memory.
void run_peer_ranks(int ranks, std::int64_t shards, Devices& devices,
                    const comm::PeerOptions& options,
                    const std::function<void(comm::Group&, NcclRank&)>& work);

}  // namespace segfuse::test
