#include <fmt/core.h>

#include <algorithm>
#include <mutex>

#include "base/context/state.h"
#include "engine/device/device_program.h"
#include "engine/device/library_kernels.h"
#include "engine/exec/array.h"
#include "engine/program_state.h"
#include "engine/shared_inputs.h"
#include "segfuse/device_function.h"
#include "segfuse/error.h"

namespace segfuse {

using engine::Accelerator;
using runtime::Buffer;
using runtime::StreamId;

namespace {

/// Of what kernels read by vectors, and of what products were prepared for.
constexpr std::size_t kVectorBytes = 16;
constexpr std::size_t kProductBytes = 256;
/// What was handed out and is free again waits for an idle device; beyond this the host does.
constexpr std::size_t kMaxWaiting = std::size_t{256} << 20;

bool is_contiguous(const ForeignArray& array) {
  std::int64_t expected = 1;
  for (std::size_t axis = array.shape.size(); axis-- > 0 && !array.strides.empty();) {
    if (array.shape[axis] != 1 && array.strides[axis] != expected) return false;
    expected *= array.shape[axis];
  }
  return true;
}

std::size_t bytes_of(const ForeignArray& array) {
  return static_cast<std::size_t>(num_elements(array.shape)) * size_of(array.dtype);
}

using Bytes = std::span<std::byte>;

/// All bytes between the array's first and its last, whatever the signs of its strides.
Bytes bytes_between(const ForeignArray& array) {
  if (num_elements(array.shape) == 0) return {};
  std::int64_t first = 0;
  std::int64_t last = 0;
  for (std::size_t axis = 0; axis < array.strides.size(); ++axis) {
    const std::int64_t reach = (array.shape[axis] - 1) * array.strides[axis];
    (reach < 0 ? first : last) += reach;
  }
  if (array.strides.empty()) last = num_elements(array.shape) - 1;
  const auto item = static_cast<std::int64_t>(size_of(array.dtype));
  return {static_cast<std::byte*>(array.address) + first * item,
          static_cast<std::size_t>((last - first + 1) * item)};
}

Buffer span_of(runtime::Device& device, const ForeignArray& array) {
  const Bytes bytes = bytes_between(array);
  return Buffer::foreign(device, bytes.data(), bytes.size(), "caller's array", array.owner);
}

}  // namespace

struct DeviceFunction::State {
  State(const ir::Fusion& of, std::shared_ptr<Accelerator> on, const Context& context,
        engine::PlanOptions options, bool excess_precision)
      : accelerator(std::move(on)),
        store(context.state().code),
        program(of, accelerator, context, options, excess_precision),
        overwritten(of.inputs().size()) {
    const ir::Fusion& fusion = program.fusion();
    for (const ir::ExprId id : fusion.live_exprs())
      if (fusion.expr(id).op == ir::Op::matmul) alignment = kProductBytes;
    for (std::size_t i = 0; i < overwritten.size(); ++i)
      for (const ir::Alias& alias : fusion.aliases())
        overwritten[i] = overwritten[i] || alias.input == fusion.inputs()[i].val;
  }

  bool in_place(const ForeignArray& array) const {
    return is_contiguous(array) && reinterpret_cast<std::uintptr_t>(array.address) % alignment == 0;
  }

  /// Memory of the caller that is ready in the order of `stream`, as a tensor over it. What is
  /// given twice is one buffer.
  Tensor borrow(const ForeignArray& array, StreamId stream) {
    auto* const address = static_cast<std::byte*>(array.address);
    const std::size_t bytes = bytes_of(array);
    for (const Buffer& known : foreign)
      if (known.address() == address && known.bytes() == bytes)
        return accelerator->wrap(array.dtype, array.shape, known);
    Buffer buffer =
        Buffer::foreign(timeline().device(stream), address, bytes, "caller's array", array.owner);
    executor().note_write(buffer, ready);
    foreign.push_back(buffer);
    return accelerator->wrap(array.dtype, array.shape, std::move(buffer));
  }

