// Two ranks exchange slab buffers over libfabric on this machine while processes are spawned.

#include "support/system/fabric.h"

#include <gtest/gtest.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "segfuse/error.h"
#include "segfuse/registered.h"
#include "segfuse/spawn.h"

namespace segfuse::comm {
namespace {

constexpr std::size_t kWords = 20'000;
constexpr int kRounds = 200;
constexpr std::size_t kBytes = kWords * sizeof(std::uint64_t);

/// An endpoint with its slab: what is sent in the first half, what comes in the second.
class Rank {
 public:
  explicit Rank(const std::string& provider)
      : backend_(std::make_shared<FabricBackend>(provider)),
        registry_(backend_),
        slab_(registry_.make_slab({.owner = "rank", .bytes = 2 * kBytes})),
        registration_(slab_.register_range(0, 2 * kBytes)) {
    fi_cq_attr queue{};
    queue.format = FI_CQ_FORMAT_CONTEXT;
    fi_av_attr addresses{};
    addresses.type = FI_AV_TABLE;
    must(fi_cq_open(backend_->domain(), &queue, &queue_, nullptr));
    must(fi_av_open(backend_->domain(), &addresses, &addresses_, nullptr));
    must(fi_endpoint(backend_->domain(), backend_->info(), &endpoint_, nullptr));
    must(fi_ep_bind(endpoint_, &queue_->fid, FI_SEND | FI_RECV));
    must(fi_ep_bind(endpoint_, &addresses_->fid, 0));
    must(fi_enable(endpoint_));
  }
  ~Rank() {
    fi_close(&endpoint_->fid);
    fi_close(&addresses_->fid);
    fi_close(&queue_->fid);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  std::vector<char> name() const {
    std::size_t bytes = 0;
    fi_getname(&endpoint_->fid, nullptr, &bytes);
    std::vector<char> out(bytes);
    must(fi_getname(&endpoint_->fid, out.data(), &bytes));
    return out;
  }
  void meet(const std::vector<char>& name) {
    EXPECT_EQ(fi_av_insert(addresses_, name.data(), 1, &peer_, 0, nullptr), 1);
  }

  std::uint64_t* sent() { return reinterpret_cast<std::uint64_t*>(registration_.address()); }
  std::uint64_t* received() { return sent() + kWords; }
  void post_receive() {
    post([&] {
      return fi_recv(endpoint_, received(), kBytes, registration_.pin().descriptor(), peer_,
                     &contexts_[0]);
    });
  }
  void send() {
    post([&] {
      return fi_send(endpoint_, sent(), kBytes, registration_.pin().descriptor(), peer_,
                     &contexts_[1]);
    });
  }
  /// Until the send and the receive are over.
  bool complete() {
    int left = 2;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (left > 0 && std::chrono::steady_clock::now() < limit) {
      fi_cq_entry entry{};
      const ssize_t count = fi_cq_read(queue_, &entry, 1);
      if (count == 1) --left;
      if (count < 0 && count != -FI_EAGAIN) return false;
      if (count == -FI_EAGAIN) std::this_thread::yield();
    }
    return left == 0;
  }

 private:
  static void must(int result) { ASSERT_EQ(result, 0); }
  void post(auto&& call) {
    ssize_t result = 0;
    while ((result = call()) == -FI_EAGAIN) {
      fi_cq_read(queue_, nullptr, 0);  // progress
      std::this_thread::yield();
    }
    EXPECT_EQ(result, 0);
  }

  std::shared_ptr<FabricBackend> backend_;
  Registry registry_;
  Slab slab_;
  Registration registration_;
  fid_cq* queue_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  fi_addr_t peer_ = 0;
  fi_context contexts_[2] = {};
};

std::uint64_t value(std::size_t rank, int round, std::size_t i) {
  return (rank + 1) * 1'000'003 * static_cast<std::uint64_t>(round + 1) + i * i;
}

/// Sums over both ranks, again and again; how many words were wrong.
std::size_t sum_rounds(Rank& rank, std::size_t index) {
  std::size_t wrong = 0;
  for (int round = 0; round < kRounds; ++round) {
    rank.post_receive();
    for (std::size_t i = 0; i < kWords; ++i) rank.sent()[i] = value(index, round, i);
    rank.send();
    if (!rank.complete()) return kWords;
    for (std::size_t i = 0; i < kWords; ++i) {
      const std::uint64_t sum = rank.sent()[i] + rank.received()[i];
      wrong += sum != value(0, round, i) + value(1, round, i) ? 1 : 0;
    }
  }
  return wrong;
}

// T23.
class Fabric : public ::testing::TestWithParam<const char*> {};

TEST_P(Fabric, SumsAreExactWhileProcessesAreSpawned) {
  std::unique_ptr<Rank> ranks[2];
  try {
    for (auto& rank : ranks) rank = std::make_unique<Rank>(GetParam());
  } catch (const DeviceError& error) {
    GTEST_SKIP() << error.what();
  }
  ranks[0]->meet(ranks[1]->name());
  ranks[1]->meet(ranks[0]->name());
  std::size_t wrong[2] = {1, 1};
  std::vector<std::thread> threads;
  for (const std::size_t i : {0U, 1U})
    threads.emplace_back([&, i] { wrong[i] = sum_rounds(*ranks[i], i); });
  int failed = 0;
  for (int i = 0; i < 100; ++i) failed += spawn::run({.arguments = {"/bin/true"}}).ok() ? 0 : 1;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(wrong[0], 0U);
  EXPECT_EQ(wrong[1], 0U);
}

// Providers that leave the choice to us refuse a key that is taken; those that choose do not ask.
TEST_P(Fabric, EveryRegistrationHasAKeyOfItsOwn) {
  std::optional<FabricBackend> backend;
  try {
    backend.emplace(GetParam());
  } catch (const DeviceError& error) {
    GTEST_SKIP() << error.what();
  }
  std::vector<std::byte> memory(5 * 65536);
  std::vector<std::unique_ptr<Pin>> pins;
  std::set<std::uint64_t> keys;
  for (std::size_t i = 0; i < 5; ++i) {
    pins.push_back(backend->pin(std::span(memory).subspan(i * 65536, 65536)));
    keys.insert(pins.back()->key());
  }
  EXPECT_EQ(keys.size(), pins.size());
}

INSTANTIATE_TEST_SUITE_P(Providers, Fabric, ::testing::Values("tcp", "shm"));

TEST(FabricBackendTest, AnUnknownProviderIsRefused) {
  EXPECT_THROW(FabricBackend("no-such-provider"), DeviceError);
}

}  // namespace
}  // namespace segfuse::comm
