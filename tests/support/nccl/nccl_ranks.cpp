#include "support/nccl/nccl_ranks.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "base/os/shared_library.h"
#include "comm/nccl/library.h"
#include "comm/threads/thread_group.h"
#include "runtime/cuda/cuda_device.h"
#include "support/nccl/host_kernels.h"

namespace segfuse::test {
namespace {

using comm::Group;
using comm::NcclApi;
using comm::NcclOptions;
using runtime::OpenDevice;
using runtime::OpenDeviceOptions;

OpenDeviceOptions checked() {
  OpenDeviceOptions options;
  options.check_streams = runtime::CheckMode::kThrow;
  return options;
}

class Simulated final : public Devices {
 public:
  explicit Simulated(std::function<std::shared_ptr<runtime::sim::Schedule>()> make)
      : make_(std::move(make)) {
    fake().set_stream({}, 2);
  }
  std::shared_ptr<OpenDevice> open(int /*rank*/) override {
    return std::make_shared<OpenDevice>(std::make_unique<runtime::sim::SimDevice>(make_()),
                                        make_host_kernels(), checked());
  }
  bool runs_by_itself() const override { return false; }

 private:
  std::function<std::shared_ptr<runtime::sim::Schedule>()> make_;
};

class LikeCuda final : public Devices {
 public:
  LikeCuda(int asked, std::size_t memory) : driver_(memory) { fake().set_stream(enqueue, asked); }
  ~LikeCuda() override { fake().set_stream({}, 0); }
  std::shared_ptr<OpenDevice> open(int /*rank*/) override {
    return std::make_shared<OpenDevice>(
        runtime::open_cuda_device(driver_.driver(), 0, {.granule = 1}), make_host_kernels(enqueue),
        checked());
  }
  std::size_t held() const override { return driver_.used(); }

 private:
  static void enqueue(void* stream, std::function<void()> work) {
    auto* const held = new std::function<void()>(std::move(work));
    const auto call = [](void* data) {
      const std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(data));
      (*body)();
    };
    if (FakeCuda::host_function(stream, call, held) != 0) {
      delete held;
      ADD_FAILURE() << "work is enqueued where no device is current";
    }
  }
  FakeCuda driver_;
};

class RealGpus final : public Devices {
 public:
  std::shared_ptr<OpenDevice> open(int rank) override { return runtime::open_cuda(rank); }
  const NcclApi& api() const override { return comm::nccl(); }
  void begin_rank(int /*rank*/) const override {}
};

}  // namespace

const NcclApi& fake_api() {
  static const NcclApi api = [] {
    std::string reason;
    auto opened = comm::open_nccl(SEGFUSE_FAKE_NCCL, reason);
    if (!opened) throw InternalError(reason);
    return *opened;
  }();
  return api;
}

const FakeNccl& fake() {
  static const FakeNccl& control = [&]() -> const FakeNccl& {
    FakeNcclEntry entry = nullptr;
    SharedLibrary::open_first({SEGFUSE_FAKE_NCCL}).load("fake_nccl", entry);
    return *entry();
  }();
  return control;
}

std::unique_ptr<Devices> simulated(std::function<std::shared_ptr<runtime::sim::Schedule>()> make) {
  return std::make_unique<Simulated>(std::move(make));
}

std::unique_ptr<Devices> like_cuda(int asked, std::size_t memory) {
  return std::make_unique<LikeCuda>(asked, memory);
}

std::unique_ptr<Devices> real_gpus(int ranks, std::string& reason) {
  const char* const wanted = std::getenv("SEGFUSE_TEST_DEVICE");
  if (wanted == nullptr || std::string_view(wanted) != "cuda") {
    reason = "SEGFUSE_TEST_DEVICE is not cuda";
    return nullptr;
  }
  const int count = runtime::cuda_device_count(&reason);
  if (count < ranks) {
    if (count > 0) reason = "there are not so many GPUs: " + std::to_string(count);
    return nullptr;
  }
  try {
    static_cast<void>(comm::nccl());
  } catch (const CommError& error) {
    reason = error.what();
    return nullptr;
  }
  return std::make_unique<RealGpus>();
}

NcclRank::NcclRank(Group& control, std::int64_t shards, Devices& devices, NcclOptions options)
    : devices_(devices), shards_(shards), device_(devices.open(control.rank())) {
  open_device();
  if (options.api == nullptr) options.api = &devices.api();
  exchange_ = std::make_unique<comm::NcclExchange>(control, shards, *device_, transport_, options);
}

