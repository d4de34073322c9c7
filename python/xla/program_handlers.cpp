#include <fmt/core.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "dtypes.h"
#include "programs.h"
#include "segfuse/context.h"
#include "segfuse/device_function.h"
#include "xla/call.h"
#include "xla/frame.h"
#include "xla/handlers.h"

namespace segfuse::python::xla {
namespace of_programs {
namespace {

Type type_for(DType dtype) {
  switch (dtype) {
    case DType::kBool: return Type::kPred;
    case DType::kI32: return Type::kS32;
    case DType::kI64: return Type::kS64;
    case DType::kF16: return Type::kF16;
    case DType::kBF16: return Type::kBF16;
    case DType::kF32: return Type::kF32;
    case DType::kF64: return Type::kF64;
  }
  throw InternalError("an element type without one of XLA");
}

struct Array {
  DType dtype;
  Shape shape;
  bool as_bytes = false;  ///< an array from outside, which comes as a vector of bytes

  std::int64_t size() const {
    std::int64_t size = 1;
    for (const std::int64_t extent : shape) size *= extent;
    return size;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype); }

  /// The address of a buffer that holds it.
  void* in(const Buffer& buffer) const {
    const bool fits = as_bytes
                          ? buffer.type == Type::kU8 && buffer.rank == 1 &&
                                buffer.extents[0] == static_cast<std::int64_t>(bytes())
                          : buffer.type == type_for(dtype) &&
                                std::vector(buffer.extents, buffer.extents + buffer.rank) == shape;
    if (!fits) throw InternalError("a call by XLA has another array than its program");
    return buffer.data;
  }
};

/// A program with the arrays of a call.
struct ProgramCall {
  std::string digest;
  std::vector<Array> inputs;
  std::vector<Array> outputs;
  HostCall on_host;
  Program program;
  RunOptions how;

  /// Of one GPU.
  struct OnGpu {
    DeviceFunction function;
    std::mutex mutex = {};  ///< a check is of all calls so far, and each is to learn of its own
  };
  std::mutex mutex = {};
  std::map<int, std::unique_ptr<OnGpu>> on_gpus = {};

  void need_counts(const CallFrame& frame) const {
    if (frame.arguments.count != static_cast<std::int64_t>(inputs.size()) ||
        frame.results.count != static_cast<std::int64_t>(outputs.size()))
      throw InternalError("a call by XLA has other arrays than its program");
  }

  void run_on_host(const CallFrame& frame) const {
    need_counts(frame);
    std::vector<Tensor> given;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      auto* data = static_cast<std::byte*>(inputs[i].in(*frame.arguments.values[i]));
      given.push_back(inputs[i].size() == 0 ? Tensor(inputs[i].dtype, inputs[i].shape)
                                            : Tensor::borrow(inputs[i].dtype, inputs[i].shape,
                                                             std::shared_ptr<std::byte>(
                                                                 std::shared_ptr<void>(), data)));
    }
    const std::vector<Tensor> made = on_host(given);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (made[i].shape() != outputs[i].shape || made[i].dtype() != outputs[i].dtype)
        throw InternalError("a program gave another array to XLA than was expected");
      void* const to = outputs[i].in(*frame.results.values[i]);
      if (made[i].bytes() > 0) std::memcpy(to, made[i].data(), made[i].bytes());
    }
  }

  RunOptions on(int device) const {
    RunOptions there = how;
    there.device = fmt::format("cuda:{}", device);
    return there;
  }
  OnGpu& on_gpu(int device) {
    const std::lock_guard lock(mutex);
    std::unique_ptr<OnGpu>& there = on_gpus[device];
    if (there == nullptr) there.reset(new OnGpu{DeviceFunction(program, on(device))});
    return *there;
  }

