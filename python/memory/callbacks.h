#pragma once
// The functions that torch.cuda.memory.CUDAPluggableAllocator calls. Streams are cudaStream_t. They
// throw exceptions of C++, of which PyTorch makes a RuntimeError with the same text; where memory
// is out, its own exception, of which it makes a torch.OutOfMemoryError.

#include <cstddef>
#include <functional>

#include "segfuse/memory.h"

#define SEGFUSE_TORCH_CALLBACK extern "C" __attribute__((visibility("default")))

/// Null only for 0 bytes.
SEGFUSE_TORCH_CALLBACK void* segfuse_torch_allocate(std::size_t bytes, int device, void* stream);
SEGFUSE_TORCH_CALLBACK void segfuse_torch_release(void* address, std::size_t bytes, int device,
                                                  void* stream);
SEGFUSE_TORCH_CALLBACK void segfuse_torch_record_stream(void* address, void* stream);
SEGFUSE_TORCH_CALLBACK void segfuse_torch_empty_cache();
SEGFUSE_TORCH_CALLBACK void segfuse_torch_memory_fraction(double part, int device);

/// Throws c10::OutOfMemoryError of the PyTorch in this process; returns if there is none.
SEGFUSE_TORCH_CALLBACK void segfuse_torch_out_of_memory(const char* message);

namespace segfuse::python {

/// Of a graph that is captured. `filter` tells whether a stream is; the device is asked instead,
/// because a filter may outlive its graph.
void segfuse_torch_begin_pool(int device, tensor_memory::PoolId pool,
                              std::function<bool(void*)> filter);
void segfuse_torch_end_pool(int device, tensor_memory::PoolId pool);
void segfuse_torch_release_pool(int device, tensor_memory::PoolId pool);

}  // namespace segfuse::python
