#include <fmt/core.h>

#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "base/code/code_store.h"
#include "base/code/fnv.h"
#include "base/code/made_kernels.h"
#include "runtime/cuda/cublas_lt.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/nvrtc.h"
#include "runtime/gpu.h"
#include "runtime/memory/heap.h"
#include "runtime/timeline.h"
#include "segfuse/error.h"
#include "segfuse/version.h"

namespace segfuse::runtime {
namespace {

using cuda::check;
using cuda::CurrentContext;
using cuda::driver;

int attribute(cuda::Device device, cuda::DeviceAttribute which) {
  int value = 0;
  check(driver().device_attribute(&value, static_cast<int>(which), device), "a device query");
  return value;
}

/// Compiled programs on disk, by (source, definitions, architecture, version).
class CubinCache {
 public:
  explicit CubinCache(std::shared_ptr<const CodeStore> store) : store_(std::move(store)) {}

  std::string get(const GpuProgram& program, const std::string& architecture) const {
    std::string key = fmt::format("segfuse {} | {}\n", version(), architecture);
    for (const std::string& define : program.defines) key += define + "\n";
    key += program.source;
    if (auto kept = store_->get(program.name, kSuffix, key)) return *std::move(kept);
    std::string cubin =
        cuda::compile_cubin(program.name, program.source, program.defines, architecture).cubin;
    store_->put(program.name, kSuffix, key, cubin);
    return cubin;
  }

 private:
  static constexpr const char* kSuffix = "cubin";
  std::shared_ptr<const CodeStore> store_;
};

/// Memory for work on streams that belong to others: the heap's, but where a stream is being
/// captured. A graph bakes addresses in and is run when the heap has long handed them out again, so
/// memory then comes from the driver's pool, whose allocations become part of the graph.
class Workspaces {
 public:
  Workspaces(int ordinal, cuda::MemPool pool)
      : pool_(pool), device_(open_cuda_device(ordinal)), heap_(*device_, timeline_) {}

  void* allocate(std::size_t bytes, StreamHandle stream) {
    if (capturing(stream)) return from_pool(bytes, stream);
    const std::lock_guard lock(mutex_);
    const std::optional<StreamId> known = adopted(stream);
    if (!known) return from_pool(bytes, stream);
    Buffer buffer = heap_.allocate(bytes, *known, "workspace");
    void* const address = buffer.address();
    held_.emplace(address, std::move(buffer));
    return address;
  }

  void release(void* memory, StreamHandle stream) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = held_.find(memory);
    if (found == held_.end()) {
      driver().free_async(reinterpret_cast<cuda::DevicePtr>(memory), stream);
      return;
    }
    try {
      if (const std::optional<StreamId> known = adopted(stream)) {
        found->second.record_stream(timeline_, *known);
      } else {
        device_->synchronize(named(stream));
      }
    } catch (const std::exception&) {
      // The stream is gone; adopt() has waited for what it did.
    }
    held_.erase(found);
  }

 private:
  static StreamHandle named(StreamHandle stream) {
    return stream != nullptr ? stream : reinterpret_cast<StreamHandle>(cuda::kLegacyStream);
  }
  /// Nothing when the timeline has as many streams as it can: the driver orders those beyond.
  std::optional<StreamId> adopted(StreamHandle stream) {
    try {
      return timeline_.adopt(*device_, named(stream));
    } catch (const UsageError&) {
      return {};
    }
  }
  static bool capturing(StreamHandle stream) {
    int status = 0;
    check(driver().stream_is_capturing(stream, &status), "asking whether a stream is captured");
    return status != 0;
  }
  void* from_pool(std::size_t bytes, StreamHandle stream) {
    cuda::DevicePtr memory = 0;
    check(driver().pool_allocate(&memory, bytes, pool_, stream), "allocating device memory");
    return reinterpret_cast<void*>(memory);
  }

