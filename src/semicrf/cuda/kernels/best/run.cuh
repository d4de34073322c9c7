#pragma once
// What a pass of the best segmentation does at a time.

namespace segfuse::semicrf::gpu {

/// One run of the pass over steps [first, stop), of which those before `own` warm up.
struct BestRun {
  int row, chunk, first, own, stop, length;
  bool resumed;  ///< from the sources that the chunk before it went out with
  bool cut;      ///< other chunks compare with this one
};

}  // namespace segfuse::semicrf::gpu
