#include "memory/callbacks.h"

#include "segfuse/memory.h"

namespace memory = segfuse::tensor_memory;

void* segfuse_torch_allocate(std::size_t bytes, int device, void* stream) {
  return memory::allocate(device, bytes, stream);
}

void segfuse_torch_release(void* address, std::size_t /*bytes*/, int device, void* /*stream*/) {
  memory::release(device, address);
}

void segfuse_torch_record_stream(void* address, void* stream) {
  memory::record_stream(address, stream);
}

void segfuse_torch_empty_cache() { memory::trim(); }

void segfuse_torch_memory_fraction(double part, int device) { memory::set_fraction(device, part); }

namespace segfuse::python {

void segfuse_torch_begin_pool(int device, tensor_memory::PoolId pool,
                              std::function<bool(void*)> /*filter*/) {
  tensor_memory::begin_capture(device, pool);
}
void segfuse_torch_end_pool(int device, tensor_memory::PoolId /*pool*/) {
  tensor_memory::end_capture(device);
}
void segfuse_torch_release_pool(int device, tensor_memory::PoolId pool) {
  tensor_memory::release_pool(device, pool);
}

}  // namespace segfuse::python
