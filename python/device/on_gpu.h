#pragma once
// Programs on one GPU, as Python's objects hold them.

#include <nanobind/nanobind.h>

#include <vector>

#include "segfuse/device_function.h"

namespace segfuse::python {

namespace nb = nanobind;

/// Inputs of certain shapes, and what comes out for them.
struct Prepared {
  std::vector<Shape> inputs;
  std::vector<Shape> outputs;
};

/// The function inside a segfuse._native.DeviceProgram.
DeviceFunction& function_of(nb::handle program);

}  // namespace segfuse::python
