#include "unit/runtime/device_harness.h"

#include <cstdlib>

#include "base/os/shared_library.h"
#include "runtime/cpu/cpu_device.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/kernels.h"

namespace segfuse::runtime {
namespace {

constexpr std::size_t kHarnessGranule = 64 << 10;

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
      : sim_({.schedule = std::move(schedule),
              .granule = kHarnessGranule,
              .limit = kGranules * kHarnessGranule}) {
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
  explicit CpuHarness(bool checked)
      : cpu_({.granule = kHarnessGranule, .limit = kGranules * kHarnessGranule}) {
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

/// What only tests use of the driver. A host function that blocks may block all others, so streams
/// are held by a value in memory.
struct CudaExtras {
  cuda::Result (*host_function)(cuda::Stream, void (*)(void*), void*) = nullptr;
  cuda::Result (*wait_value)(cuda::Stream, cuda::DevicePtr, std::uint32_t, unsigned) = nullptr;

  CudaExtras() {
    const SharedLibrary library = SharedLibrary::open_first({"libcuda.so.1", "libcuda.so"});
    library.load("cuLaunchHostFunc", host_function);
    library.load("cuStreamWaitValue32_v2", wait_value);
  }
};

class CudaHarness : public Harness {
 public:
  Device& device() override { return *device_; }
  void work(StreamHandle stream, std::function<void()> body, std::string name) override {
    auto* const held = new std::function<void()>(std::move(body));
    const auto enqueue = [this, held](StreamHandle on) {
      if (host_function(on, call, held) != 0) throw DeviceError("no host function");
    };
    device_->launch(stream, {std::move(name), enqueue}, {});
  }

 protected:
  virtual cuda::Result host_function(StreamHandle, void (*function)(void*), void* data) = 0;
  std::unique_ptr<Device> device_;

 private:
  static void call(void* held) {
    const std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(held));
    (*body)();
  }
};

class FakeCudaHarness final : public CudaHarness {
 public:
  FakeCudaHarness() { device_ = open_cuda_device(fake_.driver(), 0, {.granule = 1}); }
  ~FakeCudaHarness() override {
    gates_.reset();
    device_.reset();
  }
  void hold(StreamHandle stream) override { work(stream, gates_->close(stream), "hold"); }
  void release(StreamHandle stream) override { gates_->open(stream); }

 private:
  cuda::Result host_function(StreamHandle on, void (*function)(void*), void* data) override {
    return test::FakeCuda::host_function(on.get(), function, data);
  }
  test::FakeCuda fake_{kGranules * kHarnessGranule};
  std::unique_ptr<Gates> gates_ = std::make_unique<Gates>();
};

class RealCudaHarness final : public CudaHarness {
 public:
  RealCudaHarness() {
    device_ = open_cuda_device(0);
    memory_ = device_->allocate_pinned(kFlags * sizeof(std::uint32_t));
    std::memset(memory_, 0, kFlags * sizeof(std::uint32_t));
  }
  ~RealCudaHarness() override {
    for (const auto& [stream, flag] : flags_) set(flag);
    device_.reset();  // waits for the streams, which wait for the flags
    open_cuda_device(0)->release_pinned(memory_, kFlags * sizeof(std::uint32_t));
  }
  void hold(StreamHandle stream) override {
    const std::size_t flag = used_++;
    flags_[stream] = flag;
    const auto wait = [this, flag](StreamHandle on) {
      const auto at = reinterpret_cast<cuda::DevicePtr>(memory_) + flag * sizeof(std::uint32_t);
      if (extras_.wait_value(on.get(), at, 1, 0) != 0) throw DeviceError("no wait for a value");
    };
    device_->launch(stream, {"hold", wait}, {});
  }
  void release(StreamHandle stream) override { set(flags_.at(stream)); }
  bool is_limited() const override { return false; }

 private:
  static constexpr std::size_t kFlags = 64;
  cuda::Result host_function(StreamHandle on, void (*function)(void*), void* data) override {
    return extras_.host_function(on.get(), function, data);
  }
  void set(std::size_t flag) {
    std::atomic_ref(reinterpret_cast<std::uint32_t*>(memory_)[flag]).store(1);
  }
  CudaExtras extras_;
  std::byte* memory_ = nullptr;
  std::size_t used_ = 0;
  std::map<StreamHandle, std::size_t> flags_;
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
  all.push_back({"cuda_fake", [] { return std::make_unique<FakeCudaHarness>(); }});
  if (why_no_cuda().empty())
    all.push_back({"cuda", [] { return std::make_unique<RealCudaHarness>(); }});
  return all;
}

}  // namespace segfuse::runtime
