#pragma once
// A call by XLA: what it is given, and how it is answered, on any platform.

#include <fmt/core.h>
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string_view>
#include <vector>

#include "segfuse/semicrf_tools.h"
#include "xla/operands.h"

namespace segfuse::python::xla {

/// What a call may be given, by their bits in the attribute `given`, in this order; segfuse.jax has
/// the same list. Directions are in the order of the eight scores.
enum Slot : int {
  kEmission,
  kTransition,
  kDuration,
  kInitial,
  kFinal,
  kStart,
  kEnd,
  kTail,
  kLengths,
  kLabels,
  kWeights,
  kAlong,
  kSlots = kAlong + 8
};
inline constexpr const char* kNames[] = {"emission", "transition", "duration", "initial",
                                         "final",    "start",      "end",      "tail",
                                         "lengths",  "labels",     "weights"};
/// Axes of the slots; those of transition are an attribute.
inline constexpr int kRanks[] = {3, 2, 2, 1, 1, 3, 3, 1, 1, 2, 1};
constexpr bool has_rows(int slot) {
  return slot == kEmission || slot == kStart || slot == kEnd || slot == kLengths ||
         slot == kLabels || slot == kWeights;
}

inline std::int64_t attribute_of(const CallFrame& frame, std::string_view name) {
  const Attributes& all = frame.attributes;
  for (std::int64_t i = 0; i < all.count; ++i) {
    if (std::string_view(all.names[i]->data, all.names[i]->size) != name) continue;
    const auto* scalar = static_cast<const Scalar*>(all.values[i]);
    if (all.kinds[i] == kScalarAttribute && scalar->type == Type::kS64)
      return *static_cast<const std::int64_t*>(scalar->value);
  }
  throw UsageError(fmt::format("segfuse: the attribute {} of a call by XLA is missing", name));
}

/// A call's operands by name.
struct Call {
  const CallFrame& frame;
  std::vector<Operand> inputs = std::vector<Operand>(kSlots);
  std::vector<Operand> outputs;

  explicit Call(const CallFrame& call) : frame(call) {
    const std::int64_t given = attribute("given");
    std::int64_t next = 0;
    for (int slot = 0; slot < kSlots; ++slot) {
      if ((given >> slot & 1) == 0) continue;
      if (next == frame.arguments.count) throw UsageError("semicrf: an operand is missing");
      inputs[static_cast<std::size_t>(slot)] = {name_of(slot), frame.arguments.values[next++],
                                                rank_of(slot),
                                                has_rows(slot < kAlong ? slot : slot - kAlong)};
    }
  }
  std::int64_t attribute(std::string_view name) const { return attribute_of(frame, name); }
  static const char* name_of(int slot) {
    return slot < kAlong ? kNames[slot] : kNames[slot - kAlong];
  }
  int rank_of(int slot) const {
    const int score = slot < kAlong ? slot : slot - kAlong;
    return score == kTransition ? static_cast<int>(attribute("transition_axes")) : kRanks[score];
  }
  const Operand& in(int slot) const { return inputs[static_cast<std::size_t>(slot)]; }
  /// The next output, with `rank` axes of its own.
  const Operand& out(const char* name, int rank) {
    if (static_cast<std::int64_t>(outputs.size()) == frame.results.count)
      throw UsageError(fmt::format("semicrf: the result {} is missing", name));
    return outputs.emplace_back(Operand{name, frame.results.values[outputs.size()], rank});
  }
  std::int64_t batch() const { return in(kEmission).extent(0); }

