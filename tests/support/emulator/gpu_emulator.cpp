#include "support/emulator/gpu_emulator.h"

#include <cstring>
#include <map>
#include <stdexcept>

#include "support/emulator/device_language.h"
#include "support/emulator/emulated_kernels.h"

namespace segfuse::testing {
namespace {

class Emulator final : public runtime::Gpu {
 public:
  explicit Emulator(int multiprocessors) : multiprocessors_(multiprocessors) {
    if (!emulated_kernels().empty()) return;
    add_float_kernels();
    add_double_kernels();
    add_half_kernels();
    add_bfloat16_kernels();
    add_float_scope_kernels();
    add_double_scope_kernels();
  }
  std::string name() const override { return "emulator"; }
  int multiprocessors() const override { return multiprocessors_; }
  bool fast_double() const override { return true; }

  runtime::GpuKernel kernel(const runtime::GpuProgram& program, const std::string& entry) override {
    std::string key = program.name;
    for (const std::string& define : program.defines) key += " " + define;
    const auto found = emulated_kernels().find(key + " " + entry);
    if (found == emulated_kernels().end())
      throw std::logic_error("the emulator has no kernel '" + key + " " + entry + "'");
    return {&found->second};
  }

  void launch(runtime::GpuKernel kernel, runtime::Extent3 grid, runtime::Extent3 block,
              std::size_t shared_bytes, const void* argument, std::size_t size,
              runtime::StreamHandle) override {
    run(kernel, grid, block, shared_bytes, argument, size, false);
  }
  void launch_together(runtime::GpuKernel kernel, runtime::Extent3 grid, runtime::Extent3 block,
                       std::size_t shared_bytes, const void* argument, std::size_t size,
                       runtime::StreamHandle) override {
    if (grid.x * grid.y * grid.z > static_cast<unsigned>(multiprocessors_))
      throw std::logic_error("more blocks than run at the same time");
    run(kernel, grid, block, shared_bytes, argument, size, true);
  }

  void* allocate(std::size_t bytes, runtime::StreamHandle) override {
    void* memory = ::operator new(bytes);
    std::memset(memory, 0xdb, bytes);  // poison: nothing may be read that was not written
    sizes_[memory] = bytes;
    return memory;
  }
  void release(void* memory, runtime::StreamHandle) noexcept override {
    sizes_.erase(memory);
    ::operator delete(memory);
  }
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

  std::size_t in_use() const {
    std::size_t sum = 0;
    for (const auto& [memory, bytes] : sizes_) sum += bytes;
    return sum;
  }

 private:
  static void run(runtime::GpuKernel kernel, runtime::Extent3 grid, runtime::Extent3 block,
                  std::size_t shared_bytes, const void* argument, std::size_t size, bool together) {
    const auto& emulated = *static_cast<const EmulatedKernel*>(kernel.handle);
    if (size != emulated.argument_bytes)
      throw std::logic_error("a kernel was launched with another kernel's argument");
    const std::vector<std::byte> copy(static_cast<const std::byte*>(argument),
                                      static_cast<const std::byte*>(argument) + size);
    runner().run({grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes, together,
                 [&] { emulated.run(copy.data()); });
  }

  std::map<void*, std::size_t> sizes_;
  int multiprocessors_;
};

}  // namespace

std::map<std::string, EmulatedKernel>& emulated_kernels() {
  static std::map<std::string, EmulatedKernel> table;
  return table;
}

std::shared_ptr<runtime::Gpu> make_gpu_emulator(int multiprocessors) {
  return std::make_shared<Emulator>(multiprocessors);
}

std::size_t bytes_in_use(const runtime::Gpu& emulator) {
  return dynamic_cast<const Emulator&>(emulator).in_use();
}

}  // namespace segfuse::testing
