#include "engines.h"

#include <fmt/core.h>
#include <pthread.h>

#include "segfuse/error.h"

namespace segfuse::python {
namespace {

CpuEngine* current = nullptr;

/// The parent's engine is left alone: its mutex may be held and its workers do not exist here.
void renew_in_child() {
  const int threads = current->threads_wanted();
  current = new CpuEngine;
  current->set_threads(threads);
}

}  // namespace

int generation() {
  static std::atomic<int> forks{0};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  return registered == 0 ? forks.load() : 0;
}

CpuEngine& CpuEngine::instance() {
  static const bool ready = [] {
    current = new CpuEngine;
    pthread_atfork(nullptr, nullptr, renew_in_child);
    return true;
  }();
  static_cast<void>(ready);
  return *current;
}

void CpuEngine::set_threads(int threads) {
  if (threads < 0)
    throw UsageError(
        fmt::format("semicrf: found {} threads; expected 1 or more, or 0 for all cores", threads));
  const std::lock_guard lock(mutex_);
  if (threads == threads_) return;
  threads_ = threads;
  engines_ = Engines();
}

int CpuEngine::threads() {
  const std::lock_guard lock(mutex_);
  return Context().with(options::kThreads, std::int64_t{threads_}).threads();
}

CudaEngines& CudaEngines::instance() {
  // Never destroyed: at the end of a process the driver may end before us.
  static auto* const engines = new CudaEngines;
  return *engines;
}

}  // namespace segfuse::python
