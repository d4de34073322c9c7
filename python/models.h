#pragma once
// Trained models, and their training.

#include <nanobind/nanobind.h>

namespace segfuse::python {

namespace nb = nanobind;

void bind_models(nb::module_& m);

}  // namespace segfuse::python
