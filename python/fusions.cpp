// segfuse._native: FusionBuilder and what belongs to it. python/segfuse/ has the public faces.

#include <fmt/core.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "dtypes.h"
#include "programs.h"
#include "segfuse/ops.h"

namespace segfuse::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;
using ops::FusionBuilder;
using ops::OperationInfo;
using ops::OptionalAxes;
using ops::Size;
using ops::Value;

const std::vector<OperationInfo>& table() {
  static const std::vector<OperationInfo> all = ops::operations();
  return all;
}

/// What an attribute's type is called in messages.
std::string_view words_for(std::string_view type) {
  if (type == "int") return "an int";
  if (type == "ints") return "ints";
  if (type == "float") return "a number";
  if (type == "dtype") return "the name of an element type";
  return "sizes";
}

ops::Attribute to_attribute(const std::string& operation, const std::string& name,
                            const std::string& type, nb::handle value) {
  const auto as = [&]<class T>(T converted) {
    if (nb::try_cast(value, converted)) return converted;
    throw UsageError(fmt::format("{}: {} is {}, expected {}", operation, name,
                                 nb::repr(value).c_str(), words_for(type)));
  };
  if (type == "int") return as(std::int64_t{});
  if (type == "ints") return as(std::vector<std::int64_t>{});
  if (type == "float") return as(double{});
  if (type == "dtype") return dtype_of_name(as(std::string{}));
  if (type == "body")
    throw UsageError(
        fmt::format("{}: its {} is a program; call segfuse.{}", operation, name, operation));
  return as(std::vector<Size>{});
}

std::vector<Value> apply(FusionBuilder& fusion, const std::string& operation,
                         const std::vector<Value>& operands, const nb::list& attributes) {
  std::vector<ops::Attribute> converted;
  for (const OperationInfo& row : table()) {
    if (row.name != operation) continue;
    if (attributes.size() != row.attributes.size())
      throw UsageError(fmt::format("{}: {} attributes were given, expected {}", operation,
                                   attributes.size(), row.attributes.size()));
    for (std::size_t i = 0; i < row.attributes.size(); ++i)
      converted.push_back(to_attribute(operation, row.attributes[i].first, row.attributes[i].second,
                                       attributes[i]));
  }
  return fusion.apply(operation, operands, converted);
}

std::int64_t evaluate(const Size& size, const nb::dict& numbers) {
  return size.evaluate([&](std::string_view name) {
    const nb::str key(name.data(), name.size());
    if (!numbers.contains(key))
      throw UsageError(fmt::format("the size {} is not known here", name));
    return nb::cast<std::int64_t>(numbers[key]);
  });
}

void bind_sizes(nb::module_& m) {
  nb::class_<Size>(m, "Size")
      .def_static(
          "of", [](std::int64_t number) { return Size(number); }, "number"_a)
      .def_static(
          "named", [](std::string_view name) { return Size(name); }, "name"_a)
      .def("number", &Size::number)
      .def("text", &Size::text)
      .def("evaluate", &evaluate, "numbers"_a)
      .def(
          "add", [](const Size& a, const Size& b) { return a + b; }, "other"_a)
      .def(
          "sub", [](const Size& a, const Size& b) { return a - b; }, "other"_a)
      .def(
          "mul", [](const Size& a, const Size& b) { return a * b; }, "other"_a)
      .def("floordiv", [](const Size& a, std::int64_t by) { return floordiv(a, by); }, "divisor"_a);
}

