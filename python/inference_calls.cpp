#include <fmt/core.h>

#include <utility>

#include "run.h"

namespace segfuse::python {

namespace sc = semicrf;

namespace {

nb::tuple lists_to_numpy(sc::SegmentationLists lists) {
  sc::Segmentations& y = lists.segmentations;
  return nb::make_tuple(to_numpy(std::move(lists.list_pointer)), to_numpy(std::move(y.row_pointer)),
                        to_numpy(std::move(y.start)), to_numpy(std::move(y.duration)),
                        to_numpy(std::move(y.label)), to_numpy(std::move(lists.score)));
}

/// Two problems of one dtype: calls body(p, q, inference).
template <class Body>
void run_pair(const Problem& p, const Problem& q, nb::handle result, const Body& body) {
  run(p, [&]<class T>(const sc::Potentials<T>& potentials, CallArrays& arrays) {
    const auto* other = std::get_if<sc::Potentials<T>>(&q.potentials());
    if (other == nullptr)
      throw UsageError(fmt::format("semicrf: p is {} and q is {}; both need the same dtype",
                                   p.dtype(), q.dtype()));
    if (p.device() != q.device())
      throw UsageError(
          fmt::format("semicrf: p is on {} and q on {}", to_text(p.device()), to_text(q.device())));
    return [&potentials, other, &body, out = arrays.take<double, 1>("result", result)](
               sc::Inference& inference) { body(potentials, *other, out, inference); };
  });
}

CallArrays cpu_arrays() { return CallArrays(Device{nb::device::cpu::value, 0}); }

}  // namespace

void partial_loss(const Problem& problem, const Scope& scope, nb::handle loss,
                  const std::optional<GradientArrays>& gradients, nb::handle tail_gradient,
                  nb::handle weights) {
  run(problem, [&]<class T>(const sc::Potentials<T>& potentials, CallArrays& arrays) {
    sc::LossResult result;
    result.loss = arrays.take<double, 1>("loss", loss);
    return [&potentials, &scope, result, g = arrays.take_gradients<T>(gradients),
            tail = arrays.take<double, 1>("tail gradient", tail_gradient),
            w = arrays.read<double, 1>("weights", weights)](sc::Inference& inference) {
      inference.partial_loss(potentials, scope.scope(), result, g, tail, w);
    };
  });
}

void derivatives_along(const Problem& problem, const Scope& scope, bool partial,
                       const DirectionArrays& direction,
                       const std::optional<DirectionArrays>& other, nb::handle derivative,
                       nb::handle curvature, const std::optional<GradientArrays>& product,
                       nb::handle tail_product, nb::handle weights) {
  run(problem, [&]<class T>(const sc::Potentials<T>& potentials, CallArrays& arrays) {
    sc::AlongResult<T> result;
    result.derivative = arrays.take<double, 1>("derivative", derivative);
    result.curvature = arrays.take<double, 1>("curvature", curvature);
    if (other) result.other = arrays.read_direction<T>(*other);
    result.product = arrays.take_gradients<T>(product);
    result.tail_product = arrays.take<double, 1>("tail gradient", tail_product);
    return [&potentials, &scope, partial, result, along = arrays.read_direction<T>(direction),
            w = arrays.read<double, 1>("weights", weights)](sc::Inference& inference) {
      inference.derivatives_along(potentials, scope.scope(), partial, along, result, w);
    };
  });
}

nb::tuple sample(const Problem& problem, const Scope& scope, std::int64_t n, std::uint64_t seed) {
  sc::SegmentationLists drawn;
  run(problem, [&](const auto& potentials, CallArrays&) {
    return [&](sc::Inference& inference) {
      inference.sample(potentials, scope.scope(), n, seed, drawn);
    };
  });
  return lists_to_numpy(std::move(drawn));
}

nb::tuple k_best(const Problem& problem, const Scope& scope, std::int64_t n) {
  sc::SegmentationLists best;
  run(problem, [&](const auto& potentials, CallArrays&) {
    return [&](sc::Inference& inference) { inference.k_best(potentials, scope.scope(), n, best); };
  });
  return lists_to_numpy(std::move(best));
}

void cross_entropy(const Problem& p, const Problem& q, nb::handle result) {
  run_pair(p, q, result,
           [](const auto& first, const auto& second, const auto& out, sc::Inference& inference) {
             inference.cross_entropy(first, second, out);
           });
}

void kl(const Problem& p, const Problem& q, nb::handle result) {
  run_pair(p, q, result,
           [](const auto& first, const auto& second, const auto& out, sc::Inference& inference) {
             inference.kl(first, second, out);
           });
}

void boundary_within(const Problem& problem, const Scope& scope, std::int64_t tolerance,
                     nb::handle probability) {
  run(problem, [&]<class T>(const sc::Potentials<T>& potentials, CallArrays& arrays) {
    return [&, out = arrays.take<T, 2>("probability", probability)](sc::Inference& inference) {
      inference.boundary_within(potentials, scope.scope(), tolerance, out);
    };
  });
}

void expected_durations(const Problem& problem, const Scope& scope, nb::handle counts) {
  run(problem, [&]<class T>(const sc::Potentials<T>& potentials, CallArrays& arrays) {
    return [&, out = arrays.take<T, 2>("counts", counts)](sc::Inference& inference) {
      inference.expected_durations(potentials, scope.scope(), out);
    };
  });
}

void max_marginal(const Problem& problem, const Scope& scope, nb::handle labels,
                  std::int32_t ignore) {
  run(problem, [&](const auto& potentials, CallArrays& arrays) {
    return [&, out = arrays.take<std::int32_t, 2>("labels", labels)](sc::Inference& inference) {
      inference.max_marginal(potentials, scope.scope(), out, ignore);
    };
  });
}

nb::tuple minimum_risk(const Problem& problem, const Scope& scope, std::int64_t tolerance,
                       nb::handle f1) {
  sc::Segmentations best;
  run(problem, [&](const auto& potentials, CallArrays& arrays) {
    return [&, out = arrays.take<double, 1>("f1", f1)](sc::Inference& inference) {
      inference.minimum_risk(potentials, scope.scope(), tolerance, best, out);
    };
  });
  return to_numpy(std::move(best));
}

nb::tuple duration_layout(const sc::DurationModel& model) {
  std::vector<std::int64_t> starts;
  if (model.family == sc::DurationFamily::kBuckets) starts = sc::duration_buckets(model);
  return nb::make_tuple(sc::duration_parameters(model), to_numpy(std::move(starts)));
}

void duration_scores(const sc::DurationModel& model, nb::handle parameters, nb::handle scores) {
  CallArrays arrays = cpu_arrays();
  sc::duration_scores(model, arrays.read<double, 2>("parameters", parameters),
                      arrays.take<double, 2>("scores", scores));
}

void duration_gradient(const sc::DurationModel& model, nb::handle parameters,
                       nb::handle score_gradient, nb::handle parameter_gradient) {
  CallArrays arrays = cpu_arrays();
  sc::duration_gradient(model, arrays.read<double, 2>("parameters", parameters),
                        arrays.read<double, 2>("score gradient", score_gradient),
                        arrays.take<double, 2>("parameter gradient", parameter_gradient));
}

}  // namespace segfuse::python
