#pragma once
// Where a pass writes its boundaries: the lattice, or the memory of a chunk's warm-up.

#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/kernels/common/common.cuh"
#include "semicrf/cuda/kernels/common/cuts.cuh"

namespace segfuse::semicrf::gpu {

/// Where a pass writes its boundaries: from a boundary on, `step` elements apart.
struct PassOutput {
  double* source;
  double* value;
  int* scale;
  long long step;
  int scale_step;
};

/// The lattice from the boundary after `steps` steps of the pass on.
DEVICE PassOutput lattice_output(const Call& call, int row, bool forward, int length, int steps,
                                 int c) {
  const int t = forward ? steps : length - steps;
  const long long at = at_boundary(call, row, t) + c;
  PassOutput out;
  out.source = (forward ? call.lattice.gamma : call.lattice.beta) + at;
  out.value = (forward ? call.lattice.alpha : call.lattice.delta) + at;
  out.scale = (forward ? call.lattice.forward_scale : call.lattice.backward_scale) +
              static_cast<long long>(row) * (call.sizes.frames + 1) + t;
  out.step = forward ? call.sizes.classes : -call.sizes.classes;
  out.scale_step = forward ? 1 : -1;
  return out;
}

/// The warm-up's own memory.
DEVICE PassOutput warm_up_output(const Call& call, int row, int direction, int chunk, int c) {
  const long long at = chunk_place(call, row, direction == 0, chunk) * (call.chunks.warm_up + 1);
  PassOutput out;
  out.source = call.chunks.source + at * call.sizes.classes + c;
  out.value = call.chunks.value + at * call.sizes.classes + c;
  out.scale = call.chunks.scale + at;
  out.step = call.sizes.classes;
  out.scale_step = 1;
  return out;
}

}  // namespace segfuse::semicrf::gpu
