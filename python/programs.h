#pragma once
// Programs over tensors: how they are built, and how the caller's arrays go through them, on the
// host (programs.cpp) or on a GPU (device/on_gpu.cpp).

#include <nanobind/nanobind.h>

#include <functional>
#include <span>
#include <vector>

#include "arrays.h"
#include "segfuse/program.h"

namespace segfuse::python {

/// The array itself where it is contiguous, else a copy. What a program overwrites must be the
/// array itself. bfloat16 may come as uint16 from NumPy, which has no bfloat16 of its own.
Tensor to_tensor(const ValueInfo& wanted, const Input& array, bool overwritten);
/// A NumPy array that owns the tensor. NumPy has no bfloat16 of its own: such a result is uint16.
nb::object to_array(Tensor tensor);
/// The program inside a segfuse._native.Program.
const Program& program_of(nb::handle compiled);
/// Runs it on tensors of the host, from any thread, without the GIL. It keeps the object for ever.
using HostCall = std::function<std::vector<Tensor>(std::span<const Tensor>)>;
HostCall host_call_of(nb::handle compiled);
/// How it runs.
const RunOptions& options_of(nb::handle compiled);

/// Sizes, values, builders, operations and gradients.
void bind_fusions(nb::module_& m);
/// Programs that are ready to run.
void bind_programs(nb::module_& m);
void bind_device_programs(nb::module_& m);
/// Calls of them with one call from Python.
void bind_quick_calls(nb::module_& m);

}  // namespace segfuse::python
