#pragma once
// segfuse.torch.allocator: the memory of segfuse/memory.h for PyTorch.

#include <nanobind/nanobind.h>

namespace segfuse::python {

void bind_memory(nanobind::module_& m);

}  // namespace segfuse::python
