#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <future>
#include <map>
#include <optional>
#include <semaphore>
#include <thread>

#include "base/mutex.h"

#include "base/code/code_store.h"
#include "base/code/fnv.h"
#include "base/code/made_kernels.h"
#include "runtime/cuda/cublas_lt.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/nvrtc.h"
#include "runtime/kernels.h"
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

/// Found on disk by (source, definitions, architecture, version), or compiled and kept there.
std::string cubin_of(const GpuProgram& program, const std::string& architecture) {
  constexpr const char* kSuffix = "cubin";
  std::string key = fmt::format("segfuse {} | {}\n", version(), architecture);
  for (const std::string& define : program.defines) key += define + "\n";
  key += program.source;
  if (program.store)
    if (auto kept = program.store->get(program.name, kSuffix, key)) return *std::move(kept);
  std::string cubin =
      cuda::compile_cubin(program.name, program.source, program.defines, architecture).cubin;
  if (program.store) program.store->put(program.name, kSuffix, key, cubin);
  return cubin;
}

class CudaKernels final : public KernelLoader {
 public:
  explicit CudaKernels(int ordinal) {
    check(driver().device_get(&device_, ordinal), "opening the device");
    major_ = attribute(device_, cuda::DeviceAttribute::kMajor);
    minor_ = attribute(device_, cuda::DeviceAttribute::kMinor);
    multiprocessors_ = attribute(device_, cuda::DeviceAttribute::kMultiprocessors);
    // The system keeps 1 KiB of a block's, and kernels have arrays of their own.
    shared_bytes_ = attribute(device_, cuda::DeviceAttribute::kSharedOptIn) - (2 << 10);
    if (major_ < 8)
      throw DeviceError(
          fmt::format("CUDA: device {} has compute capability {}.{}; segfuse needs 8.0 or newer",
                      ordinal, major_, minor_));
    check(driver().primary_context(&context_, device_), "opening the device's context");
  }

  int multiprocessors() const override { return multiprocessors_; }
  int shared_bytes() const override { return shared_bytes_; }

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

  void launch(StreamHandle stream, GpuKernel kernel, const GpuLaunch& launch, const void* argument,
              std::size_t /*size*/) override {
    const CurrentContext current(context_);
    ask_for_shared(kernel, launch.shared_bytes);
    if (launch.cluster > 1) return launch_clusters(stream, kernel, launch, argument);
    const auto [grid, block, bytes, together, none] = launch;
    const auto shared = static_cast<unsigned>(bytes);
    void* arguments[] = {const_cast<void*>(argument)};
    if (together)
      check(driver().launch_together(kernel.handle, grid.x, grid.y, grid.z, block.x, block.y,
                                     block.z, shared, stream.get(), arguments),
            "launching a kernel whose blocks wait for each other");
    else
      check(driver().launch(kernel.handle, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                            shared, stream.get(), arguments, nullptr),
            "launching a kernel");
  }

  int cluster_blocks() const override { return major_ >= 9 ? 16 : 1; }

  int clusters(GpuKernel kernel, const GpuLaunch& launch) override {
    if (major_ < 9) return 0;
    const CurrentContext current(context_);
    cuda::ClusterAttribute attribute;
    const cuda::LaunchConfig config = config_of(nullptr, kernel, launch, attribute);
    int count = 0;
    // A device with smaller clusters says so with an error.
    return driver().active_clusters(&count, kernel.handle, &config) == 0 ? count : 0;
  }

  std::unique_ptr<GpuMatmul> matmul(const GpuProduct& product) override {
    if (!cuda::cublas_lt_is_there()) return nullptr;
    const CurrentContext current(context_);
    const MutexLock lock(mutex_);
    if (cublas_ == nullptr) cublas_ = std::make_unique<cuda::CublasLt>();
    return in_context(cublas_->prepare(product));
  }

 private:
  /// `attribute` lives as long as the configuration.
  static cuda::LaunchConfig config_of(void* stream, GpuKernel kernel, const GpuLaunch& launch,
                                      cuda::ClusterAttribute& attribute) {
    constexpr unsigned kOnAnyDevice = 8;
    ask_for_shared(kernel, launch.shared_bytes);
    if (launch.cluster > kOnAnyDevice)
      check(driver().function_set(kernel.handle,
                                  static_cast<int>(cuda::FunctionAttribute::kLargeClusters), 1),
            "asking for a large cluster");
    attribute.x = launch.cluster;
    const auto [grid, block, bytes, together, cluster] = launch;
    return {grid.x, grid.y,     grid.z, block.x, block.y, block.z, static_cast<unsigned>(bytes),
            stream, &attribute, 1};
  }

