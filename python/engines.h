#pragma once
// The engines that calls run on.

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "segfuse/semicrf.h"
#include "segfuse/semicrf_cuda.h"
#include "segfuse/semicrf_tools.h"

namespace segfuse::python {

/// How many forks lie between the first process that asked and this one.
int generation();

/// The engines of the CPU, made at their first use, one call at a time.
class CpuEngine {
 public:
  /// The process's engine. A child made by fork starts with a new one: threads are not inherited.
  static CpuEngine& instance();

  void set_threads(int threads);
  int threads();
  /// As it was set, 0 for all cores. Does not wait for a call that runs.
  int threads_wanted() const { return threads_; }

  /// Calls call(engine); Kind is semicrf::Engine or semicrf::Inference.
  template <class Kind, class Call>
  void run(const Call& call) {
    const std::lock_guard lock(mutex_);
    auto& engine = std::get<std::unique_ptr<Kind>>(engines_);
    if (engine == nullptr) engine = std::make_unique<Kind>(threads_);
    call(*engine);
  }

 private:
  using Engines = std::tuple<std::unique_ptr<semicrf::Engine>, std::unique_ptr<semicrf::Inference>>;

  std::mutex mutex_;
  Engines engines_;
  std::atomic<int> threads_ = 0;
};

/// What a call gets on a CUDA device.
struct OnDevice {
  semicrf::CudaEngine& engine;
  void* stream;
};

/// One engine for each CUDA device, made at its first use.
class CudaEngines {
 public:
  static CudaEngines& instance();

  template <class Call>
  void run(int device, void* stream, const Call& call) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<semicrf::CudaEngine>& engine = engines_[device];
    if (engine == nullptr)
      engine = std::make_unique<semicrf::CudaEngine>(
          device, semicrf::CudaOptions{.context = Context::process_default()});
    OnDevice on{*engine, stream};
    call(on);
  }

 private:
  std::mutex mutex_;
  std::map<int, std::unique_ptr<semicrf::CudaEngine>> engines_;
};

}  // namespace segfuse::python
