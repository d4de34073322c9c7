#pragma once
// A Gpu in host memory that runs the semi-CRF's kernels as they are written: every device thread is
// a fiber, blocks run one after the other. For tests on machines without a GPU; the shapes of the
// passes that it knows are listed in gpu_emulator.cpp.

#include <memory>

#include "runtime/gpu.h"

namespace segfuse::testing {

std::shared_ptr<runtime::Gpu> make_gpu_emulator(int multiprocessors = 1);
/// Bytes that are allocated and not released.
std::size_t bytes_in_use(const runtime::Gpu& emulator);

}  // namespace segfuse::testing
