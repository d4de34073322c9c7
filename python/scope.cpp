#include "scope.h"

#include <fmt/core.h>

namespace segfuse::python {
namespace {

/// With a tail a gold segment may have any duration, so that the engine's check does not apply.
void need_tiling(const Problem& problem, const semicrf::SegmentationsView& y) {
  if (y.row_pointer.extent(0) != problem.batch() + 1)
    throw UsageError(fmt::format("semicrf: segmentations of {} rows, expected {}",
                                 y.row_pointer.extent(0) - 1, problem.batch()));
  for (std::int64_t b = 0; b < problem.batch(); ++b) {
    std::int64_t covered = 0;
    for (std::int64_t i = y.row_pointer(b); i < y.row_pointer(b + 1); ++i) {
      if (y.start(i) != covered || y.duration(i) < 1)
        throw DataError(fmt::format(
            "semicrf: segment {} of batch {} starts at {} with {} frames, expected a start at {}: "
            "segments tile the row",
            i - y.row_pointer(b), b, y.start(i), y.duration(i), covered));
      covered += y.duration(i);
    }
    if (covered != problem.length(b))
      throw DataError(
          fmt::format("semicrf: the segments of batch {} end at frame {}, the row at {}", b,
                      covered, problem.length(b)));
  }
}

}  // namespace

template <class T, int N>
semicrf::View<const T, N> Scope::take(const char* name, const char* axes, nb::handle object) {
  if (object.is_none()) return {};
  const Input& array = arrays_.emplace_back(import_input(name, object));
  if (!device_of(array).is_cpu())
    throw UsageError(
        fmt::format("semicrf: {} is on {}, expected the CPU", name, to_text(device_of(array))));
  if (!has_dtype<T>(array))
    throw UsageError(fmt::format("semicrf: {} is {}, expected {}", name, to_text(array.dtype()),
                                 to_text(nb::dtype<T>())));
  need_rank(name, axes, array, N);
  return view_of<const T, N>(array);
}

Scope::Scope(nb::handle allowed, nb::handle transition, nb::handle min_duration,
             nb::handle max_duration, nb::handle label, nb::handle boundary, nb::handle tail) {
  semicrf::Constraints& c = scope_.constraints;
  c.allowed = take<std::uint8_t, 3>("allowed", "(B, T, C)", allowed);
  c.transition = take<std::uint8_t, 2>("transitions", "(C, C)", transition);
  c.min_duration = take<std::int32_t, 1>("min_duration", "(C,)", min_duration);
  c.max_duration = take<std::int32_t, 1>("max_duration", "(C,)", max_duration);
  c.label = take<std::int32_t, 2>("labels", "(B, T)", label);
  c.boundary = take<std::int8_t, 2>("boundaries", "(B, T)", boundary);
  scope_.tail = take<double, 1>("tail", "(C,)", tail);
}

Scope::Scope(const Problem& problem, const Segments& known, nb::handle tail) {
  if (!problem.device().is_cpu())
    throw UsageError(fmt::format("semicrf: emission is on {}, and a tail works on the CPU only",
                                 to_text(problem.device())));
  known.need_device(problem.device());
  need_tiling(problem, known.view());
  known_.emplace(known.view(), problem.frames());
  scope_.constraints = known_->constraints();
  scope_.tail = take<double, 1>("tail", "(C,)", tail);
}

}  // namespace segfuse::python
