#include "support/emulator/gpu_emulator.h"

#include <cstring>
#include <map>
#include <stdexcept>

#include "support/emulator/device_language.h"
#include "support/emulator/emulated_kernels.h"

namespace segfuse::testing {
namespace {

class EmulatedKernels final : public runtime::KernelLoader {
 public:
  explicit EmulatedKernels(int multiprocessors) : multiprocessors_(multiprocessors) {
    if (!emulated_kernels().empty()) return;
    add_float_kernels();
    add_double_kernels();
    add_half_kernels();
    add_bfloat16_kernels();
    add_float_scope_kernels();
    add_double_scope_kernels();
  }
  int multiprocessors() const override { return multiprocessors_; }
  int shared_bytes() const override { return 160 << 10; }
  /// It knows few shapes of clusters, which tests ask for.
  int clusters(runtime::GpuKernel, const runtime::GpuLaunch&) override { return 1; }

  runtime::GpuKernel kernel(const runtime::GpuProgram& program, const std::string& entry) override {
    std::string key = program.name;
    for (const std::string& define : program.defines)
      if (!define.starts_with("SCAN_RESIDENT=")) key += " " + define;
    const auto found = emulated_kernels().find(key + " " + entry);
    if (found == emulated_kernels().end())
      throw std::logic_error("the emulator has no kernel '" + key + " " + entry + "'");
    return {&found->second};
  }

  void launch(runtime::StreamHandle, runtime::GpuKernel kernel, const runtime::GpuLaunch& launch,
              const void* argument, std::size_t size) override {
    const auto& [grid, block, shared_bytes, together, cluster] = launch;
    if (grid.y > 65535 || grid.z > 65535 || grid.x * grid.y * grid.z == 0)
      throw std::logic_error("a grid that no device takes");
    if (shared_bytes > static_cast<std::size_t>(this->shared_bytes()))
      throw std::logic_error("more shared memory than a block has");
    if (together && grid.x * grid.y * grid.z > static_cast<unsigned>(multiprocessors_))
      throw std::logic_error("more blocks than run at the same time");
    if (grid.x % cluster != 0 || cluster > 16)
      throw std::logic_error("clusters that no device has");
    const auto& emulated = *static_cast<const EmulatedKernel*>(kernel.handle);
    if (size != emulated.argument_bytes)
      throw std::logic_error("a kernel was launched with another kernel's argument");
    const std::vector<std::byte> copy(static_cast<const std::byte*>(argument),
                                      static_cast<const std::byte*>(argument) + size);
    runner().run({grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes,
                 together ? std::size_t{grid.x} * grid.y * grid.z : cluster,
                 [&] { emulated.run(copy.data()); });
  }

 private:
  int multiprocessors_;
};

/// Streams are names only.
class EmulatedDevice final : public runtime::Device {
 public:
  std::string name() const override { return "emulator"; }
  runtime::StreamHandle create_stream() override { return {}; }
  void destroy_stream(runtime::StreamHandle) noexcept override {}
  void synchronize(runtime::StreamHandle) override {}
  runtime::EventHandle create_event() override { return {}; }
  void destroy_event(runtime::EventHandle) noexcept override {}
  void record(runtime::StreamHandle, runtime::EventHandle) override {}
  void wait(runtime::StreamHandle, runtime::EventHandle) override {}
  bool query(runtime::EventHandle) override { return true; }
  void synchronize_event(runtime::EventHandle) override {}
  void launch(runtime::StreamHandle stream, runtime::Work work,
              std::span<const runtime::MemoryAccess>) override {
    work.run(stream);
  }
  void copy(runtime::StreamHandle, void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void fill(runtime::StreamHandle, void* at, std::uint8_t value, std::size_t bytes) override {
    std::memset(at, value, bytes);
  }
  std::size_t granule() const override { return 1; }
  std::byte* reserve(std::size_t) override { throw std::logic_error("memory by address"); }
  void unreserve(std::byte*, std::size_t) noexcept override {}
  void map(std::byte*, std::size_t) override {}
  void unmap(std::byte*, std::size_t) override {}
  runtime::DeviceMemory memory() override { return {}; }
  std::byte* allocate_pinned(std::size_t bytes) override { return new std::byte[bytes]; }
  void release_pinned(std::byte* memory, std::size_t) noexcept override { delete[] memory; }
};

class EmulatedMemory final : public runtime::StreamMemory {
 public:
  std::byte* allocate(runtime::StreamHandle, std::size_t bytes) override {
    void* memory = ::operator new(bytes);
    std::memset(memory, 0xdb, bytes);  // poison: nothing may be read that was not written
    sizes_[memory] = bytes;
    return static_cast<std::byte*>(memory);
  }
  void release(runtime::StreamHandle, std::byte* memory) noexcept override {
    sizes_.erase(memory);
    ::operator delete(memory);
  }
  std::size_t in_use() const {
    std::size_t sum = 0;
    for (const auto& [memory, bytes] : sizes_) sum += bytes;
    return sum;
  }

 private:
  std::map<void*, std::size_t> sizes_;
};

}  // namespace

std::map<std::string, EmulatedKernel>& emulated_kernels() {
  static std::map<std::string, EmulatedKernel> table;
  return table;
}

std::shared_ptr<runtime::KernelLoader> make_emulated_kernels(int multiprocessors) {
  return std::make_shared<EmulatedKernels>(multiprocessors);
}

runtime::DeviceAccess make_gpu_emulator(int multiprocessors) {
  return {std::make_shared<EmulatedDevice>(),
          make_emulated_kernels(multiprocessors),
          std::make_shared<EmulatedMemory>(),
          {}};
}

std::size_t bytes_in_use(const runtime::DeviceAccess& emulator) {
  return dynamic_cast<const EmulatedMemory&>(*emulator.memory).in_use();
}

}  // namespace segfuse::testing
