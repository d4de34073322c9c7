#include "memory/callbacks.h"

#include "segfuse/error.h"
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

const char* const kNoPools =
    "segfuse.torch.allocator: a CUDA graph or a MemPool asks for a pool of its own, expected "
    "neither, because a graph keeps addresses that are handed out again; do not enable the "
    "allocator in a program that captures graphs or uses pools";

void segfuse_torch_begin_pool(int /*device*/,
                              std::pair<unsigned long long, unsigned long long> /*pool*/,
                              std::function<bool(void*)> /*filter*/) {
  throw UsageError(kNoPools);
}

}  // namespace segfuse::python
