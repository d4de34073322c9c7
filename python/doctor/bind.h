#pragma once
// The doctor's parts that watch PyTorch.

#include <nanobind/nanobind.h>

namespace segfuse::python {

void bind_doctor(nanobind::module_& m);

}  // namespace segfuse::python
