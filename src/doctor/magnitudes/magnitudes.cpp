#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "doctor/magnitudes/kernels/arguments.h"
#include "doctor/magnitudes/source.h"
#include "runtime/kernels.h"
#include "runtime/open_device.h"
#include "segfuse/doctor/streams.h"

namespace segfuse {

namespace {

constexpr unsigned kMagnitudeThreads = 512;
constexpr std::size_t kMagnitudeDevices = 64;
constexpr std::uint32_t kNoGuess = 0xffffffff;  ///< larger than the bits of all numbers
constexpr std::uint64_t kBytesOfThread = 128;   ///< so that small tensors get few blocks

struct MagnitudeKernel {
  std::once_flag once;
  std::shared_ptr<runtime::KernelLoader> loader;
  runtime::GpuKernel kernel;
};

MagnitudeKernel& magnitude_kernel(int device) {
  static auto& kernels = *new std::array<MagnitudeKernel, kMagnitudeDevices>();
  MagnitudeKernel& one = kernels.at(static_cast<std::size_t>(device));
  std::call_once(one.once, [&] {
    auto loader = runtime::open_cuda_kernels(device);
    one.kernel = loader->kernel(
        {"doctor_magnitudes", doctor::magnitude_kernel_source("magnitudes.cuh"), {}}, "magnitudes");
    one.loader = std::move(loader);
  });
  return one;
}

}  // namespace

void enqueue_magnitudes(int device, void* stream, std::span<const MagnitudeOf> tensors,
                        BrokenGuess broken) {
  const MagnitudeKernel& with = magnitude_kernel(device);
  while (!tensors.empty()) {
    const std::size_t count =
        std::min(tensors.size(), static_cast<std::size_t>(doctor::gpu::kMaxTensors));
    doctor::gpu::MagnitudeArguments arguments{};
    arguments.broken = broken.flag;
    arguments.only_if_broken = static_cast<int>(broken.required);
    std::uint64_t most = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const MagnitudeOf& tensor = tensors[i];
      const auto kind = static_cast<int>(tensor.type);
      const bool guessed = broken.flag != nullptr && !std::isnan(tensor.most);
      arguments.tensors[i] = {tensor.data, tensor.count, tensor.largest, kind,
                              guessed ? std::bit_cast<std::uint32_t>(tensor.most) : kNoGuess};
      const std::uint64_t width = kind == doctor::gpu::kDouble  ? 8
                                  : kind == doctor::gpu::kFloat ? 4
                                                                : 2;
      most = std::max(most, tensor.count * width);
    }
    constexpr std::uint64_t kBytesOfBlock = kBytesOfThread * kMagnitudeThreads;
    const auto resident = static_cast<std::uint64_t>(with.loader->multiprocessors()) * 4;
    // Blocks that have nothing to do take time as well.
    const std::uint64_t blocks_at_most =
        broken.required ? std::max<std::uint64_t>(resident / count, 1) : resident;
    const auto blocks = static_cast<unsigned>(
        std::clamp<std::uint64_t>((most + kBytesOfBlock - 1) / kBytesOfBlock, 1, blocks_at_most));
    with.loader->launch(runtime::legacy_if_null(stream), with.kernel,
                        {{blocks, static_cast<unsigned>(count)}, {kMagnitudeThreads}}, &arguments,
                        sizeof(arguments));
    tensors = tensors.subspan(count);
  }
}

}  // namespace segfuse
