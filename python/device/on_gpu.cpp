// segfuse._native: programs on the caller's arrays in the memory of a GPU.

#include <fmt/core.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <vector>

#include "device/on_gpu.h"
#include "dtypes.h"
#include "programs.h"

namespace segfuse::python {
namespace {

using namespace nb::literals;

/// Something of Python's that is let go on any thread.
template <class Kept>
std::shared_ptr<void> owner_of(Kept kept) {
  return {new Kept(std::move(kept)), [](void* owner) {
            const nb::gil_scoped_acquire gil;
            delete static_cast<Kept*>(owner);
          }};
}

/// A program on one GPU.
class OnGpu {
 public:
  OnGpu(nb::handle program, const std::string& device)
      : inputs_(program_of(program).inputs()), outputs_(program_of(program).outputs()) {
    const Program& compiled = program_of(program);
    RunOptions how = options_of(program);
    how.device = device;
    const nb::gil_scoped_release release;
    function_.emplace(compiled, how);
  }
  ~OnGpu() {
    const nb::gil_scoped_release release;  // others may wait for it with the device's lock
    function_.reset();
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  Prepared prepare(std::vector<Shape> shapes) {
    const nb::gil_scoped_release release;
    std::vector<Shape> made = function_->prepare(shapes);
    return {std::move(shapes), std::move(made)};
  }

  /// On the caller's stream, into memory of the caller.
  void run(const Prepared& prepared, std::uintptr_t stream, const nb::list& inputs,
           const std::vector<std::uintptr_t>& outputs) {
    std::vector<Input> kept;
    const std::vector<ForeignArray> given = take(prepared, inputs, kept);
    if (outputs.size() != outputs_.size())
      throw InternalError(
          fmt::format("{} addresses for {} outputs", outputs.size(), outputs_.size()));
    std::vector<ForeignArray> made(outputs.size());
    for (std::size_t i = 0; i < made.size(); ++i) {
      made[i].address = reinterpret_cast<void*>(outputs[i]);
      made[i].dtype = outputs_[i].dtype;
      made[i].shape = prepared.outputs[i];
    }
    const nb::gil_scoped_release release;
    function_->run(given, made, reinterpret_cast<void*>(stream));
  }

  /// On a stream of the library, into memory of the library.
  std::vector<Tensor> run_apart(const Prepared& prepared, const nb::list& inputs) {
    std::vector<Input> kept;
    const std::vector<ForeignArray> given = take(prepared, inputs, kept);
    const nb::gil_scoped_release release;
    return function_->run(given);
  }

  /// Arrays of the host travel.
  nb::list run_on_copies(const nb::list& arrays, const std::vector<std::size_t>& overwritten) {
    if (arrays.size() != inputs_.size()) refuse_count(arrays.size());
    std::vector<Input> kept;
    std::vector<Tensor> inputs;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      bool written = false;
      for (const std::size_t index : overwritten) written = written || index == i;
      kept.push_back(import_input(inputs_[i].name.c_str(), arrays[i]));
      inputs.push_back(to_tensor(inputs_[i], kept.back(), written));
    }
    std::vector<Tensor> made;
    {
      const nb::gil_scoped_release release;
      made = function_->run_on_copies(inputs);
    }
    nb::list results;
    for (Tensor& output : made) results.append(to_array(std::move(output)));
    return results;
  }

  void check() {
    const nb::gil_scoped_release release;
    function_->check();
  }
  std::uintptr_t stream() const { return reinterpret_cast<std::uintptr_t>(function_->stream()); }
  DeviceFunction& function() { return *function_; }

 private:
  [[noreturn]] void refuse_count(std::size_t found) const {
    throw UsageError(fmt::format("{} arrays were given, expected {}", found, inputs_.size()));
  }

  std::vector<ForeignArray> take(const Prepared& prepared, const nb::list& inputs,
                                 std::vector<Input>& kept) const {
    if (inputs.size() != inputs_.size()) refuse_count(inputs.size());
    std::vector<ForeignArray> all;
    all.reserve(inputs_.size());
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      all.push_back(take(inputs_[i], prepared.inputs[i], inputs[i], kept));
    return all;
  }

