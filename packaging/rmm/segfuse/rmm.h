#pragma once
// Device memory of segfuse's heap as a memory resource of RMM. For programs that have RMM and its
// CUDA headers; segfuse itself needs neither. Compiled with RMM 25.10, 26.2, 26.4 and 26.10.
//
//   segfuse::RmmResource memory;                       // of device 0
//   rmm::mr::set_current_device_resource(memory);      // up to RMM 26.4: &memory, which stays alive
//
// Memory that is freed for a stream is handed out again in the order of that stream, to other
// streams by waits that the heap adds (docs/memory.md). All objects for one device share its heap.
// Alignment is 256 bytes. Any thread.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <rmm/detail/error.hpp>
#include <string_view>

#include "segfuse/error.h"
#include "segfuse/memory.h"

#if __has_include(<rmm/mr/device_memory_resource.hpp>)
#include <rmm/mr/device_memory_resource.hpp>
#define SEGFUSE_RMM_HAS_BASE
#elif __has_include(<rmm/mr/device/device_memory_resource.hpp>)
#include <rmm/mr/device/device_memory_resource.hpp>
#define SEGFUSE_RMM_HAS_BASE
#else
#include <cuda/memory_resource>
#include <cuda/stream>
#include <rmm/error.hpp>
#endif

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#error "segfuse/rmm.h: null is the legacy default stream here; compile without per-thread streams"
#endif

namespace segfuse {

/// Throws rmm::out_of_memory if there is no memory, rmm::bad_alloc if the device fails, and
/// UsageError if the program has work on more than 40 streams.
class RmmResource final
#ifdef SEGFUSE_RMM_HAS_BASE
    : public rmm::mr::device_memory_resource
#endif
{
 public:
  explicit RmmResource(int device = 0) : device_(device) {}
  int device() const noexcept { return device_; }

#ifdef SEGFUSE_RMM_HAS_BASE
 private:
  void* do_allocate(std::size_t bytes, rmm::cuda_stream_view stream) override {
    return allocate_on(stream.value(), bytes);
  }
  void do_deallocate(void* address, std::size_t, rmm::cuda_stream_view stream) noexcept override {
    release_on(stream.value(), address);
  }
  bool do_is_equal(const rmm::mr::device_memory_resource& other) const noexcept override {
    const auto* const same = dynamic_cast<const RmmResource*>(&other);
    return same != nullptr && same->device_ == device_;
  }
#else
  void* allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = kAlignment) {
    check_alignment(alignment);
    return allocate_on(stream.get(), bytes);
  }
  void deallocate(cuda::stream_ref stream, void* address, std::size_t /*bytes*/,
                  std::size_t /*alignment*/ = kAlignment) noexcept {
    release_on(stream.get(), address);
  }
  /// For all streams: the host waits until the memory's former uses are over.
  void* allocate_sync(std::size_t bytes, std::size_t alignment = kAlignment) {
    check_alignment(alignment);
    void* const address = allocate_on(nullptr, bytes);
    if (cudaStreamSynchronize(nullptr) == cudaSuccess) return address;
    tensor_memory::release(device_, address);
    throw rmm::bad_alloc("segfuse: the device failed while an allocation waited for it");
  }
  /// All work with the memory is over.
  void deallocate_sync(void* address, std::size_t /*bytes*/,
                       std::size_t /*alignment*/ = kAlignment) noexcept {
    tensor_memory::release(device_, address);
  }
  friend bool operator==(const RmmResource& a, const RmmResource& b) noexcept {
    return a.device_ == b.device_;
  }
  friend void get_property(const RmmResource&, cuda::mr::device_accessible) noexcept {}

 private:
  static constexpr std::size_t kAlignment = 256;
  static void check_alignment(std::size_t alignment) {
    if (alignment > kAlignment || (alignment & (alignment - 1)) != 0)
      throw rmm::bad_alloc("segfuse: the alignment is not a power of two of at most 256");
  }
#endif

  void* allocate_on(cudaStream_t stream, std::size_t bytes) const {
    if (stream == cudaStreamPerThread)
      throw rmm::bad_alloc(
          "segfuse: the stream is the per-thread default stream, whose handle stands for another "
          "stream in each thread; create a stream and use it");
    try {
      return tensor_memory::allocate(device_, bytes, stream);
    } catch (const DeviceError& error) {
      if (std::string_view(error.what()).starts_with("CUDA out of memory."))
        throw rmm::out_of_memory(error.what());
      throw rmm::bad_alloc(error.what());
    }
  }
  void release_on(cudaStream_t stream, void* address) const noexcept {
    try {
      tensor_memory::record_stream(address, stream);
    } catch (const std::exception&) {
      // A stream too many: the heap hands out no memory from now on.
    }
    tensor_memory::release(device_, address);
  }

  int device_;
};

#ifndef SEGFUSE_RMM_HAS_BASE
static_assert(cuda::mr::resource_with<RmmResource, cuda::mr::device_accessible>);
#endif
#undef SEGFUSE_RMM_HAS_BASE

}  // namespace segfuse
