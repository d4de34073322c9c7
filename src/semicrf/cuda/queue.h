#pragma once
// What the engines work through: the kernels, the streams and the memory of one device.

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
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
  std::string device_name() const { return access_.device->name(); }
  int multiprocessors() const { return access_.kernels->multiprocessors(); }
  int shared_bytes() const { return access_.kernels->shared_bytes(); }
  int cluster_blocks() const { return access_.kernels->cluster_blocks(); }
  int clusters(runtime::GpuKernel kernel, const runtime::GpuLaunch& launch) const {
    return access_.kernels->clusters(kernel, launch);
  }
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
  /// Device memory and pinned host memory, in the order of the stream.
  void copy(void* to, const void* from, std::size_t bytes, runtime::StreamHandle stream) {
    access_.device->copy(stream, to, from, bytes);
  }
  std::byte* allocate_pinned(std::size_t bytes) {
    try {
      return access_.device->allocate_pinned(bytes);
    } catch (const runtime::NoMemory&) {
      throw DeviceError(fmt::format("CUDA: no {} bytes of pinned host memory", bytes));
    }
  }
  void release_pinned(std::byte* memory, std::size_t bytes) noexcept {
    access_.device->release_pinned(memory, bytes);
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
