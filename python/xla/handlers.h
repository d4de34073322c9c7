#pragma once
// The CRF as custom calls of XLA on the CPU: inside jit, without a copy and without Python.

#include <nanobind/nanobind.h>

namespace segfuse::python::xla {

/// {name: capsule of a handler}. segfuse.jax registers them, and has their operands.
nanobind::dict handlers();

}  // namespace segfuse::python::xla
