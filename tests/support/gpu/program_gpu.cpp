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

class ProgramKernels final : public runtime::KernelLoader {
 public:
  int multiprocessors() const override { return 3; }

  runtime::GpuKernel kernel(const runtime::GpuProgram& program, const std::string& entry) override {
    if (program.name.starts_with("semicrf")) {
      const std::lock_guard lock(mutex_);
      const runtime::GpuKernel found = crf_->kernel(program, entry);
      of_crf_[found.handle] = true;
      return found;
    }
    return {const_cast<Compiled*>(&compiled(program.source, entry))};
  }
  void launch(runtime::StreamHandle stream, runtime::GpuKernel kernel,
              const runtime::GpuLaunch& launch, const void* argument, std::size_t size) override {
    if (of_crf_.contains(kernel.handle))
      return crf_->launch(stream, kernel, launch, argument, size);
    const std::vector<std::byte> copy(static_cast<const std::byte*>(argument),
                                      static_cast<const std::byte*>(argument) + size);
    const auto& [grid, block, shared_bytes, together, cluster] = launch;
    runner().run({grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes,
                 together ? std::size_t{grid.x} * grid.y * grid.z : 1,
                 [&] { static_cast<const Compiled*>(kernel.handle)->call(copy.data()); });
  }

 private:
  std::shared_ptr<runtime::KernelLoader> crf_ = make_emulated_kernels(3);
  std::mutex mutex_;
  std::map<void*, bool> of_crf_;
};

}  // namespace

std::shared_ptr<runtime::KernelLoader> make_program_kernels() {
  return std::make_shared<ProgramKernels>();
}

SimAccelerator make_sim_accelerator(engine::AcceleratorOptions options,
                                    std::shared_ptr<runtime::sim::Schedule> schedule) {
  auto device = std::make_unique<runtime::sim::SimDevice>(std::move(schedule));
  SimAccelerator made;
  made.device = device.get();
  made.accelerator =
      engine::Accelerator::make("sim:0", make_program_kernels(), std::move(device), options);
  return made;
}

}  // namespace segfuse::testing
