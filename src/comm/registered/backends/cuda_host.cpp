#include "comm/registered/backends/cuda_host.h"

#include "comm/registered/child.h"

namespace segfuse::comm {
namespace {

namespace cuda = runtime::cuda;

class CudaPin final : public Pin {
 public:
  CudaPin(const cuda::Driver& driver, cuda::Context context, std::span<std::byte> pages)
      : driver_(driver), context_(context), pages_(pages) {
    const cuda::CurrentContext current(driver_, context_);
    cuda::check(driver_, driver_.host_register(pages.data(), pages.size(), cuda::kHostPortable),
                "registering host memory");
  }
  ~CudaPin() override {
    if (in_forked_child()) return;
    cuda::Context ignored = nullptr;
    if (driver_.context_push(context_) != 0) return;  // the context is lost, and the pin with it
    driver_.host_unregister(pages_.data());
    driver_.context_pop(&ignored);
  }

 private:
  const cuda::Driver& driver_;
  cuda::Context context_;
  std::span<std::byte> pages_;
};

class CudaHostBackend final : public Backend {
 public:
  CudaHostBackend(const cuda::Driver& driver, cuda::Context context)
      : driver_(driver), context_(context) {}
  std::string_view name() const override { return "CUDA"; }
  std::unique_ptr<Pin> pin(std::span<std::byte> pages) override {
    return std::make_unique<CudaPin>(driver_, context_, pages);
  }

 private:
  const cuda::Driver& driver_;
  cuda::Context context_;
};

}  // namespace

std::shared_ptr<Backend> make_cuda_host_backend(const cuda::Driver& driver, cuda::Context context) {
  refuse_in_child("make_cuda_host_backend");
  return std::make_shared<CudaHostBackend>(driver, context);
}

std::shared_ptr<Backend> make_cuda_host_backend(int device) {
  refuse_in_child("make_cuda_host_backend");
  const cuda::Driver& driver = cuda::driver();
  cuda::Device handle = 0;
  cuda::check(driver, driver.device_get(&handle, device), "looking for the device");
  cuda::Context context = nullptr;
  cuda::check(driver, driver.primary_context(&context, handle), "opening the device");
  return make_cuda_host_backend(driver, context);
}

}  // namespace segfuse::comm
