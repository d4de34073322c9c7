// segfuse._native: programs on the caller's arrays.

#include "programs.h"

#include <fmt/core.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <span>

#include "arrays.h"
#include "dtypes.h"
#include "engines.h"
#include "segfuse/ops.h"

namespace segfuse::python {
namespace {

using namespace nb::literals;

/// A program with the lock that lets one call in at a time.
class Compiled {
 public:
  Compiled(Program program, RunOptions how)
      : how_(how), state_(std::make_unique<State>(std::move(program))) {}
  ~Compiled() { leave_what_was_inherited(); }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;

  const Program& program() const { return state_->program; }
  const RunOptions& options() const { return how_; }
  std::string emit(const std::string& kind) const {
    return program().emit(kind, {.excess_precision = how_.excess_precision});
  }

  /// Without the GIL.
  std::vector<Tensor> run(std::span<const Tensor> inputs, bool reference) {
    RunOptions how = how_;
    if (how.threads == 0) how.threads = CpuEngine::instance().threads_wanted();
    const std::lock_guard lock(state_->mutex);
    return reference ? state_->program.run_reference(inputs) : state_->program.run(inputs, how);
  }

  /// A child made by fork has none of the threads that run a program, and a lock may be held there
  /// by nobody: it begins again. To be called with the GIL.
  void need_own_threads() {
    if (state_->born == generation()) return;
    Program again = Program::from_text(state_->program.emit("ir"));
    leave_what_was_inherited();
    state_ = std::make_unique<State>(std::move(again));
  }

 private:
  struct State {
    explicit State(Program compiled) : program(std::move(compiled)) {}
    Program program;
    std::mutex mutex;
    int born = generation();
  };

  /// Its threads cannot be waited for.
  void leave_what_was_inherited() {
    if (state_ && state_->born != generation()) (void)state_.release();
  }