  /// A copy without gaps, made by the device.
  Tensor pack(const ForeignArray& array, StreamId stream) {
    Tensor packed = accelerator->empty(array.dtype, array.shape, "packed", stream);
    Shape strides = array.strides;
    if (strides.empty()) strides = engine::contiguous(array.shape).strides;
    const engine::Nest nest = engine::collapse(array.shape, {strides});
    engine::LibraryLaunch launch =
        engine::copy_view_launch(size_of(array.dtype), nest.sizes, nest.strides[0]);
    launch.program.store = store;
    const Buffer from = span_of(timeline().device(stream), array);
    executor().note_write(from, ready);
    foreign.push_back(from);
    const Buffer& to = accelerator->buffer(packed);
    launch.words[0] = reinterpret_cast<std::uintptr_t>(array.address);
    launch.words[1] = reinterpret_cast<std::uintptr_t>(to.address());
    const runtime::GpuKernel kernel = accelerator->kernels()->kernel(launch.program, launch.entry);
    executor().launch(
        stream,
        {"pack",
         [kernels = accelerator->kernels(), kernel, launch](runtime::StreamHandle handle) {
           kernels->launch(handle, kernel, {launch.grid, launch.block}, launch.words.data(),
                           launch.words.size() * sizeof(launch.words[0]));
         }},
        {runtime::reads(from), runtime::writes(to)});
    return packed;
  }

  /// By input: it has to be copied, since it shares memory with one that the program overwrites.
  std::vector<bool> to_copy(std::span<const ForeignArray> inputs) const {
    std::vector<engine::InputBytes> memory(inputs.size());
    std::ranges::transform(inputs, memory.begin(), [](const ForeignArray& array) {
      const Bytes bytes = bytes_between(array);
      return engine::InputBytes(bytes.data(), bytes.data() + bytes.size());
    });
    return engine::shared_with_overwritten(memory, overwritten, [&](std::size_t a, std::size_t b) {
      throw UsageError(fmt::format(
          "the arrays '{}' and '{}' share memory, and the program overwrites both; copy one of "
          "them first",
          program.fusion().inputs()[a].name, program.fusion().inputs()[b].name));
    });
  }

  Tensor take(std::size_t i, const ForeignArray& array, bool copied, StreamId stream) {
    if (array.on_host)
      return Tensor::borrow(array.dtype, array.shape,
                            std::shared_ptr<std::byte>(std::shared_ptr<void>(),
                                                       static_cast<std::byte*>(array.address)));
    if (bytes_of(array) == 0) return accelerator->empty(array.dtype, array.shape, "empty", stream);
    if (copied) return pack(array, stream);
    if (in_place(array)) return borrow(array, stream);
    if (overwritten[i])
      throw UsageError(fmt::format(
          "the array '{}' is overwritten by the program, expected it contiguous and at a multiple "
          "of {} bytes",
          program.fusion().inputs()[i].name, alignment));
    return pack(array, stream);
  }

  void need_inputs(std::size_t found) const {
    if (found != overwritten.size())
      throw UsageError(fmt::format("the Fusion '{}' has {} inputs; {} were given",
                                   program.fusion().name(), overwritten.size(), found));
  }

  /// Tensors of the inputs' types and of these shapes, without memory.
  std::vector<Tensor> like(std::span<const Shape> shapes) const {
    need_inputs(shapes.size());
    const ir::Fusion& fusion = program.fusion();
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < shapes.size(); ++i)
      tensors.push_back(
          Tensor::on_device(fusion.val(fusion.inputs()[i].val).dtype, shapes[i], nullptr));
    return tensors;
  }

  std::vector<Tensor> take_all(std::span<const ForeignArray> inputs, StreamId stream) {
    need_inputs(inputs.size());
    foreign.clear();
    ready = timeline().touch(stream);
    const std::vector<bool> copied = to_copy(inputs);
    std::vector<Tensor> tensors;
    tensors.reserve(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i)
      tensors.push_back(take(i, inputs[i], copied[i], stream));
    return tensors;
  }

  std::vector<Tensor> take_outputs(std::span<const ForeignArray> outputs, StreamId stream) {
    std::vector<Tensor> tensors;
    tensors.reserve(outputs.size());
    for (const ForeignArray& output : outputs) {
      if (!in_place(output))
        throw UsageError(fmt::format(
            "an output is not contiguous, or not at a multiple of {} bytes", alignment));
      tensors.push_back(bytes_of(output) == 0
                            ? accelerator->empty(output.dtype, output.shape, "empty", stream)
                            : borrow(output, stream));
    }
    return tensors;
  }