void bind_builder(nb::module_& m) {
  nb::class_<Value>(m, "Value")
      .def("dtype", [](const Value& value) { return std::string(row_of(value.dtype()).name); })
      .def("shape", &Value::shape)
      .def("id", &Value::id)
      .def("text", &Value::text);
  auto of = [](std::string_view name) { return dtype_of_name(name); };
  nb::class_<FusionBuilder>(m, "FusionBuilder")
      .def(nb::init<std::string>(), "name"_a)
      .def(
          "input",
          [of](FusionBuilder& f, std::string name, std::string_view dtype,
               const std::vector<Size>& shape) {
            return f.input(std::move(name), of(dtype), shape);
          },
          "name"_a, "dtype"_a, "shape"_a)
      .def("output", &FusionBuilder::output, "value"_a, "name"_a)
      .def("alias", &FusionBuilder::alias, "output"_a, "input"_a)
      .def(
          "constant",
          [of](FusionBuilder& f, double value, std::string_view dtype) {
            return f.constant(value, of(dtype));
          },
          "value"_a, "dtype"_a)
      .def(
          "full",
          [of](FusionBuilder& f, double value, const std::vector<Size>& shape,
               std::string_view dtype) { return f.full(value, shape, of(dtype)); },
          "value"_a, "shape"_a, "dtype"_a)
      .def(
          "iota",
          [of](FusionBuilder& f, const Size& length, std::string_view dtype) {
            return f.iota(length, of(dtype));
          },
          "length"_a, "dtype"_a)
      .def(
          "size",
          [of](FusionBuilder& f, const Size& size, std::string_view dtype) {
            return f.size(size, of(dtype));
          },
          "size"_a, "dtype"_a)
      .def("apply", &apply, "operation"_a, "operands"_a, "attributes"_a)
      .def("require", &FusionBuilder::require, "a"_a, "b"_a)
      .def("canonical", &FusionBuilder::canonical, "size"_a)
      .def("divide", &FusionBuilder::divide, "a"_a, "b"_a)
      .def("text", &FusionBuilder::text);
  m.def(
      "vjp",
      [](const std::vector<Value>& outputs, const std::vector<Value>& cotangents,
         const std::vector<Value>& wrt) { return ops::vjp(outputs, cotangents, wrt); },
      "outputs"_a, "cotangents"_a, "wrt"_a);
  m.def(
      "scan",
      [](const FusionBuilder& body, const std::vector<Value>& carries,
         const std::vector<Value>& sequences, const std::vector<Value>& constants,
         const Size& length, bool reverse) {
        const ops::Scanned all = ops::scan(body, carries, sequences, constants, length, reverse);
        return std::pair(all.carries, all.stacked);
      },
      "body"_a, "carries"_a, "sequences"_a, "constants"_a, "length"_a, "reverse"_a);
  m.def("operations", [] {
    nb::list all;
    for (const OperationInfo& row : table())
      all.append(nb::make_tuple(row.name, row.kind, row.types, row.domain, row.min_operands,
                                row.max_operands, row.results, row.attributes));
    return all;
  });
}

using Norm = Value (*)(const Value&, double);

void bind_compositions(nb::module_& m) {
  m.def(
      "cast",
      [](const Value& a, std::string_view dtype) { return ops::cast(a, dtype_of_name(dtype)); },
      "a"_a, "dtype"_a);
  m.def("mean", &ops::mean, "a"_a, "axes"_a.none(), "keep"_a);
  m.def("var", &ops::var, "a"_a, "axes"_a.none(), "keep"_a, "correction"_a);
  m.def(
      "reduce",
      [](const std::string& name, const Value& a, const OptionalAxes& axes, bool keep) {
        using Reduction = Value (*)(const Value&, const OptionalAxes&, bool);
        constexpr std::pair<const char*, Reduction> kAll[] = {{"sum", &ops::sum},
                                                              {"prod", &ops::prod},
                                                              {"max", &ops::max},
                                                              {"min", &ops::min},
                                                              {"logsumexp", &ops::logsumexp}};
        for (const auto& [known, function] : kAll)
          if (name == known) return function(a, axes, keep);
        throw UsageError(fmt::format("there is no reduction '{}'", name));
      },
      "operation"_a, "a"_a, "axes"_a.none(), "keep"_a);
  m.def("broadcast_to", &ops::broadcast_to, "a"_a, "shape"_a);
  m.def("reshape", &ops::reshape, "a"_a, "shape"_a);
  m.def("random_uniform", &ops::random_uniform, "seed"_a, "shape"_a);
  m.def("dropout", &ops::dropout, "a"_a, "seed"_a, "rate"_a);
  m.def("softmax", &ops::softmax, "a"_a, "axis"_a);
  m.def("log_softmax", &ops::log_softmax, "a"_a, "axis"_a);
  m.def("gelu", &ops::gelu, "a"_a);
  m.def("gelu_tanh", &ops::gelu_tanh, "a"_a);
  m.def("silu", &ops::silu, "a"_a);
  m.def("layer_norm", static_cast<Norm>(&ops::layer_norm), "a"_a, "epsilon"_a);
  m.def("rms_norm", static_cast<Norm>(&ops::rms_norm), "a"_a, "epsilon"_a);
  m.def("instance_norm", static_cast<Norm>(&ops::instance_norm), "a"_a, "epsilon"_a);
  m.def(
      "batch_norm",
      [](const Value& a, const Value& scale, const Value& shift, double epsilon) {
        const ops::BatchNorm result = ops::batch_norm(a, scale, shift, epsilon);
        return std::tuple(result.value, result.mean, result.variance);
      },
      "a"_a, "scale"_a, "shift"_a, "epsilon"_a);
}

}  // namespace

void bind_fusions(nb::module_& m) {
  bind_sizes(m);
  bind_builder(m);
  bind_compositions(m);
}

}  // namespace segfuse::python
