#include "engine/device/device_crf.h"

#include <algorithm>

#include "base/context/state.h"
#include "engine/device/library_kernels.h"
#include "engine/exec/crf_views.h"
#include "segfuse/error.h"
#include "semicrf/cuda/over_device.h"

namespace segfuse::engine {

using runtime::Buffer;
using runtime::StreamHandle;

/// What a call works in is memory that a plan has set aside: a call takes one block and gives it
/// back. What the engine keeps is the accelerator's.
class DeviceCrf::Memory final : public runtime::StreamMemory {
 public:
  explicit Memory(Accelerator& accelerator) : accelerator_(accelerator) {}
  void set_workspace(std::byte* memory) { workspace_ = memory; }
  std::byte* allocate(StreamHandle, std::size_t bytes) override {
    if (workspace_ != nullptr) return workspace_;
    kept_.push_back(accelerator_.allocate(bytes, "crf faults"));
    return kept_.back().address();
  }
  void release(StreamHandle, std::byte*) noexcept override {}

 private:
  Accelerator& accelerator_;
  std::byte* workspace_ = nullptr;
  std::vector<Buffer> kept_;
};

DeviceCrf::DeviceCrf(Accelerator& accelerator, const Context& context)
    : accelerator_(accelerator), memory_(std::make_shared<Memory>(accelerator)) {
  options_.context = context;
}
DeviceCrf::~DeviceCrf() = default;

semicrf::CudaEngine& DeviceCrf::engine() {
  if (!engine_) {
    const std::shared_ptr<runtime::OpenDevice>& device = accelerator_.device();
    engine_ = semicrf::OverDevice::make<semicrf::CudaEngine>(
        {std::shared_ptr<runtime::Device>(device, &device->device()), device->kernels(), memory_,
         device->timeline().handle(accelerator_.streams()[0])},
        options_);
  }
  return *engine_;
}

void DeviceCrf::check(StreamHandle stream) {
  if (engine_) engine_->check(stream.get());
}

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

template <class Call>
CrfMemory DeviceCrf::measure(std::span<const Array> operands, const Call& call) {
  auto* const anywhere = reinterpret_cast<std::byte*>(std::uintptr_t{256});
  CrfMemory memory = memory_for(operands);
  memory.workspace = engine().measure(
      [&] { call(CrfScratch{anywhere, anywhere, anywhere, anywhere, anywhere, nullptr}); });
  return memory;
}

CrfMemory DeviceCrf::measure_loss(std::span<const Array> operands, const Array& result) {
  return measure(operands, [&](const CrfScratch& scratch) { loss(operands, result, scratch, {}); });
}

CrfMemory DeviceCrf::measure_loss_grad(std::span<const Array> operands,
                                       std::span<const Array> gradients) {
  return measure(operands,
                 [&](const CrfScratch& scratch) { loss_grad(operands, gradients, scratch, {}); });
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
  engine().segmentations_from_marked_labels(
      crf_view<const std::int32_t, 2>(labels),
      crf_view<const std::uint8_t, 2>(operands[scores + 2]),
      semicrf::Lengths(crf_view<const std::int64_t, 1>(operands[scores])),
      {.max_duration = operands[2].shape()[0], .classes = operands[0].shape()[2]}, gold, {},
      stream.get());
  return gold;
}

void DeviceCrf::convert(DType from, DType to, const void* source, void* target, std::int64_t count,
                        StreamHandle stream) {
  LibraryLaunch launch = convert_launch(from, to, count);
  launch.program.store = options_.context.state().code;
  runtime::KernelLoader& kernels = *accelerator_.kernels();
  const runtime::GpuKernel kernel = kernels.kernel(launch.program, launch.entry);
  if (!stream) return;  // of measure()
  launch.words[0] = reinterpret_cast<std::uintptr_t>(source);
  launch.words[1] = reinterpret_cast<std::uintptr_t>(target);
  kernels.launch(stream, kernel, {launch.grid, launch.block}, launch.words.data(),
                 launch.words.size() * sizeof(launch.words[0]));
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
  engine().loss<T>(crf_potentials<T>(operands, scores),
                   {segments.row_pointer, segments.start, segments.duration, segments.label},
                   result, {}, {}, stream.get());
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
  engine().loss<T>(crf_potentials<T>(operands, scores),
                   {segments.row_pointer, segments.start, segments.duration, segments.label}, {},
                   crf_gradients<T>(gradients, scores), weights, stream.get());
}

void DeviceCrf::loss(std::span<const Array> operands, const Array& loss, const CrfScratch& scratch,
                     StreamHandle stream) {
  memory_->set_workspace(scratch.workspace);
  if (operands[0].dtype == DType::kF32) return loss_of<float>(operands, loss, scratch, stream);
  loss_of<double>(operands, loss, scratch, stream);
}

void DeviceCrf::loss_grad(std::span<const Array> operands, std::span<const Array> gradients,
                          const CrfScratch& scratch, StreamHandle stream) {
  memory_->set_workspace(scratch.workspace);
  if (operands[0].dtype == DType::kF32)
    return loss_grad_of<float>(operands, gradients, scratch, stream);
  loss_grad_of<double>(operands, gradients, scratch, stream);
}

}  // namespace segfuse::engine
