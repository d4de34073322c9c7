#include <array>
#include <map>
#include <memory>
#include <mutex>

#include "segfuse/context.h"
#include "segfuse/device_function.h"
#include "segfuse/ops.h"
#include "segfuse/semicrf_cuda.h"
#include "xla/call.h"
#include "xla/frame.h"
#include "xla/handlers.h"

namespace segfuse::python::xla {
namespace on_gpu {
namespace {

namespace sc = semicrf;

/// Numbers of one type as those of another one.
Program cast(DType from, DType to) {
  ops::FusionBuilder f("cast");
  f.output(ops::cast(f.input("x", from, {"N"}), to), "y");
  return f.build();
}

/// What a GPU computes with. One call at a time; those of different GPUs do not wait for each
/// other.
struct OnGpu {
  explicit OnGpu(int device)
      : engine(device, sc::CudaOptions{.context = Context::process_default()}),
        widened(cast(DType::kF32, DType::kF64), on(device)),
        narrowed(cast(DType::kF64, DType::kF32), on(device)) {}

  static RunOptions on(int device) {
    return {.context = Context::process_default(), .device = fmt::format("cuda:{}", device)};
  }

  sc::CudaEngine engine;  ///< its faults are those of XLA's calls alone
  DeviceFunction widened;
  DeviceFunction narrowed;
};

/// Made at the first call, and never destroyed: at the end of a process the driver may end before
/// us.
template <class Body>
void with_gpu(int device, const Body& body) {
  struct Place {
    std::mutex mutex;
    std::unique_ptr<OnGpu> gpu;
  };
  static std::mutex all;
  static auto* const places = new std::map<int, Place>;
  Place* place = nullptr;
  {
    const std::lock_guard lock(all);
    place = &(*places)[device];
  }
  const std::lock_guard lock(place->mutex);
  if (place->gpu == nullptr) place->gpu = std::make_unique<OnGpu>(device);
  body(*place->gpu);
}

/// What one call of the engine gets.
template <class T>
struct Inputs {
  const Call& call;
  const Part& part;
  sc::Potentials<T> potentials;

  Inputs(const Call& all, const Part& of)
      : call(all), part(of), potentials(potentials_of<T>(all, of)) {}
  std::int64_t rows() const { return potentials.emission.extent(0); }
};

/// A call on its device's stream.
struct Run {
  const CallFrame& frame;
  OnGpu& gpu;
  void* stream;
  Scratch scratch;

  Run(const CallFrame& call, OnGpu& on, void* its_stream)
      : frame(call), gpu(on), stream(its_stream), scratch(call) {}

  /// A vector of either float type, as doubles.
  sc::View<const double, 1> doubles(const Part& part, const Operand& x) {
    if (!x) return {};
    if (x.is(Type::kF64)) return part.view<const double, 1>(x);
    const sc::View<const float, 1> given = part.view<const float, 1>(x);
    const Shape shape{given.extent(0)};
    auto* wide = scratch.take<double>(given.extent(0));
    const std::array from{
        ForeignArray{.address = const_cast<float*>(given.data()),
                     .dtype = DType::kF32,
                     .shape = shape,
                     .strides = {given.stride(0)}},
    };
    const std::array to{ForeignArray{.address = wide, .dtype = DType::kF64, .shape = shape}};
    if (given.extent(0) > 0) gpu.widened.run(from, to, stream);
    return {wide, given.extents()};
  }

  /// Doubles for a result of either float type: the part's, of those of all groups.
  sc::View<double, 1> result(const Part& part, const Operand& x, std::int64_t rows) {
    if (x.is(Type::kF64)) return part.view<double, 1>(x);
    if (wide_ == nullptr) wide_ = scratch.take<double>(x.extent(0) * part.groups.count());
    return {wide_ + (part.all ? 0 : part.group * rows), {rows}};
  }
  /// Stores them when all are there, at once: a part may begin at any address.
  void store(const Operand& x) {
    if (wide_ == nullptr) return;
    std::int64_t count = 1;
    for (std::int64_t axis = 0; axis < x.buffer->rank; ++axis) count *= x.buffer->extents[axis];
    if (count == 0) return;
    const std::array from{ForeignArray{.address = wide_, .dtype = DType::kF64, .shape = {count}}};
    const std::array to{
        ForeignArray{.address = x.buffer->data, .dtype = DType::kF32, .shape = {count}}};
    gpu.narrowed.run(from, to, stream);
  }

