// segfuse/rmm.h with the RMM that is there, over a heap that writes down what it is asked.

#include <segfuse/rmm.h>

#include <cstdio>
#include <string>
#if __has_include(<rmm/mr/device/per_device_resource.hpp>)
#include <rmm/mr/device/per_device_resource.hpp>
#else
#include <rmm/mr/per_device_resource.hpp>
#endif

namespace {

std::string calls;
std::string failure;
char storage[1024];
int wrong = 0;

void note(const char* what, int device, std::size_t bytes, const void* stream) {
  char text[64];
  std::snprintf(text, sizeof text, "%s %d %zu %zu; ", what, device, bytes,
                reinterpret_cast<std::size_t>(stream));
  calls += text;
}

void expect(const std::string& found, const std::string& expected) {
  if (found.find(expected) == 0) return;
  ++wrong;
  std::printf("found '%s', expected '%s'\n", found.c_str(), expected.c_str());
}

// As RMM's containers ask.
template <class Used>
void* allocate(Used& used, std::size_t bytes, cudaStream_t stream) {
  if constexpr (requires { used.allocate_async(bytes, 256, cuda::stream_ref{stream}); })
    return used.allocate_async(bytes, 256, cuda::stream_ref{stream});
  else
    return used.allocate(cuda::stream_ref{stream}, bytes, 256);
}
template <class Used>
void deallocate(Used& used, void* address, std::size_t bytes, cudaStream_t stream) {
  if constexpr (requires { used.deallocate_async(address, bytes, cuda::stream_ref{stream}); })
    used.deallocate_async(address, bytes, 256, cuda::stream_ref{stream});
  else
    used.deallocate(cuda::stream_ref{stream}, address, bytes, 256);
}

template <class Used>
std::string refusal(Used& used, cudaStream_t stream) {
  try {
    allocate(used, 256, stream);
  } catch (const rmm::out_of_memory& error) {
    return std::string("out of memory, ") + error.what();
  } catch (const rmm::bad_alloc& error) {
    return std::string("failed, ") + error.what();
  }
  return "nothing was refused";
}

template <class Resource>
void install(Resource& resource) {
  const rmm::cuda_device_id device{resource.device()};
  if constexpr (requires { resource.is_equal(resource); })
    rmm::mr::set_per_device_resource(device, &resource);
  else
    rmm::mr::set_per_device_resource(device, resource);
}

}  // namespace

// What libsegfuse has.
namespace segfuse::tensor_memory {
void* allocate(int device, std::size_t bytes, void* stream) {
  note("allocate", device, bytes, stream);
  if (!failure.empty()) throw DeviceError(failure);
  return storage;
}
void release(int device, void* address) noexcept {
  note("release", device, address == storage, nullptr);
}
void record_stream(const void* address, void* stream) {
  note("use", 0, address == storage, stream);
  if (!failure.empty()) throw UsageError(failure);
}
}  // namespace segfuse::tensor_memory

int main() {
  segfuse::RmmResource resource(1);
  const auto stream = reinterpret_cast<cudaStream_t>(7);
  rmm::device_async_resource_ref used{resource};
  deallocate(used, allocate(used, 512, stream), 512, stream);
  expect(calls, "allocate 1 512 7; use 0 1 7; release 1 1 0; ");

  failure = "CUDA out of memory. 3 GiB are held";
  expect(refusal(used, stream), "out of memory, ");
  if (refusal(used, stream).find(failure) == std::string::npos)
    expect(refusal(used, stream), failure);
  failure = "the device was lost";
  expect(refusal(used, stream), "failed, ");
  if (refusal(used, stream).find(failure) == std::string::npos)
    expect(refusal(used, stream), failure);
  // A free never throws.
  calls.clear();
  deallocate(used, storage, 512, stream);
  expect(calls, "use 0 1 7; release 1 1 0; ");
  failure.clear();
  if (refusal(used, cudaStreamPerThread).find("per-thread default stream") == std::string::npos)
    expect(refusal(used, cudaStreamPerThread), "failed, a per-thread default stream");

  if (!(resource == segfuse::RmmResource(1)) || resource == segfuse::RmmResource(0))
    expect("unequal", "equal for one device");
  install(resource);
  calls.clear();
  allocate(used, 256, stream);
  expect(calls, "allocate 1 256 7; ");
  std::printf("%d wrong\n", wrong);
  return wrong != 0 ? 1 : 0;
}