  /// Whether the rows of all groups can be those of one call of the engine.
  bool is_one(const Groups& groups) const {
    for (int slot = 0; slot < kSlots; ++slot) {
      const Operand& x = in(slot);
      if (!x) continue;
      const bool fits =
          x.rows ? groups.is_full(x) || (x.is_shared() && batch() == 1) : x.is_shared();
      if (!fits) return false;
    }
    return true;
  }
};

template <class T>
semicrf::View<const T, 3> transition_of(const Part& part, const Operand& x) {
  if (!x) return {};
  if (x.rank == 3) return part.view<const T, 3>(x);
  return semicrf::with_leading_axis(part.view<const T, 2>(x));
}

template <class T>
semicrf::Potentials<T> potentials_of(const Call& call, const Part& part) {
  semicrf::Potentials<T> potentials;
  potentials.emission = part.view<const T, 3>(call.in(kEmission));
  potentials.transition = transition_of<T>(part, call.in(kTransition));
  potentials.duration = part.view<const T, 2>(call.in(kDuration));
  potentials.initial = part.view<const T, 1>(call.in(kInitial));
  potentials.final = part.view<const T, 1>(call.in(kFinal));
  potentials.start = part.view<const T, 3>(call.in(kStart));
  potentials.end = part.view<const T, 3>(call.in(kEnd));
  if (const Operand& x = call.in(kLengths)) {
    if (x.is(Type::kS32))
      potentials.lengths = part.view<const std::int32_t, 1>(x);
    else
      potentials.lengths = part.view<const std::int64_t, 1>(x);
  }
  return potentials;
}

template <class T>
semicrf::LabelRules rules_of(const Call& call, const semicrf::Potentials<T>& potentials) {
  semicrf::LabelRules rules;
  rules.max_duration = call.in(kTail) ? std::max<std::int64_t>(1, potentials.emission.extent(1))
                                      : potentials.duration.extent(0);
  rules.classes = potentials.emission.extent(2);
  rules.ignore = call.attribute("ignore");
  if (call.attribute("split") != 0 || rules.max_duration == 1)
    rules.long_runs = semicrf::LongRuns::kSplit;
  return rules;
}

/// The gradients of the scores that a call is given, its outputs in their order.
struct GradientOutputs {
  std::vector<const Operand*> operands = std::vector<const Operand*>(8, nullptr);
  bool of_rows = true;

  explicit GradientOutputs(Call& call) {
    call.outputs.reserve(16);
    for (int slot = kEmission; slot <= kTail; ++slot) {
      if (!call.in(slot)) continue;
      operands[static_cast<std::size_t>(slot)] = &call.out(Call::name_of(slot), call.rank_of(slot));
      of_rows = of_rows && has_rows(slot);
    }
  }
  template <class T>
  semicrf::Gradients<T> views(const Part& part) const {
    const auto at = [&](int slot) {
      const Operand* x = operands[static_cast<std::size_t>(slot)];
      return x == nullptr ? Operand{} : *x;
    };
    semicrf::Gradients<T> g;
    g.emission = part.view<T, 3>(at(kEmission));
    if (const Operand x = at(kTransition))
      g.transition =
          x.rank == 3 ? part.view<T, 3>(x) : semicrf::with_leading_axis(part.view<T, 2>(x));
    g.duration = part.view<T, 2>(at(kDuration));
    g.initial = part.view<T, 1>(at(kInitial));
    g.final = part.view<T, 1>(at(kFinal));
    g.start = part.view<T, 3>(at(kStart));
    g.end = part.view<T, 3>(at(kEnd));
    return g;
  }
};

/// Calls body(inputs) for each call of the engine that a call of XLA needs.
template <class Inputs, class Body>
void for_parts(const Call& call, bool may_join, const Body& body) {
  std::vector<Operand> all = call.inputs;
  all.insert(all.end(), call.outputs.begin(), call.outputs.end());
  const Groups groups(all);
  if (may_join && call.is_one(groups)) {
    const Part part{groups, 0, true};
    return body(Inputs(call, part));
  }
  for (std::int64_t g = 0; g < groups.count(); ++g) {
    const Part part{groups, g, false};
    body(Inputs(call, part));
  }
}

inline Error* error(const CallFrame& frame, ErrorCode code, const char* message) {
  ErrorArguments arguments{sizeof(ErrorArguments), nullptr, message, code};
  return frame.api->create_error(&arguments);
}

/// XLA asks once what a handler was built for. The layout that is used here is that of all minor
/// versions, so the answer is XLA's own.
inline bool answers_question(const CallFrame& frame) {
  if (frame.extensions == nullptr || frame.extensions->type != kMetadataExtension) return false;
  Metadata& answer = *reinterpret_cast<MetadataExtension*>(frame.extensions)->metadata;
  answer.version.major = 0;
  answer.version.minor =
      frame.api != nullptr && frame.api->version.major == 0 ? frame.api->version.minor : 1;
  answer.traits = 0;
  return true;
}

template <class What>
Error* handle(CallFrame* frame) {
  if (answers_question(*frame)) return nullptr;
  try {
    What::call(*frame);
    return nullptr;
  } catch (const segfuse::Error& e) {
    return error(*frame, ErrorCode::kInvalidArgument, e.what());
  } catch (const std::exception& e) {
    return error(*frame, ErrorCode::kInternal, e.what());
  }
}

/// A handler of the CRF, by the type of the scores.
template <class What>
struct OfScores {
  static void call(const CallFrame& frame) {
    Call call(frame);
    if (call.in(kEmission).is(Type::kF64))
      What::template run<double>(call);
    else
      What::template run<float>(call);
  }
};

template <class What>
nanobind::capsule capsule() {
  Handler* const handler = &handle<What>;
  return nanobind::capsule(reinterpret_cast<void*>(handler));
}

}  // namespace segfuse::python::xla
