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
using Event = void*;
using MemPool = void*;
using Graph = void*;
using GraphExec = void*;
using DevicePtr = unsigned long long;

/// CUuuid
struct Uuid {
  unsigned char bytes[16] = {};
};

enum class DeviceAttribute : int {
  kMultiprocessors = 16,
  kMajor = 75,
  kMinor = 76,
  kSharedOptIn = 97,
  kVirtualMemory = 102,
};
enum class FunctionAttribute : int {
  kLocalBytes = 3,
  kMaxDynamicShared = 8,
  kLargeClusters = 14,  ///< CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
};

/// CUlaunchAttribute: the blocks of a cluster.
struct alignas(8) ClusterAttribute {
  int id = 4;  // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
  int padding = 0;
  unsigned x = 1, y = 1, z = 1;
  unsigned char rest[52] = {};
};
/// CUlaunchConfig
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  void* stream;
  ClusterAttribute* attributes;
  unsigned attribute_count;
};

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

inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kOsCallFailed = 304;
inline constexpr Result kNotReady = 600;

/// CUmemLocation: a device.
struct MemLocation {
  int type = 1;
  int id = 0;
};
/// CUmemAllocationProp: memory of one device, with no handle to export.
struct MemProperties {
  int type = 1;
  int handle_types = 0;
  MemLocation location;
  void* win32_meta_data = nullptr;
  unsigned char compression = 0;
  unsigned char rdma = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};
/// CUmemAccessDesc: reads and writes.
struct MemAccess {
  MemLocation location;
  int flags = 3;
};
using MemHandle = unsigned long long;
/// CUipcMemHandle
struct IpcHandle {
  char bytes[64] = {};
};
inline constexpr unsigned kReachLazily = 1;    // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
inline constexpr Result kReachedBefore = 704;  // CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostPortable = 1;
inline constexpr int kCaptureOfThisThread = 1;  // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
inline constexpr int kCaptureRelaxed = 2;       // CU_STREAM_CAPTURE_MODE_RELAXED
/// CU_STREAM_LEGACY: the default stream, named on purpose.
inline constexpr std::uintptr_t kLegacyStream = 1;
inline constexpr int kGranularityMinimum = 0;

/// Entry points of libcuda.so.1.
struct Driver {
  Result (*init)(unsigned);
  Result (*driver_version)(int*);
  Result (*device_count)(int*);
  Result (*device_get)(Device*, int);
  Result (*device_name)(char*, int, Device);
  Result (*device_uuid)(Uuid*, Device);
  Result (*device_attribute)(int*, int, Device);
  Result (*primary_context)(Context*, Device);
  Result (*context_push)(Context);
  Result (*context_pop)(Context*);
  Result (*module_load)(Module*, const void*);
  Result (*module_unload)(Module);
  Result (*module_function)(Function*, Module, const char*);
  Result (*function_set)(Function, int, int);
  Result (*function_get)(int*, int, Function);
  Result (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   Stream, void**, void**);
  Result (*launch_together)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, Stream, void**);
  Result (*launch_extended)(const LaunchConfig*, Function, void**, void**);
  Result (*active_clusters)(int*, Function, const LaunchConfig*);
  Result (*pool_create)(MemPool*, const MemPoolProps*);
  Result (*pool_set)(MemPool, int, void*);
  Result (*pool_allocate)(DevicePtr*, std::size_t, MemPool, Stream);
  Result (*free_async)(DevicePtr, Stream);
  Result (*memset_async)(DevicePtr, unsigned char, std::size_t, Stream);
  Result (*copy)(DevicePtr, DevicePtr, std::size_t, Stream);
  Result (*stream_create)(Stream*, unsigned);
  Result (*stream_destroy)(Stream);
  Result (*stream_synchronize)(Stream);
  Result (*stream_query)(Stream);
  Result (*stream_id)(Stream, unsigned long long*);
  Result (*stream_is_capturing)(Stream, int*);
  Result (*context_synchronize)();
  Result (*stream_wait)(Stream, Event, unsigned);
  Result (*event_create)(Event*, unsigned);
  Result (*event_destroy)(Event);
  Result (*event_record)(Event, Stream);
  Result (*event_query)(Event);
  Result (*event_synchronize)(Event);
  Result (*capture_mode)(int*);
  Result (*begin_capture)(Stream, int);
  Result (*end_capture)(Stream, Graph*);
  Result (*graph_instantiate)(GraphExec*, Graph, unsigned long long);
  Result (*graph_launch)(GraphExec, Stream);
  Result (*graph_destroy)(Graph);
  Result (*graph_exec_destroy)(GraphExec);
  Result (*granularity)(std::size_t*, const MemProperties*, int);
  Result (*address_reserve)(DevicePtr*, std::size_t, std::size_t, DevicePtr, unsigned long long);
  Result (*address_free)(DevicePtr, std::size_t);
  Result (*mem_create)(MemHandle*, std::size_t, const MemProperties*, unsigned long long);
  Result (*mem_release)(MemHandle);
  Result (*mem_map)(DevicePtr, std::size_t, std::size_t, MemHandle, unsigned long long);
  Result (*mem_set_access)(DevicePtr, std::size_t, const MemAccess*, std::size_t);
  Result (*mem_unmap)(DevicePtr, std::size_t);
  Result (*mem_info)(std::size_t*, std::size_t*);
  Result (*mem_allocate)(DevicePtr*, std::size_t);
  Result (*mem_free)(DevicePtr);
  Result (*memset_now)(DevicePtr, unsigned char, std::size_t);
  Result (*reach_context)(Context, unsigned);
  Result (*share_memory)(IpcHandle*, DevicePtr);
  Result (*open_shared)(DevicePtr*, IpcHandle, unsigned);
  Result (*close_shared)(DevicePtr);
  Result (*host_allocate)(void**, std::size_t, unsigned);
  Result (*host_free)(void*);
  Result (*host_register)(void*, std::size_t, unsigned);
  Result (*host_unregister)(void*);
  Result (*error_name)(Result, const char**);
  Result (*error_string)(Result, const char**);
};

/// The driver, opened and initialised at the first call. Throws DeviceError.
const Driver& driver();
/// Throws DeviceError "NAME: what the driver says" unless `result` is success.
void check(Result result, const char* what);
void check(const Driver& driver, Result result, const char* what);

/// Makes a context current for a scope, whatever was current before.
class CurrentContext {
 public:
  explicit CurrentContext(Context context) : CurrentContext(driver(), context) {}
  CurrentContext(const Driver& driver, Context context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const Driver& driver_;
};

/// Lets the calling thread do for a scope what is forbidden while any thread captures a stream,
/// because it may wait for the device: these calls concern no stream that is captured.
class BesideCaptures {
 public:
  explicit BesideCaptures(const Driver& driver) : driver_(driver) { exchange(); }
  ~BesideCaptures() { exchange(); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  void exchange() {
    if (driver_.capture_mode != nullptr) driver_.capture_mode(&mode_);
  }
  const Driver& driver_;
  int mode_ = kCaptureRelaxed;
};

}  // namespace segfuse::runtime::cuda
