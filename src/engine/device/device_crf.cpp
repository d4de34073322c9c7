#include "engine/device/device_crf.h"

#include <algorithm>

#include "engine/device/library_kernels.h"
#include "engine/exec/crf_views.h"
#include "segfuse/error.h"

namespace segfuse::engine {

using runtime::Buffer;
using runtime::StreamHandle;

/// The accelerator's GPU for the CRF engine: what the engine keeps comes from the heap, and what a
/// call works in is memory that it is told of. A call takes one block and gives it back.
class DeviceCrf::Workspaces final : public runtime::Gpu {
 public:
  explicit Workspaces(Accelerator& accelerator) : accelerator_(accelerator) {}

  /// Launches do nothing, and blocks are counted, until stop_measuring().
  void measure() { measuring_ = true, largest_ = 0; }
  std::size_t stop_measuring() {
    measuring_ = false;
    return largest_;
  }
  bool measuring() const { return measuring_; }
  void set_workspace(void* memory) { workspace_ = memory; }

  std::string name() const override { return gpu().name(); }
  int multiprocessors() const override { return gpu().multiprocessors(); }
  bool fast_double() const override { return gpu().fast_double(); }
  runtime::GpuKernel kernel(const runtime::GpuProgram& program, const std::string& entry) override {
    return gpu().kernel(program, entry);
  }
  void launch(runtime::GpuKernel kernel, runtime::Extent3 grid, runtime::Extent3 block,
              std::size_t shared, const void* argument, std::size_t size,
              StreamHandle stream) override {
    if (!measuring_) gpu().launch(kernel, grid, block, shared, argument, size, stream);
  }
  void launch_together(runtime::GpuKernel kernel, runtime::Extent3 grid, runtime::Extent3 block,
                       std::size_t shared, const void* argument, std::size_t size,
                       StreamHandle stream) override {
    if (!measuring_) gpu().launch_together(kernel, grid, block, shared, argument, size, stream);
  }
  void* allocate(std::size_t bytes, StreamHandle) override {
    if (measuring_) {
      largest_ = std::max(largest_, bytes);
      return reinterpret_cast<void*>(std::uintptr_t{256});
    }
    if (workspace_ != nullptr) return workspace_;
    kept_.push_back(accelerator_.allocate(bytes, "crf faults"));
    return kept_.back().address();
  }
  void release(void*, StreamHandle) noexcept override {}
  void fill(void* memory, std::uint8_t value, std::size_t bytes, StreamHandle stream) override {
    if (!measuring_) gpu().fill(memory, value, bytes, stream);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, StreamHandle stream) override {
    gpu().copy_to_host(to, from, bytes, stream);
  }
  void copy_to_device(void* to, const void* from, std::size_t bytes, StreamHandle stream) override {
    gpu().copy_to_device(to, from, bytes, stream);
  }
  void synchronize(StreamHandle stream) override { gpu().synchronize(stream); }

