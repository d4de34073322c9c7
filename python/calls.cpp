#include "calls.h"

#include <utility>

#include "engines.h"

namespace segfuse::python {

namespace sc = semicrf;

namespace {

/// Arrays that a call writes, kept alive while it runs.
class Outputs {
 public:
  explicit Outputs(Device device) : device_(device) {}

  /// A view of elements of type T; empty for None.
  template <class T, int N>
  sc::View<T, N> take(const char* name, nb::handle object) {
    if (object.is_none()) return {};
    const Output& array = arrays_.emplace_back(import_output(name, object));
    if (device_of(array) != device_)
      throw UsageError("semicrf: output {} is on {}, but emission is on {}", name,
                       to_text(device_of(array)), to_text(device_));
    if (!has_dtype<T>(array))
      throw UsageError("semicrf: output {} is {}, expected {}", name, to_text(array.dtype()),
                       to_text(nb::dtype<T>()));
    need_rank(name, fmt::format("{} axes", N).c_str(), array, N);
    return view_of<T, N>(array);
  }

  /// The gradient of transition has its two or three axes.
  template <class T>
  sc::View<T, 3> take_transition(nb::handle object) {
    if (object.is_none()) return {};
    if (import_output("transition", object).ndim() == 3) return take<T, 3>("transition", object);
    const sc::View<T, 2> matrix = take<T, 2>("transition", object);
    return sc::with_leading_axis(matrix);
  }

  template <class T>
  sc::Gradients<T> take_gradients(const std::optional<GradientArrays>& arrays) {
    sc::Gradients<T> g;
    if (!arrays) return g;
    if (arrays->size() != 7)
      throw UsageError("semicrf: {} gradient arrays, expected 7", arrays->size());
    g.emission = take<T, 3>("emission gradient", (*arrays)[0]);
    g.transition = take_transition<T>((*arrays)[1]);
    g.duration = take<T, 2>("duration gradient", (*arrays)[2]);
    g.initial = take<T, 1>("initial gradient", (*arrays)[3]);
    g.final = take<T, 1>("final gradient", (*arrays)[4]);
    g.start = take<T, 3>("start gradient", (*arrays)[5]);
    g.end = take<T, 3>("end gradient", (*arrays)[6]);
    return g;
  }

 private:
  Device device_;
  std::vector<Output> arrays_;
};

/// Calls prepare(potentials, outputs), which returns what to do with an engine, and does it with
/// the engine of the problem's device.
template <class Prepare>
void run(const Problem& problem, const Prepare& prepare) {
  const Device device = problem.device();
  if (!device.is_cpu())
    throw UsageError(
        "semicrf: emission is on {}, and this build of segfuse has no engine for that device; "
        "move the arrays to the CPU",
        to_text(device));
  std::visit(
      [&](const auto& potentials) {
        Outputs outputs(device);
        const auto call = prepare(potentials, outputs);
        const nb::gil_scoped_release release;
        CpuEngine::instance().run(call);
      },
      problem.potentials());
}

template <class Potentials>
using ElementOf = std::remove_cv_t<std::remove_pointer_t<decltype(Potentials{}.emission.data())>>;

sc::View<const double, 1> take_weights(Outputs& arrays, nb::handle weights) {
  return arrays.take<double, 1>("weights", weights);
}

}  // namespace

void set_threads(int threads) {
  const nb::gil_scoped_release release;
  CpuEngine::instance().set_threads(threads);
}

int get_threads() {
  const nb::gil_scoped_release release;
  return CpuEngine::instance().threads();
}

void log_partition(const Problem& problem, nb::handle log_partition,
                   const std::optional<GradientArrays>& gradients, nb::handle weights) {
  run(problem, [&]<class T>(const sc::Potentials<T>& potentials, Outputs& outputs) {
    const sc::PartitionResult result{
        .log_partition = outputs.take<double, 1>("log_partition", log_partition), .status = {}};
    return [&potentials, result, g = outputs.take_gradients<T>(gradients),
            w = take_weights(outputs, weights)](sc::Engine& engine) {
      engine.log_partition(potentials, result, g, w);
    };
  });
}

void loss(const Problem& problem, const Segments& gold, nb::handle loss, nb::handle log_partition,
          nb::handle score, const std::optional<GradientArrays>& gradients, nb::handle weights) {
  run(problem, [&]<class T>(const sc::Potentials<T>& potentials, Outputs& outputs) {
    const sc::LossResult result{
        .loss = outputs.take<double, 1>("loss", loss),
        .log_partition = outputs.take<double, 1>("log_partition", log_partition),
        .score = outputs.take<double, 1>("score", score),
        .status = {}};
    return [&potentials, &gold, result, g = outputs.take_gradients<T>(gradients),
            w = take_weights(outputs, weights)](sc::Engine& engine) {
      engine.loss(potentials, gold.view(), result, g, w);
    };
  });
}

void score(const Problem& problem, const Segments& segments, nb::handle score) {
  run(problem, [&](const auto& potentials, Outputs& outputs) {
    return [&, out = outputs.take<double, 1>("score", score)](sc::Engine& engine) {
      engine.score(potentials, segments.view(), out);
    };
  });
}

void posteriors(const Problem& problem, nb::handle label, nb::handle start, nb::handle end,
                nb::handle boundary, nb::handle duration, nb::handle entropy,
                nb::handle log_partition) {
  run(problem, [&]<class T>(const sc::Potentials<T>& potentials, Outputs& outputs) {
    const sc::Posteriors<T> result{
        .label = outputs.take<T, 3>("label", label),
        .start = outputs.take<T, 3>("start", start),
        .end = outputs.take<T, 3>("end", end),
        .boundary = outputs.take<T, 2>("boundary", boundary),
        .duration = outputs.take<T, 3>("duration", duration),
        .entropy = outputs.take<double, 1>("entropy", entropy),
        .log_partition = outputs.take<double, 1>("log_partition", log_partition),
        .status = {}};
    return [&potentials, result](sc::Engine& engine) { engine.posteriors(potentials, result); };
  });
}

void segment_posteriors(const Problem& problem, const Segments& segments, nb::handle probability) {
  run(problem, [&](const auto& potentials, Outputs& outputs) {
    return [&, out = outputs.take<double, 1>("probability", probability)](sc::Engine& engine) {
      engine.segment_posteriors(potentials, segments.view(), out);
    };
  });
}

nb::tuple viterbi(const Problem& problem, nb::handle score) {
  sc::Segmentations best;
  run(problem, [&](const auto& potentials, Outputs& outputs) {
    const sc::ViterbiResult result{.score = outputs.take<double, 1>("score", score), .status = {}};
    return [&, result](sc::Engine& engine) { engine.viterbi(potentials, best, result); };
  });
  return to_numpy(std::move(best));
}

nb::tuple sample_prior(nb::handle initial, nb::handle transition, nb::handle duration,
                       std::int64_t rows, std::int64_t min_frames, std::uint64_t seed) {
  if (rows < 0) throw UsageError("semicrf: {} rows asked for, expected 0 or more", rows);
  Outputs arrays(Device{nb::device::cpu::value, 0});
  const sc::Prior prior{.initial = arrays.take<double, 1>("initial", initial),
                        .transition = arrays.take<double, 2>("transition", transition),
                        .duration = arrays.take<double, 2>("duration", duration)};
  sc::Segmentations drawn;
  {
    const nb::gil_scoped_release release;
    for (std::int64_t row = 0; row < rows; ++row)
      sc::sample_prior(prior, min_frames, seed, static_cast<std::uint64_t>(row), drawn);
  }
  return to_numpy(std::move(drawn));
}

}  // namespace segfuse::python
