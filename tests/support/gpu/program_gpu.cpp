#include "support/gpu/program_gpu.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>

#include "segfuse/spawn.h"
#include "support/emulator/device_language.h"
#include "support/emulator/gpu_emulator.h"
#include "support/files.h"
#include "support/gpu/printed_host.h"

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace segfuse::testing {
namespace {

/// Functions in the device's assembly language are left out: printed_language.h has them.
std::string without_assembly(const std::string& source) {
  std::string text;
  for (std::size_t at = 0; at < source.size();) {
    std::size_t end = source.find("\n}\n", at);
    end = end == std::string::npos ? source.size() : end + 3;
    const std::string piece = source.substr(at, end - at);
    if (piece.find(" asm(") == std::string::npos &&
        piece.find(" asm volatile(") == std::string::npos &&
        piece.find("extern __shared__") == std::string::npos)
      text += piece;
    at = end;
  }
  return text;
}

struct Compiled {
  void (*call)(const void* argument) = nullptr;
};

/// Of this process: programs of several tests share kernels.
const Compiled& compiled(const std::string& source, const std::string& entry) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<Compiled>> known;
  {
    const std::lock_guard lock(mutex);
    const auto found = known.find(source);
    if (found != known.end()) return *found->second;
  }
  const std::string text = fmt::format(
      "#include \"printed_language.h\"\n{}\nextern \"C\" void call(const void* argument) "
      "{{\n  {}(*static_cast<const Arguments*>(argument));\n}}\n",
      without_assembly(source), entry);
  void* const handle = compile_printed(text, "-O0");
  auto made = std::make_unique<Compiled>();
  made->call = reinterpret_cast<void (*)(const void*)>(dlsym(handle, "call"));
  const std::lock_guard lock(mutex);
  return *known.emplace(source, std::move(made)).first->second;
}

class ProgramGpu final : public runtime::Gpu {
 public:
  std::string name() const override { return "emulator"; }
  int multiprocessors() const override { return 3; }
  bool fast_double() const override { return true; }

  runtime::GpuKernel kernel(const runtime::GpuProgram& program, const std::string& entry) override {
    if (program.name.starts_with("semicrf")) {
      const std::lock_guard lock(mutex_);
      const runtime::GpuKernel found = crf_->kernel(program, entry);
      of_crf_[found.handle] = true;
      return found;
    }
    return {const_cast<Compiled*>(&compiled(program.source, entry))};
  }
  void launch(runtime::GpuKernel kernel, runtime::Extent3 grid, runtime::Extent3 block,
              std::size_t shared_bytes, const void* argument, std::size_t size,
              runtime::StreamHandle stream) override {
    if (of_crf_.contains(kernel.handle))
      return crf_->launch(kernel, grid, block, shared_bytes, argument, size, stream);
    const std::vector<std::byte> copy(static_cast<const std::byte*>(argument),
                                      static_cast<const std::byte*>(argument) + size);
    runner().run({grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes, false,
                 [&] { static_cast<const Compiled*>(kernel.handle)->call(copy.data()); });
  }
  void launch_together(runtime::GpuKernel kernel, runtime::Extent3 grid, runtime::Extent3 block,
                       std::size_t shared_bytes, const void* argument, std::size_t size,
                       runtime::StreamHandle stream) override {
    crf_->launch_together(kernel, grid, block, shared_bytes, argument, size, stream);
  }
  void* allocate(std::size_t, runtime::StreamHandle) override {
    throw std::logic_error("memory that is not the heap's");
  }
  void release(void*, runtime::StreamHandle) noexcept override {}
  void fill(void* memory, std::uint8_t value, std::size_t bytes, runtime::StreamHandle) override {
    std::memset(memory, value, bytes);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, runtime::StreamHandle) override {
    std::memcpy(to, from, bytes);
  }
  void copy_to_device(void* to, const void* from, std::size_t bytes,
                      runtime::StreamHandle) override {
    std::memcpy(to, from, bytes);
  }
  void synchronize(runtime::StreamHandle) override {}

 private:
  std::shared_ptr<runtime::Gpu> crf_ = make_gpu_emulator(3);
  std::mutex mutex_;
  std::map<void*, bool> of_crf_;
};

}  // namespace

std::shared_ptr<runtime::Gpu> make_program_gpu() { return std::make_shared<ProgramGpu>(); }

SimAccelerator make_sim_accelerator(engine::AcceleratorOptions options,
                                    std::shared_ptr<runtime::sim::Schedule> schedule) {
  auto device = std::make_unique<runtime::sim::SimDevice>(std::move(schedule));
  SimAccelerator made;
  made.device = device.get();
  made.accelerator =
      engine::Accelerator::make("sim:0", make_program_gpu(), std::move(device), options);
  return made;
}

}  // namespace segfuse::testing
