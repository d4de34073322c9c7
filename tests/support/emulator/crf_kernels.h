#pragma once
// The kernels of CudaEngine for scores stored as INPUT, in the namespace gpu::SPACE. Both are
// defined before. Once a source file: the kernels have include guards.

#include <string>

#include "semicrf/cuda/kernels/common/arguments.h"
#include "support/emulator/emulated_kernels.h"
#include "support/emulator/kernel_language.h"
// After them:
#include "semicrf/cuda/kernels/common/half.cuh"

#define gpu gpu::SPACE
#include "semicrf/cuda/kernels/any_size.cuh"
#include "semicrf/cuda/kernels/best/scan.cuh"
#include "semicrf/cuda/kernels/labels/labels.cuh"
#include "semicrf/cuda/kernels/sum/scan.cuh"
#undef gpu

namespace segfuse::testing {
namespace {

namespace kernels = semicrf::gpu::SPACE;

/// How programs name a shape.
template <int kClasses, int kGroup, int kTaps, bool kEdges, int kBlocks, bool kFar>
std::string with_shape(const std::string& program) {
  constexpr int kOwn = (kClasses + kBlocks - 1) / kBlocks;
  return program + " SCAN_CLASSES=" + std::to_string(kClasses) +
         " SCAN_GROUP=" + std::to_string(kGroup) + " SCAN_TAPS=" + std::to_string(kTaps) +
         " SCAN_THREADS=" + std::to_string((kOwn * kGroup + 31) / 32 * 32) +
         " SCAN_EDGES=" + (kEdges ? "true" : "false") + " SCAN_BLOCKS=" + std::to_string(kBlocks) +
         " SCAN_FAR=" + (kFar ? "true" : "false");
}

/// A pass of one shape.
struct Sum {
  template <int kClasses, int kGroup, int kTaps, bool kEdges, int kBlocks = 1, bool kFar = false>
  static void add_shape(const std::string&) {
    const std::string program =
        with_shape<kClasses, kGroup, kTaps, kEdges, kBlocks, kFar>("semicrf_scan");
    emulated_kernels()[program + " scan"] =
        emulated(kernels::scan_row<kClasses, kGroup, kTaps, kEdges, kBlocks, kFar>);
  }
};
struct Best {
  template <int kClasses, int kGroup, int kTaps, bool kEdges, int kBlocks = 1, bool kFar = false>
  static void add_shape(const std::string& type) {
    const std::string program =
        with_shape<kClasses, kGroup, kTaps, kEdges, kBlocks, kFar>("semicrf_best_" + type);
    emulated_kernels()[program + " best_scan"] =
        emulated(kernels::best_row<kClasses, kGroup, kTaps, kEdges, kBlocks, kFar>);
  }
};

template <class Pass, int kClasses, int kGroup, int kTaps>
void add_shapes(const std::string& type) {
  Pass::template add_shape<kClasses, kGroup, kTaps, false>(type);
  Pass::template add_shape<kClasses, kGroup, kTaps, true>(type);
}

/// Every group size over few classes, up to 8 durations.
template <class Pass, int kClasses>
void add_small_shapes(const std::string& type) {
  add_shapes<Pass, kClasses, 1, 1>(type);
  add_shapes<Pass, kClasses, 1, 2>(type);
  add_shapes<Pass, kClasses, 1, 3>(type);
  add_shapes<Pass, kClasses, 1, 4>(type);
  add_shapes<Pass, kClasses, 2, 1>(type);
  add_shapes<Pass, kClasses, 2, 2>(type);
  add_shapes<Pass, kClasses, 4, 1>(type);
  add_shapes<Pass, kClasses, 4, 2>(type);
}

template <class Pass>
void add_all_shapes(const std::string& type) {
  add_small_shapes<Pass, 1>(type);
  add_small_shapes<Pass, 2>(type);
  add_small_shapes<Pass, 3>(type);
  Pass::template add_shape<33, 2, 4, true>(type);
  Pass::template add_shape<39, 2, 3, false>(type);
  // Of clusters: a class of a block, warps of the last one without classes.
  Pass::template add_shape<3, 4, 1, true, 2>(type);
  Pass::template add_shape<3, 4, 1, false, 2>(type);
  Pass::template add_shape<3, 1, 4, true, 3>(type);
  Pass::template add_shape<33, 2, 4, true, 2>(type);
  Pass::template add_shape<39, 2, 3, false, 2>(type);
  Pass::template add_shape<39, 2, 3, false, 3>(type);
  // Durations in shared memory.
  Pass::template add_shape<3, 4, 1, true, 1, true>(type);
  Pass::template add_shape<3, 4, 1, true, 2, true>(type);
  Pass::template add_shape<3, 1, 2, true, 3, true>(type);
}

#define ADD_TO(program, name) \
  emulated_kernels()[std::string(program) + " " #name] = emulated(kernels::name);
#define ADD(name) ADD_TO("semicrf_" + type, name)
/// The program that takes any sizes.
void add_any_size(const std::string& type) {
  ADD(prepare_frames)
  ADD(prepare_shared)
  ADD(prepare_ends)
  ADD(transpose_factors)
  ADD(wide_pass)
  ADD(exact_pass)
  ADD(gold_path)
  ADD(part_exponents)
  ADD(adopt_row)
  ADD(finish_rows)
  ADD(slice_cover)
  ADD(frame_gradients)
  ADD(boundary_posteriors)
  ADD(end_gradients)
  ADD(transition_counts_1)
  ADD(transition_counts_2)
  ADD(transition_counts_3)
  ADD(transition_counts_4)
  ADD(duration_counts)
  ADD(reduce_shared)
  ADD(exact_counts)
  ADD(gold_counts)
  ADD(measure_frames)
  ADD(measure_shared)
  ADD(best_pass)
  ADD(recover_durations)
  ADD(recover_labels)
  ADD(transpose_scores)
  ADD(wide_best)
  ADD(compare_best)
  ADD(best_trace)
  ADD(best_join)
  ADD(best_total)
  ADD(best_pointers)
  ADD(best_pack)
  ADD(compare_chunks)
  ADD(carry_ratios)
  ADD(join_chunks)
  ADD(pass_by_duration)
  ADD(team_by_duration)
  ADD(starts_by_duration)
  ADD(counts_by_duration)
  ADD(best_pass_by_duration)
  ADD(row_durations)
  ADD(expected_frames)
  ADD(row_entropy)
}
#undef ADD

}  // namespace
}  // namespace segfuse::testing