  /// Once more with what an idle device gives back, if there is no memory.
  template <class Run>
  void with_memory(const Run& run) {
    try {
      return run();
    } catch (const engine::OutOfDeviceMemory&) {
      if (accelerator->waiting_bytes() == 0) throw;
    }
    free_what_waits();
    run();
  }
  void free_what_waits() {
    for (Buffer& buffer : accelerator->settle()) over.push_back(std::move(buffer));
  }

  /// Results that the program writes over inputs, for whom memory of their own was given.
  void copy_in_place(std::span<const Tensor> made, std::span<const Tensor> results,
                     StreamId stream) {
    for (std::size_t i = 0; i < made.size(); ++i)
      if (!made[i].shares_storage_with(results[i]) && made[i].size() > 0)
        executor().copy(stream, accelerator->buffer(results[i]), 0, accelerator->buffer(made[i]), 0,
                        made[i].bytes());
  }

  /// The only call of this function and of its device.
  struct Alone {
    explicit Alone(State& s) : own(s.mutex), all(s.accelerator->calls()) {}
    std::lock_guard<std::mutex> own, all;
  };

  runtime::Executor& executor() { return accelerator->executor(); }
  runtime::Timeline& timeline() { return executor().timeline(); }

  std::shared_ptr<Accelerator> accelerator;
  std::shared_ptr<const CodeStore> store;  ///< of compiled code
  std::mutex mutex;                        ///< of the program; taken before the device's
  engine::DeviceProgram program;
  std::vector<bool> overwritten;  ///< by input
  std::size_t alignment = kVectorBytes;
  runtime::StreamTick ready;    ///< of this call: what the caller did before is behind it
  std::vector<Buffer> foreign;  ///< of this call
  std::vector<Buffer> over;     ///< of others; to be dropped when no lock is held
};

DeviceFunction::DeviceFunction(const Program& program, const RunOptions& how) {
  const bool tf32 = engine::allows_tf32(how.precision);
  const std::shared_ptr<Accelerator> accelerator =
      engine::open_accelerator(how.device, how.context);
  if (accelerator == nullptr)
    throw UsageError("'cpu' is not a GPU; run the program there with Program::run");
  // Who calls once calls again, and streams of others are known to what is open.
  engine::keep_in(how.context, accelerator);
  state_ = std::make_unique<State>(program.state().fusion, accelerator, how.context,
                                   engine::PlanOptions{.tf32 = tf32}, how.excess_precision);
}

DeviceFunction::~DeviceFunction() {
  if (state_ == nullptr) return;
  const std::shared_ptr<Accelerator> accelerator = state_->accelerator;
  const std::lock_guard lock(accelerator->calls());
  state_.reset();
}
DeviceFunction::DeviceFunction(DeviceFunction&&) noexcept = default;
DeviceFunction& DeviceFunction::operator=(DeviceFunction&&) noexcept = default;

std::vector<Shape> DeviceFunction::prepare(std::span<const Shape> inputs) {
  State& s = *state_;
  const std::vector<Tensor> like = s.like(inputs);
  {
    const std::lock_guard lock(s.mutex);
    s.program.compile(like);
  }
  const State::Alone alone(s);
  return s.program.output_shapes(like);
}

struct DeviceFunction::Planned {
  std::shared_ptr<Accelerator> accelerator;  ///< has the plan's memory
  std::shared_ptr<engine::DevicePlan> plan;
  std::size_t addresses = 0;
};

std::shared_ptr<DeviceFunction::Planned> DeviceFunction::planned(std::span<const Shape> inputs) {
  const State::Alone alone(*state_);
  std::shared_ptr<engine::DevicePlan> plan = state_->program.plan_in_order(state_->like(inputs));
  if (plan == nullptr) return nullptr;
  const std::size_t addresses = inputs.size() + plan->output_shapes.size();
  return std::make_shared<Planned>(Planned{state_->accelerator, std::move(plan), addresses});
}

