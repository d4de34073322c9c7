#include "unit/runtime/device_harness.h"

#include <cstdlib>

#include "runtime/cpu/cpu_device.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/gpu.h"

namespace segfuse::runtime {
namespace {

constexpr std::size_t kGranule = 64 << 10;

/// Blocks a stream with work that waits on the host.
class Gates {
 public:
  std::function<void()> close(StreamHandle stream) {
    auto gate = std::make_shared<Gate>();
    gates_[stream] = gate;
    return [gate] {
      std::unique_lock lock(gate->mutex);
      gate->opened.wait(lock, [&] { return gate->open; });
    };
  }
  void open(StreamHandle stream) {
    const auto gate = gates_.at(stream);
    const std::lock_guard lock(gate->mutex);
    gate->open = true;
    gate->opened.notify_all();
  }
  ~Gates() {
    for (const auto& [stream, gate] : gates_) open(stream);
  }

 private:
  struct Gate {
    std::mutex mutex;
    std::condition_variable opened;
    bool open = false;
  };
  std::map<StreamHandle, std::shared_ptr<Gate>> gates_;
};

class SimHarness final : public Harness {
 public:
  SimHarness(std::shared_ptr<sim::Schedule> schedule, bool checked)
      : sim_(
            {.schedule = std::move(schedule), .granule = kGranule, .limit = kGranules * kGranule}) {
    if (checked) checker_ = std::make_unique<RaceChecker>(sim_, CheckMode::kThrow);
  }
  Device& device() override {
    if (checker_ != nullptr) return *checker_;
    return sim_;
  }
  void work(StreamHandle stream, std::function<void()> body, std::string name) override {
    device().launch(stream, {std::move(name), [body](StreamHandle) { body(); }}, {});
  }
  void hold(StreamHandle stream) override { sim_.hold(stream); }
  void release(StreamHandle stream) override { sim_.release(stream); }

 private:
  sim::SimDevice sim_;
  std::unique_ptr<RaceChecker> checker_;
};

class CpuHarness final : public Harness {
 public:
  explicit CpuHarness(bool checked) : cpu_({.granule = kGranule, .limit = kGranules * kGranule}) {
    if (checked) checker_ = std::make_unique<RaceChecker>(cpu_, CheckMode::kThrow);
  }
  Device& device() override {
    if (checker_ != nullptr) return *checker_;
    return cpu_;
  }
  void work(StreamHandle stream, std::function<void()> body, std::string name) override {
    device().launch(stream, {std::move(name), [body](StreamHandle) { body(); }}, {});
  }
  void hold(StreamHandle stream) override { work(stream, gates_.close(stream), "hold"); }
  void release(StreamHandle stream) override { gates_.open(stream); }

 private:
  CpuDevice cpu_;
  std::unique_ptr<RaceChecker> checker_;
  Gates gates_;  ///< last: opened before the device goes
};

/// The CUDA device, on the real driver or on the fake one.
class CudaHarness final : public Harness {
 public:
  explicit CudaHarness(bool fake) {
    if (fake) fake_ = std::make_unique<test::FakeCuda>(kGranules * kGranule);
    driver_ = fake ? &fake_->driver() : &cuda::driver();
    device_ = open_cuda_device(*driver_, 0, fake ? CudaDeviceOptions{1} : CudaDeviceOptions{});
  }
  Device& device() override { return *device_; }
  void work(StreamHandle stream, std::function<void()> body, std::string name) override {
    auto* const held = new std::function<void()>(std::move(body));
    device_->launch(stream,
                    {std::move(name),
                     [this, held](StreamHandle on) {
                       cuda::check(*driver_, driver_->host_function(on, call, held), "a test");
                     }},
                    {});
  }
  void hold(StreamHandle stream) override { work(stream, gates_.close(stream), "hold"); }
  void release(StreamHandle stream) override { gates_.open(stream); }
  bool is_limited() const override { return fake_ != nullptr; }

 private:
  static void call(void* held) {
    const std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(held));
    (*body)();
  }
  std::unique_ptr<test::FakeCuda> fake_;
  const cuda::Driver* driver_ = nullptr;
  std::unique_ptr<Device> device_;
  Gates gates_;
};

template <class Make>
Backend sim_backend(std::string name, bool checked, const Make& make) {
  return {std::move(name), [=] { return std::make_unique<SimHarness>(make(), checked); }};
}

}  // namespace

std::string why_no_cuda() {
  const char* const wanted = std::getenv("SEGFUSE_TEST_DEVICE");
  if (wanted == nullptr || std::string(wanted) != "cuda") return "SEGFUSE_TEST_DEVICE is not cuda";
  std::string reason;
  cuda_device_count(&reason);
  return reason;
}

std::vector<Backend> checking_backends() {
  return {sim_backend("sim_eager", false, sim::eager),
          sim_backend("sim_lazy", false, sim::lazy),
          sim_backend("sim_overlap", false, sim::overlap),
          sim_backend("sim_seeded", false, [] { return sim::seeded(7); }),
          sim_backend("sim_threads", false, [] { return std::shared_ptr<sim::Schedule>(); }),
          sim_backend("sim_checked", true, sim::lazy),
          {"cpu", [] { return std::make_unique<CpuHarness>(false); }},
          {"cpu_checked", [] { return std::make_unique<CpuHarness>(true); }}};
}

std::vector<Backend> backends() {
  std::vector<Backend> all = checking_backends();
  all.push_back({"cuda_fake", [] { return std::make_unique<CudaHarness>(true); }});
  if (why_no_cuda().empty())
    all.push_back({"cuda", [] { return std::make_unique<CudaHarness>(false); }});
  return all;
}

}  // namespace segfuse::runtime
