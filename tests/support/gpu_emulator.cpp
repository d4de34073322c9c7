#include "support/gpu_emulator.h"

#include <cstring>
#include <map>
#include <stdexcept>

#include "support/device_language.h"
#include "support/emulated_kernels.h"

#define DEVICE_MEMBER
#include "semicrf/cuda/kernels/arguments.h"
#include "semicrf/cuda/kernels/half.cuh"

namespace segfuse::semicrf::gpu {
/// To 20 bits, as the device's instruction.
inline double approximate_reciprocal(double x) {
  return __hiloint2double(__double2hiint(1.0 / x), 0);
}
inline double to_double(float x) { return x; }
inline double to_double(double x) { return x; }
inline double to_double(Half x) { return static_cast<double>(x); }
inline double to_double(BFloat16 x) { return static_cast<double>(x); }
}  // namespace segfuse::semicrf::gpu

// The kernels once per stored type; a namespace of their own keeps them apart.
#define KERNEL inline void
#define from_double static_cast<INPUT>
#define INPUT float
#define gpu gpu::as_float
#include "support/all_kernels.inc"
#undef gpu
#undef INPUT
#define INPUT double
#define gpu gpu::as_double
#include "support/all_kernels.inc"
#undef gpu
#undef INPUT
#define INPUT Half
#define gpu gpu::as_half
#include "support/all_kernels.inc"
#undef gpu
#undef INPUT
#define INPUT BFloat16
#define gpu gpu::as_bfloat16
#include "support/all_kernels.inc"
#undef gpu

namespace segfuse::testing {
namespace {

using semicrf::gpu::Call;

/// Into the table by key, under the type of the kernel's argument.
struct KernelSlot {
  std::string key;
  void operator=(void (*kernel)(const Call&)) const {  // NOLINT
    emulated_kernels()[key] = emulated<const Call&>(kernel);
  }
};
struct KernelTable {
  KernelSlot operator[](const std::string& key) const { return {key}; }
};
KernelTable kernels() { return {}; }

/// How programs name a shape.
template <int kClasses, int kGroup, int kTaps, bool kEdges>
std::string key_of_shape() {
  std::string key;
  key += " SCAN_CLASSES=" + std::to_string(kClasses);
  key += " SCAN_GROUP=" + std::to_string(kGroup);
  key += " SCAN_TAPS=" + std::to_string(kTaps);
  key += " SCAN_THREADS=" + std::to_string((kClasses * kGroup + 31) / 32 * 32);
  key += std::string(" SCAN_EDGES=") + (kEdges ? "true" : "false");
  return key;
}

/// The passes of one shape: sums, and the best path of float and double.
template <int kClasses, int kGroup, int kTaps, bool kEdges>
void add_scan_kernel() {
  const std::string key = key_of_shape<kClasses, kGroup, kTaps, kEdges>();
  kernels()["semicrf_scan" + key + " scan"] = [](const Call& call) {
    semicrf::gpu::as_double::scan_row<kClasses, kGroup, kTaps, kEdges>(call);
  };
  kernels()["semicrf_best_float" + key + " best_scan"] = [](const Call& call) {
    semicrf::gpu::as_float::best_row<kClasses, kGroup, kTaps, kEdges>(call);
  };
  kernels()["semicrf_best_double" + key + " best_scan"] = [](const Call& call) {
    semicrf::gpu::as_double::best_row<kClasses, kGroup, kTaps, kEdges>(call);
  };
}

/// The best path of one shape for scores stored in 16 bits.
template <int kClasses, int kGroup, int kTaps, bool kEdges>
void add_best_of_half() {
  const std::string key = key_of_shape<kClasses, kGroup, kTaps, kEdges>();
  kernels()["semicrf_best_Half" + key + " best_scan"] = [](const Call& call) {
    semicrf::gpu::as_half::best_row<kClasses, kGroup, kTaps, kEdges>(call);
  };
  kernels()["semicrf_best_BFloat16" + key + " best_scan"] = [](const Call& call) {
    semicrf::gpu::as_bfloat16::best_row<kClasses, kGroup, kTaps, kEdges>(call);
  };
}

template <int kClasses, int kGroup, int kTaps>
void add_scan_kernels() {
  add_scan_kernel<kClasses, kGroup, kTaps, false>();
  add_scan_kernel<kClasses, kGroup, kTaps, true>();
}

/// Every group size over few classes, up to 8 durations.
template <int kClasses>
void add_small_scans() {
  add_scan_kernels<kClasses, 1, 1>();
  add_scan_kernels<kClasses, 1, 2>();
  add_scan_kernels<kClasses, 1, 3>();
  add_scan_kernels<kClasses, 1, 4>();
  add_scan_kernels<kClasses, 2, 1>();
  add_scan_kernels<kClasses, 2, 2>();
  add_scan_kernels<kClasses, 4, 1>();
  add_scan_kernels<kClasses, 4, 2>();
}

#define ADD_AS(type, space, name) \
  kernels()["semicrf_" type " " #name] = [](const Call& c) { semicrf::gpu::space::name(c); };
#define ADD(name)                   \
  ADD_AS("float", as_float, name)   \
  ADD_AS("double", as_double, name) \
  ADD_AS("Half", as_half, name)     \
  ADD_AS("BFloat16", as_bfloat16, name)

void add_all() {
  add_small_scans<1>();
  add_small_scans<2>();
  add_small_scans<3>();
  add_best_of_half<2, 1, 3, true>();
  add_scan_kernel<33, 2, 4, true>();
  add_scan_kernel<39, 2, 3, false>();
  ADD(prepare_frames)
  ADD(prepare_shared)
  ADD(prepare_ends)
  ADD(transpose_factors)
  ADD(wide_pass)
  ADD(exact_pass)
  ADD(gold_path)
  ADD(finish_rows)
  ADD(slice_cover)
  ADD(frame_gradients)
  ADD(boundary_posteriors)
  ADD(end_gradients)
  ADD(transition_counts_1)
  ADD(transition_counts_2)
  ADD(transition_counts_3)
  ADD(transition_counts_4)
  ADD(duration_counts)
  ADD(reduce_shared)
  ADD(exact_counts)
  ADD(gold_counts)
  ADD(measure_frames)
  ADD(measure_shared)
  ADD(best_pass)
  ADD(compare_best)
  ADD(best_trace)
  ADD(best_join)
  ADD(best_total)
  ADD(best_pointers)
  ADD(best_pack)
  ADD(compare_chunks)
  ADD(join_chunks)
  ADD(pass_by_duration)
  ADD(team_by_duration)
  ADD(starts_by_duration)
  ADD(counts_by_duration)
  ADD(best_pass_by_duration)
  ADD(row_durations)
  ADD(expected_frames)
  ADD(row_entropy)
  ADD_AS("labels", as_double, count_labels)
  ADD_AS("labels", as_double, best_pointers)
  ADD_AS("labels", as_double, pack_labels)
}
#undef ADD
#undef ADD_AS

class Emulator final : public runtime::Gpu {
 public:
  explicit Emulator(int multiprocessors) : multiprocessors_(multiprocessors) {
    if (!emulated_kernels().empty()) return;
    add_all();
    add_scope_kernels();
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
