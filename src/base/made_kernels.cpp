#include "base/made_kernels.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace segfuse {
namespace {

using Listen = std::function<void(const MadeKernels&)>;

struct Listeners {
  std::mutex mutex;
  std::vector<const Listen*> all;
  std::atomic<int> count = 0;
};

Listeners& listeners() {
  static Listeners state;
  return state;
}

}  // namespace

KernelListener::KernelListener(Listen listen) : listen_(std::move(listen)) {
  Listeners& state = listeners();
  const std::lock_guard lock(state.mutex);
  state.all.push_back(&listen_);
  ++state.count;
}

KernelListener::~KernelListener() {
  Listeners& state = listeners();
  const std::lock_guard lock(state.mutex);
  std::erase(state.all, &listen_);
  --state.count;
}

bool kernels_are_heard() noexcept { return listeners().count > 0; }

void tell_kernels(const MadeKernels& made) {
  Listeners& state = listeners();
  const std::lock_guard lock(state.mutex);
  for (const Listen* listen : state.all) (*listen)(made);
}

}  // namespace segfuse
