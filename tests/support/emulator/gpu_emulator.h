#pragma once
// A device in host memory that runs the semi-CRF's kernels as they are written: every device thread
// is a fiber, blocks run one after the other. For tests on machines without a GPU; the shapes of
// the passes that it knows are listed in gpu_emulator.cpp.

#include <memory>

#include "runtime/memory/stream_memory.h"

namespace segfuse::testing {

/// Work is done when it is enqueued, on any stream.
runtime::DeviceAccess make_gpu_emulator(int multiprocessors = 1);
/// Its kernels alone.
std::shared_ptr<runtime::KernelLoader> make_emulated_kernels(int multiprocessors);
/// Bytes that are allocated and not released.
std::size_t bytes_in_use(const runtime::DeviceAccess& emulator);

}  // namespace segfuse::testing