  /// Waits only if the program can find something wrong.
  void run_on_gpu(const CallFrame& frame) {
    need_counts(frame);
    const auto all = [](const std::vector<Array>& arrays, Buffer* const* buffers) {
      std::vector<ForeignArray> found(arrays.size());
      for (std::size_t i = 0; i < arrays.size(); ++i) {
        found[i].address = arrays[i].in(*buffers[i]);
        found[i].dtype = arrays[i].dtype;
        found[i].shape = arrays[i].shape;
      }
      return found;
    };
    OnGpu& there = on_gpu(device_of(frame));
    const std::lock_guard lock(there.mutex);
    there.function.run(all(inputs, frame.arguments.values), all(outputs, frame.results.values),
                       stream_of(frame));
    there.function.check();
  }
};

/// Never forgotten: XLA may call a program as long as the process lives. A number is part of the
/// digest of all that the program depends on, so that code which XLA has kept on disk finds the
/// same program in another process, or none.
class ProgramCalls {
 public:
  static ProgramCalls& instance() {
    static auto* const calls = new ProgramCalls;
    return *calls;
  }
  /// `make` is called if there is no program with this digest yet.
  template <class Make>
  std::int64_t add(const std::string& digest, const Make& make) {
    const auto number =
        static_cast<std::int64_t>(std::stoull(digest.substr(0, 16), nullptr, 16) >> 1);
    const std::lock_guard lock(mutex_);
    const auto found = calls_.find(number);
    if (found == calls_.end())
      calls_.emplace(number, make());
    else if (found->second->digest != digest)
      throw InternalError("two programs have one number");
    return number;
  }
  ProgramCall& at(std::int64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = calls_.find(number);
    if (found == calls_.end())
      throw UsageError(
          "this code of XLA calls a segfuse program that was not compiled in this process; "
          "compile it again here");
    return *found->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::int64_t, std::unique_ptr<ProgramCall>> calls_;
};

template <bool kOnGpu>
struct RunProgram {
  static void call(const CallFrame& frame) {
    ProgramCall& program = ProgramCalls::instance().at(attribute_of(frame, "call"));
    if (kOnGpu)
      program.run_on_gpu(frame);
    else
      program.run_on_host(frame);
  }
};

using Description = std::tuple<std::string, Shape, bool>;

std::vector<Array> arrays_of(const std::vector<Description>& described) {
  std::vector<Array> arrays;
  for (const auto& [dtype, shape, as_bytes] : described) {
    for (const DTypeRow& row : kDTypes)
      if (row.name == dtype) arrays.push_back({row.dtype, shape, as_bytes});
  }
  if (arrays.size() != described.size()) throw InternalError("an unknown element type");
  return arrays;
}

std::int64_t add(nanobind::handle program, const std::vector<Description>& inputs,
                 const std::vector<Description>& outputs, const std::string& digest) {
  return ProgramCalls::instance().add(digest, [&] {
    return std::unique_ptr<ProgramCall>(new ProgramCall{digest, arrays_of(inputs),
                                                        arrays_of(outputs), host_call_of(program),
                                                        program_of(program), options_of(program)});
  });
}

}  // namespace
}  // namespace of_programs

void bind(nanobind::module_& m) {
  using namespace nanobind::literals;
  m.def("xla_handlers", &handlers);
  m.def("xla_device_handlers", &device_handlers);
  m.def(
      "xla_program_handler",
      [](bool on_gpu) {
        return on_gpu ? capsule<of_programs::RunProgram<true>>()
                      : capsule<of_programs::RunProgram<false>>();
      },
      "on_gpu"_a);
  // The number of a call, its attribute `call`: a Program for arrays of these element types and
  // shapes. An array may come as a vector of its bytes, since JAX may narrow 64-bit numbers.
  // `digest` is SHA-256 of all that the results depend on, in hexadecimal.
  m.def("xla_program", &of_programs::add, "program"_a, "inputs"_a, "outputs"_a, "digest"_a);
}

}  // namespace segfuse::python::xla
