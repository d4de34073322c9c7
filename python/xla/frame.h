#pragma once
// What a call on a GPU asks of XLA: its device, its stream, and memory for the time of the call.

#include <fmt/core.h>

#include <cstddef>
#include <string>
#include <vector>

#include "segfuse/error.h"
#include "xla/abi.h"

namespace segfuse::python::xla {

inline void need_success(const Api& api, Error* error) {
  if (error == nullptr) return;
  MessageArguments message{sizeof(MessageArguments), nullptr, error, nullptr};
  api.message(&message);
  const std::string text = message.message == nullptr ? "" : message.message;
  DestroyArguments destroy{sizeof(DestroyArguments), nullptr, error};
  api.destroy(&destroy);
  throw DeviceError(fmt::format("XLA: {}", text));
}

inline void* stream_of(const CallFrame& frame) {
  StreamArguments stream{sizeof(StreamArguments), nullptr, frame.context, nullptr};
  need_success(*frame.api, frame.api->stream(&stream));
  return stream.stream;
}

inline int device_of(const CallFrame& frame) {
  const Api& api = *frame.api;
  if (api.size < sizeof(Api) || api.device_ordinal == nullptr)
    throw DeviceError(
        fmt::format("XLA: found version {}.{} of its FFI, which does not name the device of a "
                    "call; segfuse.jax on a GPU needs 0.3 or later, as in jaxlib 0.10",
                    api.version.major, api.version.minor));
  OrdinalArguments device{sizeof(OrdinalArguments), nullptr, frame.context, 0};
  need_success(api, api.device_ordinal(&device));
  return device.ordinal;
}

/// Memory of XLA's allocator, until the end of the call on the host: XLA gives it out again in the
/// order of the call's stream.
class Scratch {
 public:
  explicit Scratch(const CallFrame& frame) : frame_(frame) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    for (const Block& block : blocks_) {
      FreeArguments free{sizeof(FreeArguments), nullptr, frame_.context, block.bytes, block.data};
      if (Error* const error = frame_.api->free(&free)) {
        DestroyArguments destroy{sizeof(DestroyArguments), nullptr, error};
        frame_.api->destroy(&destroy);
      }
    }
  }

  /// Not null, also for no elements.
  template <class T>
  T* take(std::int64_t count) {
    const std::size_t bytes = sizeof(T) * static_cast<std::size_t>(count < 1 ? 1 : count);
    blocks_.reserve(blocks_.size() + 1);
    AllocateArguments memory{
        sizeof(AllocateArguments), nullptr, frame_.context, bytes, 16, nullptr};
    need_success(*frame_.api, frame_.api->allocate(&memory));
    blocks_.push_back({memory.data, bytes});
    return static_cast<T*>(memory.data);
  }

 private:
  struct Block {
    void* data;
    std::size_t bytes;
  };
  const CallFrame& frame_;
  std::vector<Block> blocks_;
};

}  // namespace segfuse::python::xla
