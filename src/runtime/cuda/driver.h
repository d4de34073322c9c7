#pragma once
// The CUDA driver, opened at run time: no CUDA header or library is needed to build. Only what is
// used here; the signatures are those of the CUDA driver API documentation.

#include <cstddef>
#include <cstdint>

namespace segfuse::runtime::cuda {

using Result = int;  // CUresult
using Device = int;
using Context = void*;
using Module = void*;
using Function = void*;
using Stream = void*;
using MemPool = void*;
using DevicePtr = unsigned long long;

enum class DeviceAttribute : int {
  kMultiprocessors = 16,
  kMajor = 75,
  kMinor = 76,
  kMemoryPools = 115,
};
enum class FunctionAttribute : int { kMaxDynamicShared = 8 };

/// CUmemPoolProps: pinned allocation, no handle to export, on one device.
struct MemPoolProps {
  int alloc_type = 1;
  int handle_types = 0;
  int location_type = 1;
  int location_id = 0;
  void* win32_security_attributes = nullptr;
  std::size_t max_size = 0;
  unsigned short usage = 0;
  unsigned char reserved[54] = {};
};
inline constexpr int kReleaseThreshold = 4;  // CU_MEMPOOL_ATTR_RELEASE_THRESHOLD

/// Entry points of libcuda.so.1.
struct Driver {
  Result (*init)(unsigned);
  Result (*driver_version)(int*);
  Result (*device_count)(int*);
  Result (*device_get)(Device*, int);
  Result (*device_name)(char*, int, Device);
  Result (*device_attribute)(int*, int, Device);
  Result (*primary_context)(Context*, Device);
  Result (*context_push)(Context);
  Result (*context_pop)(Context*);
  Result (*module_load)(Module*, const void*);
  Result (*module_unload)(Module);
  Result (*module_function)(Function*, Module, const char*);
  Result (*function_set)(Function, int, int);
  Result (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   Stream, void**, void**);
  Result (*pool_create)(MemPool*, const MemPoolProps*);
  Result (*pool_set)(MemPool, int, void*);
  Result (*pool_allocate)(DevicePtr*, std::size_t, MemPool, Stream);
  Result (*free_async)(DevicePtr, Stream);
  Result (*memset_async)(DevicePtr, unsigned char, std::size_t, Stream);
  Result (*copy_to_host)(void*, DevicePtr, std::size_t, Stream);
  Result (*copy_to_device)(DevicePtr, const void*, std::size_t, Stream);
  Result (*stream_synchronize)(Stream);
  Result (*error_name)(Result, const char**);
  Result (*error_string)(Result, const char**);
};

/// The driver, opened and initialised at the first call. Throws DeviceError.
const Driver& driver();
/// Throws DeviceError "NAME: what the driver says" unless `result` is success.
void check(Result result, const char* what);

}  // namespace segfuse::runtime::cuda