  RunOptions how_;
  std::unique_ptr<State> state_;
};

DType dtype_of(const std::string& name, const Input& array) {
  const nb::dlpack::dtype code = array.dtype();
  for (const DTypeRow& row : kDTypes)
    if (row.code == code) return row.dtype;
  throw UsageError(fmt::format(
      "the array '{}' is {}, expected bool, int32, int64, float16, bfloat16, float32 or float64",
      name, to_text(code)));
}

template <class Bytes>
void copy_rows(const std::byte* from, std::byte*& to, const Input& array, std::size_t axis,
               Bytes item) {
  if (axis == array.ndim()) {
    std::memcpy(to, from, item);
    to += item;
    return;
  }
  for (std::size_t i = 0; i < array.shape(axis); ++i)
    copy_rows(
        from + static_cast<std::int64_t>(i) * array.stride(axis) * static_cast<std::int64_t>(item),
        to, array, axis + 1, item);
}

bool is_contiguous(const Input& array) {
  std::int64_t expected = 1;
  for (std::size_t axis = array.ndim(); axis-- > 0;) {
    if (array.shape(axis) != 1 && array.stride(axis) != expected) return array.size() == 0;
    expected *= static_cast<std::int64_t>(array.shape(axis));
  }
  return true;
}

}  // namespace

Tensor to_tensor(const ValueInfo& wanted, const Input& array, bool overwritten) {
  if (!device_of(array).is_cpu())
    throw UsageError(
        fmt::format("the array '{}' lies on {}; compiled functions run on the CPU; move it there",
                    wanted.name, to_text(device_of(array))));
  const bool as_bits = wanted.dtype == DType::kBF16 && array.dtype() == nb::dtype<std::uint16_t>();
  const DType dtype = as_bits ? DType::kBF16 : dtype_of(wanted.name, array);
  Shape shape(array.ndim());
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    shape[axis] = static_cast<std::int64_t>(array.shape(axis));
  const std::size_t item = size_of(dtype);
  const bool aligned = reinterpret_cast<std::uintptr_t>(array.data()) % item == 0;
  if (aligned && array.size() > 0 && is_contiguous(array)) {
    // The caller's reference keeps the memory alive while the program runs.
    auto* data = static_cast<std::byte*>(const_cast<void*>(array.data()));
    return Tensor::borrow(dtype, std::move(shape),
                          std::shared_ptr<std::byte>(std::shared_ptr<void>(), data));
  }
  if (overwritten && array.size() > 0)
    throw UsageError(fmt::format(
        "the array '{}' is overwritten by the program, expected it contiguous", wanted.name));
  Tensor copy(dtype, std::move(shape));
  auto* to = static_cast<std::byte*>(copy.data());
  if (array.size() > 0) copy_rows(static_cast<const std::byte*>(array.data()), to, array, 0, item);
  return copy;
}

nb::object to_array(Tensor tensor) {
  auto* moved = new Tensor(std::move(tensor));
  const nb::capsule owner(moved,
                          [](void* memory) noexcept { delete static_cast<Tensor*>(memory); });
  std::vector<std::size_t> shape(moved->shape().begin(), moved->shape().end());
  nb::dlpack::dtype code = row_of(moved->dtype()).code;
  if (moved->dtype() == DType::kBF16) code = nb::dtype<std::uint16_t>();
  return nb::cast(
      nb::ndarray<nb::numpy>(moved->data(), shape.size(), shape.data(), owner, nullptr, code));
}

const Program& program_of(nb::handle compiled) {
  return nb::cast<const Compiled&>(compiled).program();
}
const RunOptions& options_of(nb::handle compiled) {
  return nb::cast<const Compiled&>(compiled).options();
}

HostCall host_call_of(nb::handle compiled) {
  compiled.inc_ref();
  return [&program = nb::cast<Compiled&>(compiled)](std::span<const Tensor> inputs) {
    return program.run(inputs, false);
  };
}

namespace {

nb::list run_compiled(Compiled& compiled, const nb::list& arrays,
                      const std::vector<std::size_t>& overwritten, bool reference) {
  const std::vector<ValueInfo> wanted = compiled.program().inputs();
  if (arrays.size() != wanted.size())
    throw UsageError(fmt::format("the Fusion '{}' has {} inputs; {} were given",
                                 compiled.program().name(), wanted.size(), arrays.size()));
  std::vector<Input> kept;
  std::vector<Tensor> inputs;
  kept.reserve(wanted.size());
  inputs.reserve(wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    kept.push_back(import_input(wanted[i].name.c_str(), arrays[i]));
    bool written = false;
    for (const std::size_t index : overwritten) written = written || index == i;
    inputs.push_back(to_tensor(wanted[i], kept[i], written));
  }
  compiled.need_own_threads();
  std::vector<Tensor> outputs;
  {
    const nb::gil_scoped_release release;
    outputs = compiled.run(inputs, reference);
  }
  nb::list results;
  for (Tensor& output : outputs) results.append(to_array(std::move(output)));
  return results;
}

std::vector<std::tuple<std::string, std::string, std::string>> describe(
    const std::vector<ValueInfo>& values) {
  std::vector<std::tuple<std::string, std::string, std::string>> rows;
  for (const ValueInfo& value : values)
    rows.emplace_back(value.name, std::string(row_of(value.dtype).name), value.shape);
  return rows;
}

}  // namespace

void bind_programs(nb::module_& m) {
  nb::class_<Compiled>(m, "Program")
      .def(
          "__init__",
          [](Compiled* self, const ops::FusionBuilder& fusion, int threads, bool check_numerics,
             bool excess_precision, const std::string& precision) {
            new (self) Compiled(fusion.build(), {.context = Context::process_default(),
                                                 .threads = threads,
                                                 .check_numerics = check_numerics,
                                                 .excess_precision = excess_precision,
                                                 .precision = precision});
          },
          "fusion"_a, "threads"_a, "check_numerics"_a, "excess_precision"_a, "precision"_a)
      .def_static(
          "from_text",
          [](const std::string& text, const std::string& source, int threads, bool check_numerics,
             bool excess_precision, const std::string& precision) {
            return std::make_unique<Compiled>(Program::from_text(text, source),
                                              RunOptions{.context = Context::process_default(),
                                                         .threads = threads,
                                                         .check_numerics = check_numerics,
                                                         .excess_precision = excess_precision,
                                                         .precision = precision});
          },
          "text"_a, "source"_a, "threads"_a, "check_numerics"_a, "excess_precision"_a,
          "precision"_a)
      .def("overwritten", [](const Compiled& self) { return overwritten_inputs(self.program()); })
      .def("run", &run_compiled, "arrays"_a, "overwritten"_a, "reference"_a)
      .def(
          "emit", [](const Compiled& self, const std::string& kind) { return self.emit(kind); },
          "kind"_a)
      .def("inputs", [](const Compiled& self) { return describe(self.program().inputs()); })
      .def("outputs", [](const Compiled& self) { return describe(self.program().outputs()); });
}

}  // namespace segfuse::python
