#include "xla/handlers.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <optional>
#include <string>

#include "calls.h"
#include "engines.h"
#include "segfuse/semicrf_tools.h"
#include "xla/call.h"

namespace segfuse::python::xla {
namespace {

namespace sc = semicrf;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// A vector of either float type, as doubles.
std::vector<double> doubles(const Part& part, const Operand& x) {
  std::vector<double> values;
  const auto read = [&](const auto& view) {
    for (std::int64_t i = 0; i < view.extent(0); ++i)
      values.push_back(static_cast<double>(view(i)));
  };
  x.is(Type::kF32) ? read(part.view<const float, 1>(x)) : read(part.view<const double, 1>(x));
  return values;
}

void store(const Part& part, const Operand& x, const std::vector<double>& values) {
  const auto write = [&](const auto& view) {
    using Element = std::remove_reference_t<decltype(view(0))>;
    for (std::int64_t i = 0; i < view.extent(0); ++i)
      view(i) = static_cast<Element>(values[static_cast<std::size_t>(i)]);
  };
  x.is(Type::kF32) ? write(part.view<float, 1>(x)) : write(part.view<double, 1>(x));
}

/// What one call of the engine gets.
template <class T>
struct Inputs {
  const Call& call;
  const Part& part;
  sc::Potentials<T> potentials;
  std::vector<double> tail;
  std::vector<double> weights;
  std::vector<std::uint8_t> bad_weight;
  std::optional<sc::Segmentations> gold;
  std::vector<std::int64_t> gold_frames;
  std::optional<sc::KnownFrames> known;

  Inputs(const Call& all, const Part& of)
      : call(all), part(of), potentials(potentials_of<T>(all, of)) {
    if (const Operand& x = call.in(kTail)) tail = doubles(part, x);
    if (const Operand& x = call.in(kWeights)) weights = doubles(part, x);
    for (double& w : weights) {
      bad_weight.push_back(std::isfinite(w) ? 0 : 1);
      if (!std::isfinite(w)) w = 0.0;
    }
    if (const Operand& x = call.in(kLabels)) read_gold(x);
  }
  Inputs(const Inputs&) = delete;
  Inputs(Inputs&&) = delete;
  ~Inputs() = default;

  void read_gold(const Operand& labels) {
    const std::int64_t frames = potentials.emission.extent(1);
    const sc::LabelRules rules = rules_of(call, potentials);
    gold = labels.is(Type::kS32)
               ? sc::segmentations_from_labels(part.view<const std::int32_t, 2>(labels),
                                               potentials.lengths, rules)
               : sc::segmentations_from_labels(part.view<const std::int64_t, 2>(labels),
                                               potentials.lengths, rules);
    known.emplace(gold->view(), frames);
    if (!potentials.lengths.empty()) return;
    for (std::int64_t b = 0; b < gold->rows(); ++b) {
      std::int64_t covered = 0;
      for (std::int64_t i = gold->row_pointer[static_cast<std::size_t>(b)];
           i < gold->row_pointer[static_cast<std::size_t>(b) + 1]; ++i)
        covered += gold->duration[static_cast<std::size_t>(i)];
      gold_frames.push_back(covered);
    }
    potentials.lengths = sc::View<const std::int64_t, 1>(gold_frames);
  }
  std::int64_t rows() const { return potentials.emission.extent(0); }
  /// With gold: all labels and boundaries are known.
  sc::Scope scope() const {
    sc::Scope scope;
    if (known) scope.constraints = known->constraints();
    if (!tail.empty()) scope.tail = tail;
    return scope;
  }
  sc::View<const double, 1> given_weights() const {
    return weights.empty() ? sc::View<const double, 1>() : sc::View<const double, 1>(weights);
  }
  bool all_finite() const {
    return std::none_of(bad_weight.begin(), bad_weight.end(), [](auto bad) { return bad != 0; });
  }

