#pragma once
// The CRF and compiled programs as custom calls of XLA: inside jit, without Python.

#include <nanobind/nanobind.h>

namespace segfuse::python::xla {

/// Those of the CRF for the CPU, {name: capsule of a handler}, without a copy. segfuse.jax
/// registers them, and has their operands.
nanobind::dict handlers();
/// The same for CUDA devices, in the order of XLA's stream. Each call waits for its results,
/// because only then is it known whether the scores and labels were valid.
nanobind::dict device_handlers();

/// All of them, and calls of programs.
void bind(nanobind::module_& m);

}  // namespace segfuse::python::xla
