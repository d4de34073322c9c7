#include "runtime/cuda/driver.h"

#include <fmt/core.h>

#include "base/os/shared_library.h"
#include "segfuse/error.h"

namespace segfuse::runtime::cuda {
namespace {

Driver open_driver() {
  static const auto& library =
      *new SharedLibrary(SharedLibrary::open_first({"libcuda.so.1", "libcuda.so"}));
  if (!library)
    throw DeviceError(fmt::format(
        "CUDA: the driver library libcuda.so.1 cannot be opened ({}); install the NVIDIA driver or "
        "use the CPU",
        library.error()));
  Driver d{};
  library.load("cuInit", d.init);
  library.load("cuDriverGetVersion", d.driver_version);
  library.load("cuDeviceGetCount", d.device_count);
  library.load("cuDeviceGet", d.device_get);
  library.load("cuDeviceGetName", d.device_name);
  library.load("cuDeviceGetUuid_v2", d.device_uuid);
  library.load("cuDeviceGetAttribute", d.device_attribute);
  library.load("cuDevicePrimaryCtxRetain", d.primary_context);
  library.load("cuCtxPushCurrent_v2", d.context_push);
  library.load("cuCtxPopCurrent_v2", d.context_pop);
  library.load("cuModuleLoadData", d.module_load);
  library.load("cuModuleUnload", d.module_unload);
  library.load("cuModuleGetFunction", d.module_function);
  library.load("cuFuncSetAttribute", d.function_set);
  library.load("cuFuncGetAttribute", d.function_get);
  library.load("cuLaunchKernel", d.launch);
  library.load("cuLaunchCooperativeKernel", d.launch_together);
  library.load("cuLaunchKernelEx", d.launch_extended);
  library.load("cuOccupancyMaxActiveClusters", d.active_clusters);
  library.load("cuMemPoolCreate", d.pool_create);
  library.load("cuMemPoolSetAttribute", d.pool_set);
  library.load("cuMemAllocFromPoolAsync", d.pool_allocate);
  library.load("cuMemFreeAsync", d.free_async);
  library.load("cuMemsetD8Async", d.memset_async);
  library.load("cuMemcpyAsync", d.copy);
  library.load("cuStreamCreate", d.stream_create);
  library.load("cuStreamDestroy_v2", d.stream_destroy);
  library.load("cuStreamSynchronize", d.stream_synchronize);
  library.load("cuStreamQuery", d.stream_query);
  library.load("cuStreamGetId", d.stream_id);
  library.load("cuStreamIsCapturing", d.stream_is_capturing);
  library.load("cuCtxSynchronize", d.context_synchronize);
  library.load("cuThreadExchangeStreamCaptureMode", d.capture_mode);
  library.load("cuStreamBeginCapture_v2", d.begin_capture);
  library.load("cuStreamEndCapture", d.end_capture);
  library.load("cuGraphInstantiateWithFlags", d.graph_instantiate);
  library.load("cuGraphLaunch", d.graph_launch);
  library.load("cuGraphDestroy", d.graph_destroy);
  library.load("cuGraphExecDestroy", d.graph_exec_destroy);
  library.load("cuStreamWaitEvent", d.stream_wait);
  library.load("cuEventCreate", d.event_create);
  library.load("cuEventDestroy_v2", d.event_destroy);
  library.load("cuEventRecord", d.event_record);
  library.load("cuEventQuery", d.event_query);
  library.load("cuEventSynchronize", d.event_synchronize);
  library.load("cuMemGetAllocationGranularity", d.granularity);
  library.load("cuMemAddressReserve", d.address_reserve);
  library.load("cuMemAddressFree", d.address_free);
  library.load("cuMemCreate", d.mem_create);
  library.load("cuMemRelease", d.mem_release);
  library.load("cuMemMap", d.mem_map);
  library.load("cuMemSetAccess", d.mem_set_access);
  library.load("cuMemUnmap", d.mem_unmap);
  library.load("cuMemGetInfo_v2", d.mem_info);
  library.load("cuMemAlloc_v2", d.mem_allocate);
  library.load("cuMemFree_v2", d.mem_free);
  library.load("cuMemsetD8_v2", d.memset_now);
  library.load("cuCtxEnablePeerAccess", d.reach_context);
  library.load("cuIpcGetMemHandle", d.share_memory);
  library.load("cuIpcOpenMemHandle_v2", d.open_shared);
  library.load("cuIpcCloseMemHandle", d.close_shared);
  library.load("cuMemHostAlloc", d.host_allocate);
  library.load("cuMemFreeHost", d.host_free);
  library.load("cuMemHostRegister_v2", d.host_register);
  library.load("cuMemHostUnregister", d.host_unregister);
  library.load("cuGetErrorName", d.error_name);
  library.load("cuGetErrorString", d.error_string);
  if (const Result result = d.init(0); result != 0) {
    const char* text = "unknown error";
    d.error_string(result, &text);
    throw DeviceError(fmt::format("CUDA: the driver does not start: {}", text));
  }
  return d;
}

}  // namespace

const Driver& driver() {
  static const Driver opened = open_driver();
  return opened;
}

void check(const Driver& driver, Result result, const char* what) {
  if (result == 0) return;
  const char* name = "unknown";
  const char* text = "no description";
  driver.error_name(result, &name);
  driver.error_string(result, &text);
  throw DeviceError(fmt::format("CUDA: {} failed: {} ({})", what, text, name));
}

void check(Result result, const char* what) { check(driver(), result, what); }

CurrentContext::CurrentContext(const Driver& driver, Context context) : driver_(driver) {
  check(driver, driver.context_push(context), "making the context current");
}

CurrentContext::~CurrentContext() {
  Context ignored = nullptr;
  driver_.context_pop(&ignored);
}

}  // namespace segfuse::runtime::cuda
