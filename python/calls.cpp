#include "calls.h"

#include <fmt/core.h>

#include <limits>
#include <utility>

#include "run.h"

namespace segfuse::python {

namespace sc = semicrf;

void set_threads(int threads) {
  const nb::gil_scoped_release release;
  CpuEngine::instance().set_threads(threads);
}

int get_threads() {
  const nb::gil_scoped_release release;
  return CpuEngine::instance().threads();
}

void log_partition(const Problem& problem, const Scope* scope, nb::handle log_partition,
                   const std::optional<GradientArrays>& gradients, nb::handle tail_gradient,
                   nb::handle weights) {
  run(problem, scope, [&]<class T>(const sc::Potentials<T>& potentials, CallArrays& arrays) {
    const sc::PartitionResult result{
        .log_partition = arrays.take<double, 1>("log_partition", log_partition), .status = {}};
    const sc::Gradients<T> g = arrays.take_gradients<T>(gradients);
    const auto tail = arrays.take<double, 1>("tail gradient", tail_gradient);
    const auto w = arrays.read<double, 1>("weights", weights);
    return Overloads{[&potentials, result, g, w](sc::Engine& engine) {
                       engine.log_partition(potentials, result, g, w);
                     },
                     [&potentials, scope, result, g, tail, w](sc::Inference& inference) {
                       inference.log_partition(potentials, scope->scope(), result, g, tail, w);
                     },
                     [&potentials, result, g, w](OnDevice& on) {
                       on.engine.log_partition(potentials, result, g, w, on.stream);
                     }};
  });
}

void loss(const Problem& problem, const Segments& gold, nb::handle loss, nb::handle log_partition,
          nb::handle score, const std::optional<GradientArrays>& gradients, nb::handle weights) {
  run(problem, [&]<class T>(const sc::Potentials<T>& potentials, CallArrays& arrays) {
    const sc::LossResult result{
        .loss = arrays.take<double, 1>("loss", loss),
        .log_partition = arrays.take<double, 1>("log_partition", log_partition),
        .score = arrays.take<double, 1>("score", score),
        .status = {}};
    const sc::Gradients<T> g = arrays.take_gradients<T>(gradients);
    const auto w = arrays.read<double, 1>("weights", weights);
    gold.need_device(problem.device());
    return Overloads{[&potentials, &gold, result, g, w](sc::Engine& engine) {
                       engine.loss(potentials, gold.view(), result, g, w);
                     },
                     [&potentials, &gold, result, g, w](OnDevice& on) {
                       on.engine.loss(potentials, gold.view(), result, g, w, on.stream);
                     }};
  });
}

void score(const Problem& problem, const Segments& segments, nb::handle score) {
  run(problem, [&](const auto& potentials, CallArrays& arrays) {
    const auto out = arrays.take<double, 1>("score", score);
    segments.need_device(problem.device());
    return Overloads{[&potentials, &segments, out](sc::Engine& engine) {
                       engine.score(potentials, segments.view(), out);
                     },
                     [&potentials, &segments, out](OnDevice& on) {
                       sc::LossResult result;
                       result.score = out;
                       on.engine.loss(potentials, segments.view(), result, {}, {}, on.stream);
                     }};
  });
}

void posteriors(const Problem& problem, const Scope* scope, nb::handle label, nb::handle start,
                nb::handle end, nb::handle boundary, nb::handle duration, nb::handle entropy,
                nb::handle log_partition) {
  run(problem, scope, [&]<class T>(const sc::Potentials<T>& potentials, CallArrays& arrays) {
    const sc::Posteriors<T> result{
        .label = arrays.take<T, 3>("label", label),
        .start = arrays.take<T, 3>("start", start),
        .end = arrays.take<T, 3>("end", end),
        .boundary = arrays.take<T, 2>("boundary", boundary),
        .duration = arrays.take<T, 3>("duration", duration),
        .entropy = arrays.take<double, 1>("entropy", entropy),
        .log_partition = arrays.take<double, 1>("log_partition", log_partition),
        .status = {}};
    return Overloads{
        [&potentials, result](sc::Engine& engine) { engine.posteriors(potentials, result); },
        [&potentials, scope, result](sc::Inference& inference) {
          inference.posteriors(potentials, scope->scope(), result);
        },
        [&potentials, result](OnDevice& on) {
          on.engine.posteriors(potentials, result, on.stream);
        }};
  });
}

void segment_posteriors(const Problem& problem, const Segments& segments, nb::handle probability) {
  run(problem, [&](const auto& potentials, CallArrays& arrays) {
    segments.need_device(Device{nb::device::cpu::value, 0});
    return [&, out = arrays.take<double, 1>("probability", probability)](sc::Engine& engine) {
      engine.segment_posteriors(potentials, segments.view(), out);
    };
  });
}

sc::Segmentations first_of_each(sc::SegmentationLists lists, const sc::View<double, 1>& score) {
  sc::Segmentations& all = lists.segmentations;
  std::vector<std::int64_t> row_pointer{0};
  for (std::size_t b = 0; b + 1 < lists.list_pointer.size(); ++b) {
    const auto list = static_cast<std::size_t>(lists.list_pointer[b]);
    const bool found = lists.list_pointer[b + 1] > lists.list_pointer[b];
    row_pointer.push_back(found ? all.row_pointer[list + 1] : row_pointer.back());
    if (!score.empty())
      score(b) = found ? lists.score[list] : -std::numeric_limits<double>::infinity();
  }
  all.row_pointer = std::move(row_pointer);
  return std::move(all);
}

nb::tuple viterbi(const Problem& problem, const Scope* scope, nb::handle score) {
  sc::Segmentations best;
  run(problem, scope, [&](const auto& potentials, CallArrays& arrays) {
    const sc::ViterbiResult result{.score = arrays.take<double, 1>("score", score), .status = {}};
    return Overloads{[&, result](sc::Engine& engine) { engine.viterbi(potentials, best, result); },
                     [&, scope, result](sc::Inference& inference) {
                       sc::SegmentationLists lists;
                       inference.k_best(potentials, scope->scope(), 1, lists);
                       best = first_of_each(std::move(lists), result.score);
                     }};
  });
  return to_numpy(std::move(best));
}

namespace {

sc::DeviceSegmentations columns_of(CallArrays& arrays, nb::handle row_pointer, nb::handle start,
                                   nb::handle duration, nb::handle label) {
  return {.row_pointer = arrays.take<std::int64_t, 1>("row_pointer", row_pointer),
          .start = arrays.take<std::int32_t, 1>("start", start),
          .duration = arrays.take<std::int32_t, 1>("duration", duration),
          .label = arrays.take<std::int32_t, 1>("label", label)};
}

}  // namespace

void viterbi_on_device(const Problem& problem, nb::handle row_pointer, nb::handle start,
                       nb::handle duration, nb::handle label, nb::handle score) {
  run(problem, [&](const auto& potentials, CallArrays& arrays) {
    const sc::DeviceSegmentations best = columns_of(arrays, row_pointer, start, duration, label);
    const sc::ViterbiResult result{.score = arrays.take<double, 1>("score", score), .status = {}};
    return Overloads{[](sc::Engine&) { throw UsageError("semicrf: these arrays are on the CPU"); },
                     [&potentials, best, result](OnDevice& on) {
                       on.engine.viterbi(potentials, best, result, on.stream);
                     }};
  });
}

void segments_on_device(nb::handle labels, nb::handle lengths, const sc::LabelRules& rules,
                        std::uintptr_t stream, nb::handle row_pointer, nb::handle start,
                        nb::handle duration, nb::handle label, nb::handle frames) {
  const Device device = device_of(import_input("labels", labels));
  if (!device.is_cuda())
    throw UsageError(
        fmt::format("semicrf: labels is on {}, expected a CUDA device", to_text(device)));
  CallArrays arrays(device);
  const sc::DeviceSegmentations gold = columns_of(arrays, row_pointer, start, duration, label);
  const auto found = arrays.take<std::int64_t, 1>("frames", frames);
  Input row_lengths;
  if (!lengths.is_none()) row_lengths = import_input("lengths", lengths);
  const sc::Lengths known = lengths.is_none() ? sc::Lengths() : lengths_of(row_lengths);
  const auto enqueue = [&]<class Int>(const sc::View<const Int, 2>& view) {
    const nb::gil_scoped_release release;
    CudaEngines::instance().run(device.index, reinterpret_cast<void*>(stream), [&](OnDevice& on) {
      on.engine.segmentations_from_labels(view, known, rules, gold, found, on.stream);
    });
  };
  if (has_dtype<std::int32_t>(import_input("labels", labels)))
    enqueue(arrays.read<std::int32_t, 2>("labels", labels));
  else
    enqueue(arrays.read<std::int64_t, 2>("labels", labels));
}

void check_device(int device, std::uintptr_t stream) {
  const nb::gil_scoped_release release;
  CudaEngines::instance().run(device, reinterpret_cast<void*>(stream),
                              [](OnDevice& on) { on.engine.check(on.stream); });
}

nb::tuple sample_prior(nb::handle initial, nb::handle transition, nb::handle duration,
                       std::int64_t rows, std::int64_t min_frames, std::uint64_t seed) {
  if (rows < 0) throw UsageError(fmt::format("semicrf: found {} rows, expected 0 or more", rows));
  CallArrays arrays(Device{nb::device::cpu::value, 0});
  const sc::Prior prior{.initial = arrays.read<double, 1>("initial", initial),
                        .transition = arrays.read<double, 2>("transition", transition),
                        .duration = arrays.read<double, 2>("duration", duration)};
  sc::Segmentations drawn;
  {
    const nb::gil_scoped_release release;
    for (std::int64_t row = 0; row < rows; ++row)
      sc::sample_prior(prior, min_frames, seed, static_cast<std::uint64_t>(row), drawn);
  }
  return to_numpy(std::move(drawn));
}

}  // namespace segfuse::python