  static void launch_clusters(StreamHandle stream, GpuKernel kernel, const GpuLaunch& launch,
                              const void* argument) {
    cuda::ClusterAttribute attribute;
    const cuda::LaunchConfig config = config_of(stream.get(), kernel, launch, attribute);
    void* arguments[] = {const_cast<void*>(argument)};
    check(driver().launch_extended(&config, kernel.handle, arguments, nullptr),
          "launching a kernel of clusters");
  }

  /// A product whose library wants the device's context to be current.
  class InContext final : public GpuMatmul {
   public:
    InContext(cuda::Context context, std::unique_ptr<GpuMatmul> product)
        : context_(context), product_(std::move(product)) {}
    std::size_t workspace_bytes() const override { return product_->workspace_bytes(); }
    void run(StreamHandle stream, const void* a, const void* b, void* out,
             void* workspace) const override {
      const CurrentContext current(context_);
      product_->run(stream, a, b, out, workspace);
    }

   private:
    cuda::Context context_;
    std::unique_ptr<GpuMatmul> product_;
  };
  std::unique_ptr<GpuMatmul> in_context(std::unique_ptr<GpuMatmul> product) const {
    if (product == nullptr) return nullptr;
    return std::make_unique<InContext>(context_, std::move(product));
  }

  class Turn {
   public:
    explicit Turn(std::counting_semaphore<>& of) : of_(of) { of_.acquire(); }
    ~Turn() { of_.release(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    std::counting_semaphore<>& of_;
  };

  /// The lock is not held while a program is compiled; who wants the same program waits for it.
  cuda::Module module_of(const std::string& key, const GpuProgram& program) {
    std::promise<cuda::Module> promise;
    std::optional<std::shared_future<cuda::Module>> other;
    {
      const MutexLock lock(mutex_);
      const auto [place, is_new] = modules_.try_emplace(key);
      if (is_new)
        place->second = promise.get_future().share();
      else
        other = place->second;
    }
    if (other) return other->get();
    try {
      const cuda::Module module = load(program);
      promise.set_value(module);
      return module;
    } catch (...) {
      {
        const MutexLock lock(mutex_);
        modules_.erase(key);  // who asks again tries again
      }
      promise.set_exception(std::current_exception());
      throw;
    }
  }

  cuda::Module load(const GpuProgram& program) {
    const std::string architecture = fmt::format("sm_{}{}", major_, minor_);
    const std::string cubin = [&] {
      const Turn turn(at_once_);
      return cubin_of(program, architecture);
    }();
    if (kernels_are_heard())
      tell_kernels({MadeKernels::Language::kCuda, program.name, program.source, program.defines,
                    architecture, cubin});
    const CurrentContext current(context_);
    cuda::Module module = nullptr;
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
  int major_ = 0;
  int minor_ = 0;
  int multiprocessors_ = 0;
  int shared_bytes_ = 0;
  /// Programs that are compiled beside each other: the memory of a compiler is not small.
  std::counting_semaphore<> at_once_{
      std::max(1, static_cast<int>(std::thread::hardware_concurrency()))};
  Mutex mutex_;
  std::map<std::string, std::shared_future<cuda::Module>> modules_ SEGFUSE_GUARDED_BY(mutex_);
  std::unique_ptr<cuda::CublasLt> cublas_
      SEGFUSE_GUARDED_BY(mutex_);  ///< opened at the first product
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

std::string cuda_device_identity(int ordinal) {
  cuda::Device device = 0;
  cuda::Uuid uuid;
  if (driver().device_get(&device, ordinal) != 0 || driver().device_uuid(&uuid, device) != 0)
    return "";
  std::string text;
  for (const unsigned char byte : uuid.bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::string cuda_matmul_library() {
  std::string reason;
  if (!cuda::cublas_lt_is_there(&reason)) return reason;
  return "cuBLASLt " + cuda::cublas_lt_version();
}

std::string cuda_compiler() { return "NVRTC " + cuda::nvrtc_version(); }

std::shared_ptr<KernelLoader> open_cuda_kernels(int ordinal) {
  static Mutex mutex;
  // Never destroyed: at the end of the process the driver goes first.
  static auto& opened = *new std::map<int, std::shared_ptr<KernelLoader>>();
  std::string reason;
  const int count = cuda_device_count(&reason);
  if (count == 0) throw DeviceError(reason);
  if (ordinal < 0 || ordinal >= count)
    throw UsageError(
        fmt::format("CUDA: there is no device {}; the driver sees {}", ordinal, count));
  const MutexLock lock(mutex);
  std::shared_ptr<KernelLoader>& kernels = opened[ordinal];
  if (kernels == nullptr) kernels = std::make_shared<CudaKernels>(ordinal);
  return kernels;
}

}  // namespace segfuse::runtime
