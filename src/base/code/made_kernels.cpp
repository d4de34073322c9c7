#include "base/code/made_kernels.h"

#include <utility>

#include "base/listeners.h"

namespace segfuse {
namespace {

Listeners<KernelListener>& listeners() {
  static auto& all = *new Listeners<KernelListener>();
  return all;
}

}  // namespace

KernelListener::KernelListener(std::function<void(const MadeKernels&)> listen)
    : listen_(std::move(listen)) {
  listeners().add(this);
}
KernelListener::~KernelListener() { listeners().remove(this); }

bool kernels_are_heard() noexcept { return listeners().any(); }

void tell_kernels(const MadeKernels& made) {
  listeners().tell([&](KernelListener& listener) { listener.listen_(made); });
}

}  // namespace segfuse