  cuda::MemPool pool_;
  std::unique_ptr<Device> device_;
  Timeline timeline_;
  Heap heap_;
  std::mutex mutex_;
  std::unordered_map<void*, Buffer> held_;
};

class CudaGpu final : public Gpu {
 public:
  CudaGpu(int ordinal, std::shared_ptr<const CodeStore> code) : cache_(std::move(code)) {
    check(driver().device_get(&device_, ordinal), "opening the device");
    major_ = attribute(device_, cuda::DeviceAttribute::kMajor);
    minor_ = attribute(device_, cuda::DeviceAttribute::kMinor);
    multiprocessors_ = attribute(device_, cuda::DeviceAttribute::kMultiprocessors);
    if (major_ < 8)
      throw DeviceError(fmt::format(
          "CUDA: device {} ({}) has compute capability {}.{}; segfuse needs 8.0 or newer", ordinal,
          name(), major_, minor_));
    if (attribute(device_, cuda::DeviceAttribute::kMemoryPools) == 0)
      throw DeviceError(
          fmt::format("CUDA: device {} ({}) has no stream-ordered memory; a newer driver may help",
                      ordinal, name()));
    check(driver().primary_context(&context_, device_), "opening the device's context");
    const CurrentContext current(context_);
    cuda::MemPoolProps properties;
    properties.location_id = device_;
    check(driver().pool_create(&pool_, &properties), "creating a memory pool");
    std::uint64_t keep_all = ~std::uint64_t{0};
    check(driver().pool_set(pool_, cuda::kReleaseThreshold, &keep_all), "setting up a memory pool");
    workspaces_ = std::make_unique<Workspaces>(ordinal, pool_);
  }

  std::string name() const override {
    char text[256] = {};
    driver().device_name(text, sizeof text - 1, device_);
    return text;
  }
  int multiprocessors() const override { return multiprocessors_; }
  bool fast_double() const override {
    return (major_ == 8 || major_ == 9 || major_ == 10) && minor_ == 0;
  }

  GpuKernel kernel(const GpuProgram& program, const std::string& entry) override {
    std::string key = fmt::format("{} {:x}", program.name, fnv1a(program.source));
    for (const std::string& define : program.defines) key += " " + define;
    const CurrentContext current(context_);
    GpuKernel found;
    check(driver().module_function(&found.handle, module_of(key, program), entry.c_str()),
          "finding a kernel");
    return found;
  }

  std::size_t local_bytes(GpuKernel kernel) override {
    const CurrentContext current(context_);
    int bytes = 0;
    check(driver().function_get(&bytes, static_cast<int>(cuda::FunctionAttribute::kLocalBytes),
                                kernel.handle),
          "asking for a kernel's memory");
    return static_cast<std::size_t>(bytes);
  }

  void launch(GpuKernel kernel, Extent3 grid, Extent3 block, std::size_t shared_bytes,
              const void* argument, std::size_t size, StreamHandle stream) override {
    static_cast<void>(size);
    const CurrentContext current(context_);
    ask_for_shared(kernel, shared_bytes);
    void* arguments[] = {const_cast<void*>(argument)};
    check(driver().launch(kernel.handle, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                          static_cast<unsigned>(shared_bytes), stream, arguments, nullptr),
          "launching a kernel");
  }
  void launch_together(GpuKernel kernel, Extent3 grid, Extent3 block, std::size_t shared_bytes,
                       const void* argument, std::size_t size, StreamHandle stream) override {
    static_cast<void>(size);
    const CurrentContext current(context_);
    ask_for_shared(kernel, shared_bytes);
    void* arguments[] = {const_cast<void*>(argument)};
    check(driver().launch_together(kernel.handle, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                   static_cast<unsigned>(shared_bytes), stream, arguments),
          "launching a kernel whose blocks wait for each other");
  }

  void* allocate(std::size_t bytes, StreamHandle stream) override {
    const CurrentContext current(context_);
    return workspaces_->allocate(bytes, stream);
  }
  void release(void* memory, StreamHandle stream) noexcept override {
    driver().context_push(context_);
    workspaces_->release(memory, stream);
    cuda::Context ignored = nullptr;
    driver().context_pop(&ignored);
  }
  void fill(void* memory, std::uint8_t value, std::size_t bytes, StreamHandle stream) override {
    const CurrentContext current(context_);
    check(driver().memset_async(reinterpret_cast<cuda::DevicePtr>(memory), value, bytes, stream),
          "filling device memory");
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, StreamHandle stream) override {
    const CurrentContext current(context_);
    check(driver().copy_to_host(to, reinterpret_cast<cuda::DevicePtr>(from), bytes, stream),
          "copying from the device");
    check(driver().stream_synchronize(stream), "work on the device");
  }
  void copy_to_device(void* to, const void* from, std::size_t bytes, StreamHandle stream) override {
    const CurrentContext current(context_);
    check(driver().copy_to_device(reinterpret_cast<cuda::DevicePtr>(to), from, bytes, stream),
          "copying to the device");
    check(driver().stream_synchronize(stream), "work on the device");
  }
  void synchronize(StreamHandle stream) override {
    const CurrentContext current(context_);
    check(driver().stream_synchronize(stream), "work on the device");
  }