 private:
  runtime::Gpu& gpu() const { return accelerator_.gpu(); }
  Accelerator& accelerator_;
  bool measuring_ = false;
  std::size_t largest_ = 0;
  void* workspace_ = nullptr;
  std::vector<Buffer> kept_;
};

DeviceCrf::DeviceCrf(Accelerator& accelerator)
    : gpu_(std::make_shared<Workspaces>(accelerator)), engine_(gpu_) {}
DeviceCrf::~DeviceCrf() = default;

void DeviceCrf::check(StreamHandle stream) { engine_.check(stream); }

namespace {

std::size_t scores_of(std::span<const Array> operands, bool gradient) {
  return operands.size() - (gradient ? 4 : 3);
}

}  // namespace

CrfMemory DeviceCrf::memory_for(std::span<const Array> operands) const {
  const auto batch = static_cast<std::size_t>(operands[0].shape()[0]);
  const auto frames = static_cast<std::size_t>(operands[0].shape()[1]);
  return {(batch + 1) * sizeof(std::int64_t), std::max<std::size_t>(1, batch * frames) * 4,
          std::max<std::size_t>(1, batch) * sizeof(double), 0};
}

CrfMemory DeviceCrf::measure_loss(std::span<const Array> operands, const Array& loss_array) {
  CrfMemory memory = memory_for(operands);
  auto* const anywhere = reinterpret_cast<std::byte*>(std::uintptr_t{256});
  gpu_->measure();
  loss(operands, loss_array, {anywhere, anywhere, anywhere, anywhere, anywhere, anywhere}, nullptr);
  memory.workspace = gpu_->stop_measuring();
  return memory;
}

CrfMemory DeviceCrf::measure_loss_grad(std::span<const Array> operands,
                                       std::span<const Array> gradients) {
  CrfMemory memory = memory_for(operands);
  auto* const anywhere = reinterpret_cast<std::byte*>(std::uintptr_t{256});
  gpu_->measure();
  loss_grad(operands, gradients, {anywhere, anywhere, anywhere, anywhere, anywhere, anywhere},
            nullptr);
  memory.workspace = gpu_->stop_measuring();
  return memory;
}

semicrf::DeviceSegmentations DeviceCrf::gold(std::span<const Array> operands, std::size_t scores,
                                             const CrfScratch& scratch, StreamHandle stream) {
  const Array& labels = operands[scores + 1];
  const std::int64_t batch = labels.shape()[0];
  const std::int64_t most = batch * labels.shape()[1];
  const auto ints = [&](std::byte* memory) {
    return semicrf::View<std::int32_t, 1>(reinterpret_cast<std::int32_t*>(memory), {most}, {1});
  };
  const semicrf::DeviceSegmentations gold{
      {reinterpret_cast<std::int64_t*>(scratch.row_pointer), {batch + 1}, {1}},
      ints(scratch.start),
      ints(scratch.duration),
      ints(scratch.label)};
  engine_.segmentations_from_marked_labels(
      crf_view<const std::int32_t, 2>(labels),
      crf_view<const std::uint8_t, 2>(operands[scores + 2]),
      semicrf::Lengths(crf_view<const std::int64_t, 1>(operands[scores])),
      {.max_duration = operands[2].shape()[0], .classes = operands[0].shape()[2]}, gold, stream);
  return gold;
}

void DeviceCrf::convert(DType from, DType to, const void* source, void* target, std::int64_t count,
                        StreamHandle stream) {
  LibraryLaunch launch = convert_launch(from, to, count);
  const runtime::GpuKernel kernel = gpu_->kernel(launch.program, launch.entry);
  launch.words[0] = reinterpret_cast<std::uintptr_t>(source);
  launch.words[1] = reinterpret_cast<std::uintptr_t>(target);
  gpu_->launch(kernel, launch.grid, launch.block, 0, launch.words.data(),
               launch.words.size() * sizeof(launch.words[0]), stream);
}

template <class T>
void DeviceCrf::loss_of(std::span<const Array> operands, const Array& loss,
                        const CrfScratch& scratch, StreamHandle stream) {
  const std::size_t scores = scores_of(operands, false);
  const std::int64_t batch = operands[0].shape()[0];
  const semicrf::DeviceSegmentations segments = gold(operands, scores, scratch, stream);
  constexpr bool kWide = std::is_same_v<T, double>;
  auto* const values = kWide ? loss.as<double>() : reinterpret_cast<double*>(scratch.values);
  semicrf::LossResult result;
  result.loss = semicrf::View<double, 1>(values, {batch}, {1});
  engine_.loss<T>(crf_potentials<T>(operands, scores),
                  {segments.row_pointer, segments.start, segments.duration, segments.label}, result,
                  {}, {}, stream);
  if (!kWide) convert(DType::kF64, DType::kF32, values, loss.data, batch, stream);
}

template <class T>
void DeviceCrf::loss_grad_of(std::span<const Array> operands, std::span<const Array> gradients,
                             const CrfScratch& scratch, StreamHandle stream) {
  const std::size_t scores = scores_of(operands, true);
  const std::int64_t batch = operands[0].shape()[0];
  const semicrf::DeviceSegmentations segments = gold(operands, scores, scratch, stream);
  semicrf::View<const double, 1> weights;
  if constexpr (std::is_same_v<T, double>) {
    weights = crf_view<const double, 1>(operands.back());
  } else {
    auto* const values = reinterpret_cast<double*>(scratch.values);
    convert(DType::kF32, DType::kF64, operands.back().data, values, batch, stream);
    weights = semicrf::View<const double, 1>(values, {batch}, {1});
  }
  engine_.loss<T>(crf_potentials<T>(operands, scores),
                  {segments.row_pointer, segments.start, segments.duration, segments.label}, {},
                  crf_gradients<T>(gradients, scores), weights, stream);
}

void DeviceCrf::loss(std::span<const Array> operands, const Array& loss, const CrfScratch& scratch,
                     StreamHandle stream) {
  gpu_->set_workspace(scratch.workspace);
  if (operands[0].dtype == DType::kF32) return loss_of<float>(operands, loss, scratch, stream);
  loss_of<double>(operands, loss, scratch, stream);
}

void DeviceCrf::loss_grad(std::span<const Array> operands, std::span<const Array> gradients,
                          const CrfScratch& scratch, StreamHandle stream) {
  gpu_->set_workspace(scratch.workspace);
  if (operands[0].dtype == DType::kF32)
    return loss_grad_of<float>(operands, gradients, scratch, stream);
  loss_grad_of<double>(operands, gradients, scratch, stream);
}

}  // namespace segfuse::engine
