// What calls have in common: checks of shapes, and the caller's views as the kernels take them.

#include <fmt/core.h>

#include <limits>

#include "semicrf/cuda/engine_state.h"
#include "semicrf/model/gradients.h"

namespace segfuse::semicrf {

template <class T>
Call make_call(const Potentials<T>& potentials) {
  Potentials<T> shapes = potentials;
  shapes.lengths = {};
  const Dims dims = check_potentials(shapes);
  if (!potentials.lengths.empty())
    check_vector("lengths", false, potentials.lengths.size(), dims.batch);
  if (dims.batch > kLargestGridSide)
    throw UsageError(
        fmt::format("semicrf: {} rows in one call; on the device at most {}, split the batch",
                    dims.batch, kLargestGridSide));
  constexpr std::int64_t kMaxInt = 1 << 30;
  if (dims.frames >= kMaxInt || dims.classes >= kMaxInt || dims.max_duration >= kMaxInt)
    throw UsageError(fmt::format("semicrf: T = {}, C = {}, K = {}; each must be below {}",
                                 dims.frames, dims.classes, dims.max_duration, kMaxInt));
  Call call{};
  call.sizes = {static_cast<int>(dims.batch), static_cast<int>(dims.frames),
                static_cast<int>(dims.classes), static_cast<int>(dims.max_duration),
                dims.by_duration ? 1 : 0};
  call.scores.emission = strided(potentials.emission);
  call.scores.transition = strided(potentials.transition);
  call.scores.duration = strided(potentials.duration);
  call.scores.initial = strided(potentials.initial);
  call.scores.final = strided(potentials.final);
  call.scores.start = strided(potentials.start);
  call.scores.end = strided(potentials.end);
  call.lengths = row_lengths(potentials.lengths);
  call.chunks.count = 1;
  constexpr int kAll = std::numeric_limits<int>::max();
  call.chunks.least = kAll;
  call.part.frame_end = call.part.chunk_end[0] = call.part.chunk_end[1] = kAll;
  call.part.slice_end = kAll;
  call.part.ends = 3;
  call.part.ratio[0] = call.part.ratio[1] = 1.0;
  return call;
}

template <class T>
DeviceWanted want_gradients(const Potentials<T>& potentials, const Gradients<T>& g, Call& call) {
  Potentials<T> shapes = potentials;
  shapes.lengths = {};
  check_gradients(g, check_potentials(shapes));
  call.gradients.emission = strided_out(g.emission);
  call.gradients.transition = strided_out(g.transition);
  call.gradients.duration = strided_out(g.duration);
  call.gradients.initial = strided_out(g.initial);
  call.gradients.final = strided_out(g.final);
  call.gradients.start = strided_out(g.start);
  call.gradients.end = strided_out(g.end);
  DeviceWanted wanted;
  wanted.frames = !(g.emission.empty() && g.start.empty() && g.end.empty());
  wanted.transition = !g.transition.empty();
  wanted.duration = !g.duration.empty();
  wanted.ends = !(g.initial.empty() && g.final.empty());
  return wanted;
}

void set_weights(const View<const double, 1>& weights, Call& call) {
  if (weights.empty()) return;
  check_vector("weights", false, weights.extent(0), call.sizes.batch);
  call.weights = weights.data();
  call.weight_stride = weights.stride(0);
}

void set_segmentations(const DeviceSegmentations& out, Call& call) {
  const std::int64_t rows = call.sizes.batch;
  const std::int64_t most = rows * call.sizes.frames;
  check_vector("row_pointer", false, out.row_pointer.extent(0), rows + 1);
  whole_output("row_pointer", out.row_pointer, rows + 1);
  call.best.row_pointer = reinterpret_cast<long long*>(out.row_pointer.data());
  call.best.packed_start = whole_output("the segmentations' start", out.start, most);
  call.best.packed_duration = whole_output("the segmentations' duration", out.duration, most);
  call.best.packed_label = whole_output("the segmentations' label", out.label, most);
  if (out.row_pointer.empty() ||
      (most > 0 && (out.start.empty() || out.duration.empty() || out.label.empty())))
    throw UsageError(
        "semicrf: segmentations on the device need row_pointer, start, duration and label arrays");
}

#define SEGFUSE_INSTANTIATE(T)                   \
  template Call make_call(const Potentials<T>&); \
  template DeviceWanted want_gradients(const Potentials<T>&, const Gradients<T>&, Call&);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
SEGFUSE_INSTANTIATE(Half)
SEGFUSE_INSTANTIATE(BFloat16)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
