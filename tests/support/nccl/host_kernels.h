#pragma once
// The kernels of sums over ranks, compiled for the host: their text is the device's.

#include <functional>
#include <memory>

#include "runtime/kernels.h"

namespace segfuse::test {

/// Runs a kernel where `enqueue` puts it; null: at once, which is right where work is run when
/// its stream comes to it.
std::shared_ptr<runtime::KernelLoader> make_host_kernels(
    std::function<void(void* stream, std::function<void()> work)> enqueue = {});

}  // namespace segfuse::test
