#pragma once
// Kernels in host memory for whole programs: those that are printed as they are needed are compiled
// by the host's compiler and run thread by thread, those of the semi-CRF by the emulator. With it a
// simulated device as an accelerator.

#include <memory>

#include "engine/device/accelerator.h"
#include "support/sim/sim_device.h"

namespace segfuse::testing {

std::shared_ptr<runtime::KernelLoader> make_program_kernels();

struct SimAccelerator {
  std::shared_ptr<engine::Accelerator> accelerator;
  runtime::sim::SimDevice* device = nullptr;  ///< the accelerator's
};
/// Everything is done as soon as it is enqueued unless a schedule is given.
SimAccelerator make_sim_accelerator(
    engine::AcceleratorOptions options = {},
    std::shared_ptr<runtime::sim::Schedule> schedule = runtime::sim::eager());

}  // namespace segfuse::testing