  /// Values of the rows and their gradients: the loss with gold, else the log-partition.
  void evaluate(const sc::View<double, 1>& value, const sc::Gradients<T>& gradients,
                const sc::View<double, 1>& by_tail) const {
    const auto w = given_weights();
    CpuEngine& cpu = CpuEngine::instance();
    if (!tail.empty()) {
      cpu.run<sc::Inference>([&](sc::Inference& inference) {
        if (!gold)
          return inference.log_partition(potentials, scope(), {value, {}}, gradients, by_tail, w);
        sc::LossResult result;
        result.loss = value;
        inference.partial_loss(potentials, scope(), result, gradients, by_tail, w);
      });
      return;
    }
    cpu.run<sc::Engine>([&](sc::Engine& engine) {
      if (!gold) return engine.log_partition(potentials, {value, {}}, gradients, w);
      sc::LossResult result;
      result.loss = value;
      engine.loss(potentials, gold->view(), result, gradients, w);
    });
  }
};

/// The tail's part; and NaN where a weight that is not finite reaches.
template <class T>
void finish(const GradientOutputs& outputs, const Inputs<T>& inputs, std::vector<double> by_tail) {
  const bool finite = inputs.all_finite();
  if (!finite) std::fill(by_tail.begin(), by_tail.end(), kNaN);
  if (const Operand* tail = outputs.operands[kTail]) store(inputs.part, *tail, by_tail);
  for (int slot = kEmission; slot < kTail && !finite; ++slot) {
    const Operand* x = outputs.operands[static_cast<std::size_t>(slot)];
    if (x == nullptr || x->size() == 0) continue;
    const std::int64_t rows = has_rows(slot) ? inputs.rows() : 1;
    const std::int64_t size = x->size() * (inputs.part.all ? inputs.part.groups.count() : 1);
    const Part& part = inputs.part;
    auto* first = static_cast<T*>(x->buffer->data) +
                  (part.all ? 0 : part.groups.index(*x, part.group) * x->size());
    for (std::int64_t b = 0; b < rows; ++b)
      if (rows == 1 ? !finite : inputs.bad_weight[static_cast<std::size_t>(b)] != 0)
        std::fill_n(first + b * (size / rows), size / rows, static_cast<T>(kNaN));
  }
}

struct Value {
  template <class T>
  static void run(Call& call) {
    call.outputs.reserve(1);
    const Operand& out = call.out("value", 1);
    for_parts<Inputs<T>>(call, true, [&](const Inputs<T>& inputs) {
      std::vector<double> value(static_cast<std::size_t>(inputs.rows()));
      inputs.evaluate(value, {}, {});
      store(inputs.part, out, value);
    });
  }
};

/// Gradients, behind the values of the same call of the engine if they are wanted.
template <bool kWithValues>
struct Gradients {
  template <class T>
  static void run(Call& call) {
    call.outputs.reserve(16);
    const Operand values = kWithValues ? call.out("value", 1) : Operand{};
    const GradientOutputs outputs(call);
    for_parts<Inputs<T>>(call, outputs.of_rows, [&](const Inputs<T>& inputs) {
      std::vector<double> value(kWithValues ? static_cast<std::size_t>(inputs.rows()) : 0);
      std::vector<double> tail(inputs.tail.size());
      const auto view = [](std::vector<double>& numbers) {
        return numbers.empty() ? sc::View<double, 1>() : sc::View<double, 1>(numbers);
      };
      inputs.evaluate(view(value), outputs.views<T>(inputs.part), view(tail));
      if (kWithValues) store(inputs.part, values, value);
      finish(outputs, inputs, tail);
    });
  }
};

/// The derivative of each row's value along a direction, then the gradients' derivatives.
struct Along {
  template <class T>
  static void run(Call& call) {
    call.outputs.reserve(16);
    const Operand out = call.out("derivative", 1);
    const GradientOutputs outputs(call);
    for_parts<Inputs<T>>(call, outputs.of_rows, [&](const Inputs<T>& inputs) {
      const Part& part = inputs.part;
      const auto slot = [&](int score) { return call.in(kAlong + score); };
      sc::Direction<T> along;
      along.scores.emission = part.view<const T, 3>(slot(kEmission));
      along.scores.transition = transition_of<T>(part, slot(kTransition));
      along.scores.duration = part.view<const T, 2>(slot(kDuration));
      along.scores.initial = part.view<const T, 1>(slot(kInitial));
      along.scores.final = part.view<const T, 1>(slot(kFinal));
      along.scores.start = part.view<const T, 3>(slot(kStart));
      along.scores.end = part.view<const T, 3>(slot(kEnd));
      std::vector<double> along_tail;
      if (const Operand x = slot(kTail)) {
        along_tail = doubles(part, x);
        along.tail = along_tail;
      }
      std::vector<double> derivative(static_cast<std::size_t>(inputs.rows()));
      std::vector<double> tail(inputs.tail.size());
      sc::AlongResult<T> result;
      result.derivative = derivative;
      result.product = outputs.views<T>(part);
      if (!tail.empty()) result.tail_product = tail;
      CpuEngine::instance().run<sc::Inference>([&](sc::Inference& inference) {
        inference.derivatives_along(inputs.potentials, inputs.scope(), inputs.gold.has_value(),
                                    along, result, inputs.given_weights());
      });
      store(part, out, derivative);
      finish(outputs, inputs, tail);
    });
  }
};

struct Posteriors {
  template <class T>
  static void run(Call& call) {
    call.outputs.reserve(7);
    const Operand& label = call.out("label", 3);
    const Operand& start = call.out("start", 3);
    const Operand& end = call.out("end", 3);
    const Operand& boundary = call.out("boundary", 2);
    const Operand& duration = call.out("duration", 3);
    const Operand& entropy = call.out("entropy", 1);
    const Operand& log_partition = call.out("log_partition", 1);
    for_parts<Inputs<T>>(call, true, [&](const Inputs<T>& inputs) {
      const Part& part = inputs.part;
      std::vector<double> h(static_cast<std::size_t>(inputs.rows()));
      std::vector<double> z(h.size());
      sc::Posteriors<T> p;
      p.label = part.view<T, 3>(label);
      p.start = part.view<T, 3>(start);
      p.end = part.view<T, 3>(end);
      p.boundary = part.view<T, 2>(boundary);
      p.duration = part.view<T, 3>(duration);
      p.entropy = h;
      p.log_partition = z;
      CpuEngine& cpu = CpuEngine::instance();
      if (inputs.tail.empty())
        cpu.run<sc::Engine>([&](sc::Engine& engine) { engine.posteriors(inputs.potentials, p); });
      else
        cpu.run<sc::Inference>([&](sc::Inference& inference) {
          inference.posteriors(inputs.potentials, inputs.scope(), p);
        });
      store(part, entropy, h);
      store(part, log_partition, z);
    });
  }
};

/// The best segmentation of each row, in arrays with room for one of T segments.
struct Viterbi {
  template <class T>
  static void run(Call& call) {
    call.outputs.reserve(6);
    const Operand& score = call.out("score", 1);
    const Operand& count = call.out("count", 1);
    const Operand& start = call.out("start", 2);
    const Operand& duration = call.out("duration", 2);
    const Operand& label = call.out("label", 2);
    const Operand& labels = call.out("labels", 2);
    const std::int64_t ignore = call.attribute("ignore");
    for_parts<Inputs<T>>(call, true, [&](const Inputs<T>& inputs) {
      std::vector<double> best_score(static_cast<std::size_t>(inputs.rows()));
      const sc::Segmentations best = decode(inputs, best_score);
      const Part& part = inputs.part;
      store(part, score, best_score);
      const auto counts = part.view<std::int32_t, 1>(count);
      const auto starts = part.view<std::int32_t, 2>(start);
      const auto durations = part.view<std::int32_t, 2>(duration);
      const auto segment_labels = part.view<std::int32_t, 2>(label);
      for (std::int64_t b = 0; b < inputs.rows(); ++b) {
        const std::int64_t first = best.row_pointer[static_cast<std::size_t>(b)];
        const std::int64_t n = best.row_pointer[static_cast<std::size_t>(b) + 1] - first;
        counts(b) = static_cast<std::int32_t>(n);
        for (std::int64_t i = 0; i < starts.extent(1); ++i) {
          const auto at = static_cast<std::size_t>(first + i);
          starts(b, i) = i < n ? best.start[at] : 0;
          durations(b, i) = i < n ? best.duration[at] : 0;
          segment_labels(b, i) = i < n ? best.label[at] : static_cast<std::int32_t>(ignore);
        }
      }
      sc::labels_from_segmentations(best.view(), part.view<std::int32_t, 2>(labels),
                                    static_cast<std::int32_t>(ignore));
    });
  }
  template <class T>
  static sc::Segmentations decode(const Inputs<T>& inputs, std::vector<double>& score) {
    sc::Segmentations best;
    CpuEngine& cpu = CpuEngine::instance();
    if (inputs.tail.empty()) {
      cpu.run<sc::Engine>(
          [&](sc::Engine& engine) { engine.viterbi(inputs.potentials, best, {score, {}}); });
      return best;
    }
    sc::SegmentationLists lists;
    cpu.run<sc::Inference>([&](sc::Inference& inference) {
      inference.k_best(inputs.potentials, inputs.scope(), 1, lists);
    });
    return first_of_each(std::move(lists), score);
  }
};

}  // namespace

nanobind::dict handlers() {
  nanobind::dict all;
  all["segfuse_crf_value"] = capsule<OfScores<Value>>();
  all["segfuse_crf_gradients"] = capsule<OfScores<Gradients<false>>>();
  all["segfuse_crf_weighted"] = capsule<OfScores<Gradients<true>>>();
  all["segfuse_crf_along"] = capsule<OfScores<Along>>();
  all["segfuse_crf_posteriors"] = capsule<OfScores<Posteriors>>();
  all["segfuse_crf_viterbi"] = capsule<OfScores<Viterbi>>();
  return all;
}

}  // namespace segfuse::python::xla