  /// Values of the rows and their gradients: the loss with gold, else the log-partition.
  template <class T>
  void evaluate(const Inputs<T>& inputs, const sc::View<double, 1>& value,
                const sc::Gradients<T>& gradients) {
    const sc::View<const double, 1> weights = doubles(inputs.part, inputs.call.in(kWeights));
    const Operand& labels = inputs.call.in(kLabels);
    if (!labels) {
      gpu.engine.log_partition(inputs.potentials, {value, {}}, gradients, weights, stream);
      return;
    }
    sc::Potentials<T> potentials = inputs.potentials;
    const std::int64_t rows = inputs.rows();
    const std::int64_t room = rows * potentials.emission.extent(1);
    const sc::DeviceSegmentations gold{
        .row_pointer = {scratch.take<std::int64_t>(rows + 1), {rows + 1}},
        .start = {scratch.take<std::int32_t>(room), {room}},
        .duration = {scratch.take<std::int32_t>(room), {room}},
        .label = {scratch.take<std::int32_t>(room), {room}}};
    const sc::View<std::int64_t, 1> frames(scratch.take<std::int64_t>(rows), {rows});
    const auto find = [&](const auto& view) {
      gpu.engine.segmentations_from_labels(view, potentials.lengths,
                                           rules_of(inputs.call, potentials), gold, frames, stream);
    };
    labels.is(Type::kS32) ? find(inputs.part.template view<const std::int32_t, 2>(labels))
                          : find(inputs.part.template view<const std::int64_t, 2>(labels));
    potentials.lengths = sc::View<const std::int64_t, 1>(frames);
    sc::LossResult result;
    result.loss = value;
    gpu.engine.loss(potentials, {gold.row_pointer, gold.start, gold.duration, gold.label}, result,
                    gradients, weights, stream);
  }

 private:
  double* wide_ = nullptr;
};

/// Calls body(run, inputs) for each call of the engine that a call of XLA needs, stores `values` if
/// there is such a result, and throws what the device found wrong: the call waits for the device.
template <class T, class Body>
void on_device(const Call& call, bool may_join, const Operand* values, const Body& body) {
  if (call.in(kTail))
    throw UsageError(
        "semicrf: segments longer than K (tail) work on the CPU only; move the arrays there");
  const CallFrame& frame = call.frame;
  with_gpu(device_of(frame), [&](OnGpu& gpu) {
    Run run(frame, gpu, stream_of(frame));
    for_parts<Inputs<T>>(call, may_join, [&](const Inputs<T>& inputs) { body(run, inputs); });
    if (values != nullptr) run.store(*values);
    gpu.engine.check(run.stream);
  });
}

struct Value {
  template <class T>
  static void run(Call& call) {
    call.outputs.reserve(1);
    const Operand& out = call.out("value", 1);
    on_device<T>(call, true, &out, [&](Run& run, const Inputs<T>& inputs) {
      const sc::View<double, 1> value = run.result(inputs.part, out, inputs.rows());
      run.evaluate(inputs, value, {});
    });
  }
};

/// Gradients, behind the values of the same call of the engine if they are wanted. Weights are
/// finite; segfuse.jax replaces the others.
template <bool kWithValues>
struct Gradients {
  template <class T>
  static void run(Call& call) {
    call.outputs.reserve(16);
    const Operand values = kWithValues ? call.out("value", 1) : Operand{};
    const GradientOutputs outputs(call);
    on_device<T>(call, outputs.of_rows, kWithValues ? &values : nullptr,
                 [&](Run& run, const Inputs<T>& inputs) {
                   const std::int64_t rows = inputs.rows();
                   const sc::View<double, 1> value =
                       kWithValues ? run.result(inputs.part, values, rows)
                                   : sc::View<double, 1>(run.scratch.take<double>(rows), {rows});
                   run.evaluate(inputs, value, outputs.views<T>(inputs.part));
                 });
  }
};

/// The best segmentations, packed: the row pointers, each as two halves, and columns with room for
/// one of B T segments.
struct Viterbi {
  template <class T>
  static void run(Call& call) {
    call.outputs.reserve(5);
    const Operand& score = call.out("score", 1);
    const Operand& pointer = call.out("row_pointer", 2);
    const Operand& start = call.out("start", 1);
    const Operand& duration = call.out("duration", 1);
    const Operand& label = call.out("label", 1);
    on_device<T>(call, false, &score, [&](Run& run, const Inputs<T>& inputs) {
      const Part& part = inputs.part;
      const std::int64_t rows = inputs.rows();
      const auto halves = part.view<std::int32_t, 2>(pointer);
      const sc::View<std::int64_t, 1> row_pointer(reinterpret_cast<std::int64_t*>(halves.data()),
                                                  {rows + 1});
      const sc::View<double, 1> best = run.result(part, score, rows);
      run.gpu.engine.viterbi(inputs.potentials,
                             {.row_pointer = row_pointer,
                              .start = part.view<std::int32_t, 1>(start),
                              .duration = part.view<std::int32_t, 1>(duration),
                              .label = part.view<std::int32_t, 1>(label)},
                             {.score = best, .status = {}}, run.stream);
    });
  }
};

struct OnCpuOnly {
  template <class T>
  static void run(Call&) {
    throw UsageError(
        "semicrf: posteriors and second derivatives in jax.jit work on the CPU only; move the "
        "arrays to a device of jax.devices('cpu')");
  }
};

}  // namespace
}  // namespace on_gpu

nanobind::dict device_handlers() {
  nanobind::dict all;
  all["segfuse_crf_value"] = capsule<OfScores<on_gpu::Value>>();
  all["segfuse_crf_gradients"] = capsule<OfScores<on_gpu::Gradients<false>>>();
  all["segfuse_crf_weighted"] = capsule<OfScores<on_gpu::Gradients<true>>>();
  all["segfuse_crf_along"] = capsule<OfScores<on_gpu::OnCpuOnly>>();
  all["segfuse_crf_posteriors"] = capsule<OfScores<on_gpu::OnCpuOnly>>();
  all["segfuse_crf_viterbi_packed"] = capsule<OfScores<on_gpu::Viterbi>>();
  return all;
}

}  // namespace segfuse::python::xla
