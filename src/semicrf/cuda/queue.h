#pragma once
// What the engines work through: the kernels, the streams and the memory of one device.

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/context/state.h"
#include "runtime/memory/stream_memory.h"
#include "semicrf/cuda/kernels/common/arguments.h"

namespace segfuse::semicrf::gpu {

class Queue {
 public:
  /// Compiled code is kept where the context says.
  Queue(runtime::DeviceAccess access, const Context& context)
      : access_(std::move(access)), context_(context) {}

  runtime::StreamHandle home() const { return access_.home; }
  int multiprocessors() const { return access_.kernels->multiprocessors(); }
  int shared_bytes() const { return access_.kernels->shared_bytes(); }
  runtime::GpuKernel kernel(runtime::GpuProgram program, const std::string& entry) {
    program.store = context_.state().code;
    return access_.kernels->kernel(program, entry);
  }
  template <class Call>
  void launch(runtime::GpuKernel kernel, const runtime::GpuLaunch& launch, const Call& call,
              runtime::StreamHandle stream) {
    if (!measuring_) access_.kernels->launch(stream, kernel, launch, &call, sizeof call);
  }
  void fill(void* memory, std::uint8_t value, std::size_t bytes, runtime::StreamHandle stream) {
    if (!measuring_) access_.device->fill(stream, memory, value, bytes);
  }
  /// Waits for the stream.
  void read(void* to, const void* from, std::size_t bytes, runtime::StreamHandle stream) {
    access_.device->read(stream, to, from, bytes);
  }
  /// Copies host memory of any kind to the device, and waits for it.
  void write(void* to, const void* from, std::size_t bytes, runtime::StreamHandle stream) {
    constexpr std::size_t kMaxPinned = std::size_t{64} << 20;
    const std::size_t most = std::min(bytes, kMaxPinned);
    if (bytes == 0) return;
    const auto release = [this, most](std::byte* memory) {
      access_.device->release_pinned(memory, most);
    };
    const std::unique_ptr<std::byte, decltype(release)> pinned(pin(most), release);
    for (std::size_t at = 0; at < bytes; at += most) {
      const std::size_t n = std::min(most, bytes - at);
      std::memcpy(pinned.get(), static_cast<const std::byte*>(from) + at, n);
      access_.device->copy(stream, static_cast<std::byte*>(to) + at, pinned.get(), n);
      access_.device->synchronize(stream);
    }
  }
  void synchronize(runtime::StreamHandle stream) { access_.device->synchronize(stream); }
  /// Waits for all streams.
  void drain() { access_.device->drain(); }

  std::byte* allocate(std::size_t bytes, runtime::StreamHandle stream) {
    if (!measuring_) return access_.memory->allocate(stream, bytes);
    largest_ = std::max(largest_, bytes);
    return reinterpret_cast<std::byte*>(std::uintptr_t{256});
  }
  void release(std::byte* memory, runtime::StreamHandle stream) noexcept {
    if (!measuring_) access_.memory->release(stream, memory);
  }

  /// Makes calls without enqueuing anything: compiles their kernels, and returns the bytes of their
  /// largest workspace.
  std::size_t measure(const std::function<void()>& calls) {
    struct Measuring {
      explicit Measuring(bool& on) : on_(on) { on_ = true; }
      ~Measuring() { on_ = false; }
      bool& on_;
    };
    const Measuring measuring(measuring_);
    largest_ = 0;
    calls();
    return largest_;
  }

 private:
  std::byte* pin(std::size_t bytes) {
    try {
      return access_.device->allocate_pinned(bytes);
    } catch (const runtime::NoMemory&) {
      throw DeviceError(fmt::format("CUDA: no {} bytes of pinned host memory", bytes));
    }
  }

  runtime::DeviceAccess access_;
  Context context_;
  bool measuring_ = false;
  std::size_t largest_ = 0;
};

/// What kernels find wrong in their inputs: the lowest index of each kind.
class Faults {
 public:
  explicit Faults(Queue& queue);
  /// Waits for the device: calls on any stream may write here.
  ~Faults();
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;
  unsigned long long* words() const { return words_; }

 private:
  Queue& queue_;
  unsigned long long* words_;
};

}  // namespace segfuse::semicrf::gpu