  std::unique_ptr<GpuMatmul> matmul(const GpuProduct& product) override {
    if (!cuda::cublas_lt_is_there()) return nullptr;
    const CurrentContext current(context_);
    const std::lock_guard lock(mutex_);
    if (cublas_ == nullptr) cublas_ = std::make_unique<cuda::CublasLt>();
    return in_context(cublas_->prepare(product));
  }

 private:
  /// A product whose library wants the device's context to be current.
  class InContext final : public GpuMatmul {
   public:
    InContext(cuda::Context context, std::unique_ptr<GpuMatmul> product)
        : context_(context), product_(std::move(product)) {}
    std::size_t workspace_bytes() const override { return product_->workspace_bytes(); }
    void run(const void* a, const void* b, void* out, void* workspace,
             StreamHandle stream) const override {
      const CurrentContext current(context_);
      product_->run(a, b, out, workspace, stream);
    }

   private:
    cuda::Context context_;
    std::unique_ptr<GpuMatmul> product_;
  };
  std::unique_ptr<GpuMatmul> in_context(std::unique_ptr<GpuMatmul> product) const {
    if (product == nullptr) return nullptr;
    return std::make_unique<InContext>(context_, std::move(product));
  }

  /// The lock is not held while a program is compiled; of two that compile the same, one is kept.
  cuda::Module module_of(const std::string& key, const GpuProgram& program) {
    {
      const std::lock_guard lock(mutex_);
      const auto known = modules_.find(key);
      if (known != modules_.end()) return known->second;
    }
    const std::string architecture = fmt::format("sm_{}{}", major_, minor_);
    const std::string cubin = cache_.get(program, architecture);
    if (kernels_are_heard())
      tell_kernels({MadeKernels::Language::kCuda, program.name, program.source, program.defines,
                    architecture, cubin});
    const std::lock_guard lock(mutex_);
    cuda::Module& module = modules_[key];
    if (module == nullptr)
      check(driver().module_load(&module, cubin.data()), "loading a compiled program");
    return module;
  }

  static void ask_for_shared(GpuKernel kernel, std::size_t bytes) {
    constexpr std::size_t kWithoutAsking = 48 * 1024;
    if (bytes > kWithoutAsking)
      check(driver().function_set(kernel.handle,
                                  static_cast<int>(cuda::FunctionAttribute::kMaxDynamicShared),
                                  static_cast<int>(bytes)),
            "asking for shared memory");
  }

  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
  cuda::MemPool pool_ = nullptr;
  int major_ = 0;
  int minor_ = 0;
  int multiprocessors_ = 0;
  CubinCache cache_;
  std::mutex mutex_;
  std::map<std::string, cuda::Module> modules_;
  std::unique_ptr<Workspaces> workspaces_;
  std::unique_ptr<cuda::CublasLt> cublas_;  ///< opened at the first product
};

}  // namespace

int cuda_device_count(std::string* reason) {
  try {
    int count = 0;
    check(driver().device_count(&count), "counting devices");
    if (count == 0 && reason != nullptr) *reason = "the driver sees no device";
    return count;
  } catch (const DeviceError& error) {
    if (reason != nullptr) *reason = error.what();
    return 0;
  }
}

std::string cuda_matmul_library() {
  std::string reason;
  if (!cuda::cublas_lt_is_there(&reason)) return reason;
  return "cuBLASLt " + cuda::cublas_lt_version();
}

std::string cuda_compiler() { return "NVRTC " + cuda::nvrtc_version(); }

std::shared_ptr<Gpu> open_cuda_gpu(int ordinal, std::shared_ptr<const CodeStore> code) {
  static std::mutex mutex;
  // Never destroyed: at the end of the process the driver and the callers' streams go first.
  static auto& opened =
      *new std::map<std::pair<int, std::filesystem::path>, std::shared_ptr<Gpu>>();
  std::string reason;
  const int count = cuda_device_count(&reason);
  if (count == 0) throw DeviceError(reason);
  if (ordinal < 0 || ordinal >= count)
    throw UsageError(
        fmt::format("CUDA: there is no device {}; the driver sees {}", ordinal, count));
  const std::lock_guard lock(mutex);
  if (!code) code = std::make_shared<const CodeStore>(std::filesystem::path());
  std::shared_ptr<Gpu>& gpu = opened[{ordinal, code->folder()}];
  if (gpu == nullptr) gpu = std::make_shared<CudaGpu>(ordinal, std::move(code));
  return gpu;
}

}  // namespace segfuse::runtime