NcclRank::NcclRank(Group& control, std::int64_t shards, Devices& devices, const ByPeers& by_peers)
    : devices_(devices), shards_(shards), device_(devices.open(control.rank())) {
  open_device();
  std::string reason;
  exchange_ =
      comm::PeerExchange::open(control, shards, *device_, transport_, reason, by_peers.options);
  if (!exchange_) throw InternalError("no peer memory: " + reason);
}

void NcclRank::open_device() {
  compute_ = device_->timeline().create(device_->device(), "compute");
  transport_ = device_->timeline().create(device_->device(), "transport");
}

NcclRank::~NcclRank() {
  exchange_.reset();
  nodes_.clear();
  sum_.reset();
  for (const runtime::StreamId stream : {compute_, transport_}) {
    try {
      device_->timeline().retire(stream);
    } catch (const std::exception&) {
      // What went wrong was thrown where it was waited for.
    }
  }
  for (const auto& [memory, bytes] : pinned_) device_->device().release_pinned(memory, bytes);
}

runtime::Buffer NcclRank::on_device(const Values& values) {
  const std::size_t bytes = values.size() * sizeof(float);
  runtime::Buffer buffer =
      device_->heap().allocate(std::max<std::size_t>(bytes, 4), compute_, "values");
  if (bytes == 0) return buffer.part(0, 0);
  std::byte* const staged = device_->device().allocate_pinned(bytes);
  pinned_.emplace_back(staged, bytes);
  std::memcpy(staged, values.data(), bytes);
  device_->executor().copy_in(compute_, buffer, 0, staged, bytes);
  return buffer;
}

Values NcclRank::on_host(const runtime::Buffer& buffer) {
  Values values(buffer.bytes() / sizeof(float));
  if (values.empty()) return values;
  std::byte* const staged = device_->device().allocate_pinned(buffer.bytes());
  pinned_.emplace_back(staged, buffer.bytes());
  device_->executor().copy_out(compute_, staged, buffer, 0, buffer.bytes());
  wait();  // who waits for the stream alone does not hear of a peer that is gone
  device_->timeline().synchronize(compute_);
  std::memcpy(values.data(), staged, buffer.bytes());
  return values;
}

void NcclRank::enqueue_sum(std::int64_t present, std::int64_t words, bool in_place) {
  values_ = nodes_of_range(exchange_->own_shards(), shards_, present, words);
  nodes_.clear();
  for (const Values& values : values_) nodes_.push_back(on_device(values));
  in_place = in_place && !nodes_.empty();
  sum_ = in_place ? nodes_.back() : on_device(Values(static_cast<std::size_t>(words), 77));
  exchange_->sum(nodes_, present, sum_);
  if (in_place) values_.pop_back();
}

Values NcclRank::read_sum() { return on_host(sum_); }

Values NcclRank::sum(std::int64_t present, std::int64_t words, bool in_place) {
  enqueue_sum(present, words, in_place);
  Values sum = read_sum();
  for (std::size_t k = 0; k < values_.size(); ++k)
    EXPECT_EQ(first_difference(on_host(nodes_[k]), values_[k]), "") << "a node was changed";
  return sum;
}

void NcclRank::wait() {
  if (!devices_.runs_by_itself()) device_->timeline().synchronize(transport_);
  exchange_->wait();
}

void NcclRank::finish() {
  if (!devices_.runs_by_itself()) device_->timeline().synchronize(transport_);
  exchange_->finish();
}

namespace {

template <class Options>
void run_ranks_with(int ranks, std::int64_t shards, Devices& devices, const Options& options,
                    const std::function<void(Group&, NcclRank&)>& work) {
  comm::run_ranks(ranks, [&](Group& control) {
    devices.begin_rank(control.rank());
    NcclRank rank(control, shards, devices, options);
    work(control, rank);
    rank.finish();
  });
}

}  // namespace

void run_nccl_ranks(int ranks, std::int64_t shards, Devices& devices, const NcclOptions& options,
                    const std::function<void(Group&, NcclRank&)>& work) {
  run_ranks_with(ranks, shards, devices, options, work);
}

void run_peer_ranks(int ranks, std::int64_t shards, Devices& devices,
                    const comm::PeerOptions& options,
                    const std::function<void(Group&, NcclRank&)>& work) {
  run_ranks_with(ranks, shards, devices, ByPeers{options}, work);
}

}  // namespace segfuse::test
