#pragma once
// How a call gets its arrays and its engine.

#include <fmt/core.h>

#include <optional>
#include <type_traits>
#include <vector>

#include "calls.h"
#include "engines.h"

namespace segfuse::python {

/// Further arrays of a call, kept alive while it runs.
class CallArrays {
 public:
  explicit CallArrays(Device device) : device_(device) {}

  /// What is to be written, as elements of type T; empty for None.
  template <class T, int N>
  semicrf::View<T, N> take(const char* name, nb::handle object) {
    if (object.is_none()) return {};
    const Output& array = outputs_.emplace_back(import_output(name, object));
    check<T, N>(name, array);
    return view_of<T, N>(array);
  }

  /// What is only read.
  template <class T, int N>
  semicrf::View<const T, N> read(const char* name, nb::handle object) {
    if (object.is_none()) return {};
    const Input& array = inputs_.emplace_back(import_input(name, object));
    check<T, N>(name, array);
    return view_of<const T, N>(array);
  }

  /// The gradient of transition has its two or three axes.
  template <class T>
  semicrf::View<T, 3> take_transition(nb::handle object) {
    if (object.is_none()) return {};
    if (import_output("transition", object).ndim() == 3) return take<T, 3>("transition", object);
    const semicrf::View<T, 2> matrix = take<T, 2>("transition", object);
    return semicrf::with_leading_axis(matrix);
  }

  /// The gradient of transition_scores has its three or four axes.
  template <class T>
  semicrf::View<T, 4> take_table(nb::handle object) {
    const char* name = "transition_scores gradient";
    if (object.is_none()) return {};
    if (import_output(name, object).ndim() == 4) return take<T, 4>(name, object);
    return semicrf::with_leading_axis(take<T, 3>(name, object));
  }

  /// The direction along transition has its two or three axes.
  template <class T>
  semicrf::View<const T, 3> read_transition(nb::handle object) {
    if (object.is_none()) return {};
    if (import_input("transition", object).ndim() == 3) return read<T, 3>("transition", object);
    return semicrf::with_leading_axis(read<T, 2>("transition", object));
  }

  template <class T>
  semicrf::Direction<T> read_direction(const nb::tuple& arrays) {
    if (arrays.size() != 8)
      throw UsageError(fmt::format("semicrf: {} arrays of a direction, expected 8", arrays.size()));
    semicrf::Direction<T> v;
    v.scores.emission = read<T, 3>("direction along emission", arrays[0]);
    v.scores.transition = read_transition<T>(arrays[1]);
    v.scores.duration = read<T, 2>("direction along duration", arrays[2]);
    v.scores.initial = read<T, 1>("direction along initial", arrays[3]);
    v.scores.final = read<T, 1>("direction along final", arrays[4]);
    v.scores.start = read<T, 3>("direction along start", arrays[5]);
    v.scores.end = read<T, 3>("direction along end", arrays[6]);
    v.tail = read<double, 1>("direction along tail", arrays[7]);
    return v;
  }

  template <class T>
  semicrf::Gradients<T> take_gradients(const std::optional<GradientArrays>& arrays) {
    semicrf::Gradients<T> g;
    if (!arrays) return g;
    if (arrays->size() != 9)
      throw UsageError(fmt::format("semicrf: {} gradient arrays, expected 9", arrays->size()));
    g.emission = take<T, 3>("emission gradient", (*arrays)[0]);
    g.transition = take_transition<T>((*arrays)[1]);
    g.duration = take<T, 2>("duration gradient", (*arrays)[2]);
    g.initial = take<T, 1>("initial gradient", (*arrays)[3]);
    g.final = take<T, 1>("final gradient", (*arrays)[4]);
    g.start = take<T, 3>("start gradient", (*arrays)[5]);
    g.end = take<T, 3>("end gradient", (*arrays)[6]);
    g.segment_scores = take<T, 4>("segment_scores gradient", (*arrays)[7]);
    g.transition_scores = take_table<T>((*arrays)[8]);
    return g;
  }

 private:
  template <class T, int N, class Array>
  void check(const char* name, const Array& array) const {
    if (device_of(array) != device_)
      throw UsageError(fmt::format("semicrf: {} is on {}, but emission is on {}", name,
                                   to_text(device_of(array)), to_text(device_)));
    if (!has_dtype<T>(array))
      throw UsageError(fmt::format("semicrf: {} is {}, expected {}", name, to_text(array.dtype()),
                                   to_text(nb::dtype<T>())));
    if (array.ndim() != N)
      throw UsageError(
          fmt::format("semicrf: {} has shape {}, expected {} axes", name, shape_text(array), N));
  }

  Device device_;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
};

/// What a call does on each engine that can do it: functions of semicrf::Engine&,
/// semicrf::Inference& (for scopes) and OnDevice&.
template <class... Functions>
struct Overloads : Functions... {
  using Functions::operator()...;
};

template <class Call>
void run_on_cpu(const Scope* scope, const Call& call) {
  CpuEngine& engine = CpuEngine::instance();
  if constexpr (!std::is_invocable_v<Call, semicrf::Inference&>)
    engine.run<semicrf::Engine>(call);
  else if constexpr (!std::is_invocable_v<Call, semicrf::Engine&>)
    engine.run<semicrf::Inference>(call);
  else if (scope == nullptr)
    engine.run<semicrf::Engine>(call);
  else
    engine.run<semicrf::Inference>(call);
}

template <class Call>
void run_on_cuda(const Problem& problem, const Scope* scope, const Call& call) {
  if constexpr (std::is_invocable_v<Call, OnDevice&>) {
    if (scope == nullptr) {
      CudaEngines::instance().run(problem.device().index, problem.stream(), call);
      return;
    }
  }
  throw UsageError(fmt::format(
      "semicrf: emission is on {}, and this function, or its constraints or tail, work on the CPU "
      "only; move the arrays there",
      to_text(problem.device())));
}

/// Calls prepare(potentials, arrays), which returns what to do with an engine, and does it with the
/// one of the problem's device. The only place that looks at the device.
template <class Prepare>
void run(const Problem& problem, const Scope* scope, const Prepare& prepare) {
  const Device device = problem.device();
  if (!device.is_cpu() && !device.is_cuda())
    throw UsageError(
        fmt::format("semicrf: emission is on {}; segfuse works on the CPU and on CUDA devices",
                    to_text(device)));
  std::visit(
      [&](const auto& potentials) {
        if (!device.is_cpu() &&
            !(potentials.segment_scores.empty() && potentials.transition_scores.empty()))
          throw UsageError(
              fmt::format("semicrf: emission is on {}, and segment_scores and transition_scores "
                          "work on the CPU only; move the arrays there",
                          to_text(device)));
        CallArrays arrays(device);
        const auto call = prepare(potentials, arrays);
        const nb::gil_scoped_release release;
        if (device.is_cpu())
          run_on_cpu(scope, call);
        else
          run_on_cuda(problem, scope, call);
      },
      problem.potentials());
}

template <class Prepare>
void run(const Problem& problem, const Prepare& prepare) {
  run(problem, nullptr, prepare);
}

}  // namespace segfuse::python