bool DeviceFunction::run(const Planned& planned, std::span<void* const> addresses, void* caller) {
  State& s = *state_;
  if (addresses.size() != planned.addresses)
    throw UsageError(
        fmt::format("{} addresses were given, expected {}", addresses.size(), planned.addresses));
  for (const void* address : addresses)
    if (reinterpret_cast<std::uintptr_t>(address) % s.alignment != 0) return false;
  std::vector<Buffer> over;  // owners go when no lock is held
  const State::Alone alone(s);
  const std::optional<StreamId> stream = s.accelerator->adopt(runtime::StreamHandle(caller));
  if (!stream) return false;
  const std::span given(reinterpret_cast<std::byte* const*>(addresses.data()), addresses.size());
  s.with_memory([&] { s.program.run_in_order(planned.plan, given, *stream); });
  over.swap(s.over);
  return true;
}

void DeviceFunction::run(std::span<const ForeignArray> inputs,
                         std::span<const ForeignArray> outputs, void* caller) {
  State& s = *state_;
  const runtime::StreamHandle stream(caller);
  std::vector<Buffer> over;  // owners go when no lock is held
  const State::Alone alone(s);
  const std::optional<StreamId> adopted = s.accelerator->adopt(stream);
  const StreamId on = adopted.value_or(s.accelerator->streams()[0]);
  if (!adopted) s.timeline().order_after_outside(on, stream);
  // The caller's stream is ordered after all uses of what is the caller's.
  const auto leave = [&] {
    for (const Buffer& buffer : s.foreign)
      s.timeline().order_after(on, s.executor().uses_of(buffer));
    s.foreign.clear();
    if (!adopted)
      s.timeline().let_wait(s.timeline().device(on), stream,
                            runtime::Frontier(s.timeline().tail(on)));
    over.swap(s.over);
  };
  try {
    s.with_memory([&] {
      const std::vector<Tensor> given = s.take_all(inputs, on);
      const std::vector<Tensor> results = s.take_outputs(outputs, on);
      s.copy_in_place(s.program.run(given, {.stream = on, .outputs = results, .waits = false}),
                      results, on);
    });
  } catch (...) {
    leave();
    throw;
  }
  leave();
}

std::vector<Tensor> DeviceFunction::run(std::span<const ForeignArray> inputs) {
  State& s = *state_;
  std::vector<Buffer> over;
  const State::Alone alone(s);
  const StreamId on = s.accelerator->streams()[0];
  const auto leave = [&] {
    for (Buffer& buffer : s.foreign) s.accelerator->keep_until_over(std::move(buffer));
    s.foreign.clear();
    for (Buffer& buffer : s.accelerator->finished()) s.over.push_back(std::move(buffer));
    if (s.accelerator->waiting_bytes() > kMaxWaiting) s.free_what_waits();
    over.swap(s.over);
  };
  std::vector<Tensor> made;
  try {
    for (const ForeignArray& input : inputs) {
      if (input.ready == nullptr) continue;
      s.accelerator->refuse_capture(runtime::StreamHandle(input.ready));
      s.timeline().order_after_outside(on, runtime::StreamHandle(input.ready));
    }
    s.with_memory([&] {
      const std::vector<Tensor> given = s.take_all(inputs, on);
      made = s.program.run(given, {.stream = on, .waits = false});
      for (Tensor& output : made)
        if (s.accelerator->buffer(output).is_foreign()) output = output.clone();
    });
  } catch (...) {
    leave();
    throw;
  }
  leave();
  return made;
}

void* DeviceFunction::stream() const {
  return state_->accelerator->executor().timeline().handle(state_->accelerator->streams()[0]).get();
}

std::vector<Tensor> DeviceFunction::run_on_copies(std::span<const Tensor> inputs) {
  State& s = *state_;
  std::vector<Buffer> over;
  const State::Alone alone(s);
  std::vector<Tensor> made;
  s.with_memory([&] { made = s.program.run(inputs); });
  over.swap(s.over);
  for (Tensor& output : made)  // written in place: the caller's memory is the caller's
    for (const Tensor& input : inputs)
      if (output.shares_storage_with(input)) {
        output = output.clone();
        break;
      }
  return made;
}

void DeviceFunction::check() {
  const State::Alone alone(*state_);
  state_->program.check();
}

void* DeviceFunction::hand_out(const Tensor& result, void* stream) {
  const std::shared_ptr<Accelerator> accelerator = Accelerator::of(result);
  if (accelerator == nullptr) throw UsageError("the tensor is in host memory, expected a GPU's");
  const std::lock_guard lock(accelerator->calls());
  return accelerator->hand_out(result, runtime::StreamHandle(stream));
}

}  // namespace segfuse