  /// An address of an array without gaps; or (address, strides in elements or None, stream that it
  /// is ready on or 0, what keeps it); or a DLPack capsule; or a contiguous array of the host.
  ForeignArray take(const ValueInfo& wanted, const Shape& shape, nb::handle item,
                    std::vector<Input>& kept) const {
    ForeignArray array;
    array.dtype = wanted.dtype;
    array.shape = shape;
    if (nb::isinstance<nb::int_>(item)) {
      array.address = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(item));
      return array;
    }
    if (nb::isinstance<nb::tuple>(item)) {
      auto [address, strides, ready, owner] =
          nb::cast<std::tuple<std::uintptr_t, std::optional<Shape>, std::uintptr_t, nb::object>>(
              item);
      array.address = reinterpret_cast<void*>(address);
      array.strides = strides.value_or(Shape{});
      array.ready = reinterpret_cast<void*>(ready);
      array.owner = owner_of(std::move(owner));
      return array;
    }
    const Input& imported = kept.emplace_back(import_input(wanted.name.c_str(), item));
    array.on_host = device_of(imported).is_cpu();
    array.address = const_cast<void*>(imported.data());
    if (array.on_host) return array;
    if (imported.dtype() != row_of(wanted.dtype).code)
      throw UsageError(fmt::format("the array '{}' is {}, expected {}", wanted.name,
                                   to_text(imported.dtype()), row_of(wanted.dtype).name));
    for (std::size_t axis = 0; axis < imported.ndim(); ++axis)
      array.strides.push_back(imported.stride(axis));
    array.owner = owner_of(imported);
    return array;
  }

  std::vector<ValueInfo> inputs_;
  std::vector<ValueInfo> outputs_;
  std::optional<DeviceFunction> function_;
};

/// What DLPack makes of a result: the capsule keeps the memory.
nb::object capsule_of(const Tensor& tensor, int device, std::uintptr_t stream) {
  auto* moved = new Tensor(tensor);
  const nb::capsule owner(moved,
                          [](void* memory) noexcept { delete static_cast<Tensor*>(memory); });
  void* address = nullptr;
  {
    const nb::gil_scoped_release release;
    address = DeviceFunction::hand_out(tensor, reinterpret_cast<void*>(stream));
  }
  const std::vector<std::size_t> shape(tensor.shape().begin(), tensor.shape().end());
  return nb::cast(nb::ndarray<>(address, shape.size(), shape.data(), owner, nullptr,
                                row_of(tensor.dtype()).code, nb::device::cuda::value, device));
}

std::uintptr_t address_of(const Tensor& tensor, std::uintptr_t stream) {
  const nb::gil_scoped_release release;
  return reinterpret_cast<std::uintptr_t>(
      DeviceFunction::hand_out(tensor, reinterpret_cast<void*>(stream)));
}

}  // namespace

DeviceFunction& function_of(nb::handle program) { return nb::cast<OnGpu&>(program).function(); }

void bind_device_programs(nb::module_& m) {
  nb::class_<Prepared>(m, "Prepared").def("outputs", [](const Prepared& prepared) {
    return prepared.outputs;
  });
  nb::class_<Tensor>(m, "DeviceTensor")
      .def("dtype", [](const Tensor& tensor) { return std::string(row_of(tensor.dtype()).name); })
      .def("shape", [](const Tensor& tensor) { return tensor.shape(); })
      .def("capsule", &capsule_of, "device"_a, "stream"_a)
      .def("address", &address_of, "stream"_a);
  nb::class_<OnGpu>(m, "DeviceProgram")
      .def(nb::init<nb::handle, const std::string&>(), "program"_a, "device"_a)
      .def("prepare", &OnGpu::prepare, "shapes"_a)
      .def("run", &OnGpu::run, "prepared"_a, "stream"_a, "inputs"_a, "outputs"_a)
      .def("run_apart", &OnGpu::run_apart, "prepared"_a, "inputs"_a)
      .def("run_on_copies", &OnGpu::run_on_copies, "arrays"_a, "overwritten"_a)
      .def("check", &OnGpu::check)
      .def("stream", &OnGpu::stream);
}

}  // namespace segfuse::python
