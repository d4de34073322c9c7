#pragma once
// Programs over tensors: how they are built, and how the caller's arrays go through them.

#include <nanobind/nanobind.h>

namespace segfuse::python {

/// Sizes, values, builders, operations and gradients.
void bind_fusions(nanobind::module_& m);
/// Programs that are ready to run.
void bind_programs(nanobind::module_& m);

}  // namespace segfuse::python
