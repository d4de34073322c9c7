#pragma once
// The device code of the semi-CRF as programs, and the choice of the passes' shape.

#include <optional>
#include <string>

#include "runtime/kernels.h"

namespace segfuse::semicrf::gpu {

/// How a pass is laid out in registers: `group` lanes a class, `taps` durations a lane.
struct ScanShape {
  int classes = 0;
  int group = 1;
  int taps = 1;
  bool edges = false;  ///< there are start or end scores
  int threads() const { return (classes * group + 31) / 32 * 32; }
  bool operator==(const ScanShape&) const = default;
};

/// The shape that should take the fewest cycles a frame, or nothing when the state of (C, K) does
/// not fit into the registers of one multiprocessor.
std::optional<ScanShape> choose_scan_shape(int classes, int max_duration, bool edges);
/// The same with the lanes of a class given.
std::optional<ScanShape> scan_shape(int classes, int max_duration, int group, bool edges);

/// The same for the best segmentation, whose state is larger.
std::optional<ScanShape> best_shape(int classes, int max_duration, int group, bool edges);
std::optional<ScanShape> choose_best_shape(int classes, int max_duration, bool edges);

/// All kernels but the passes in registers. `input` is the stored type: "float", "double",
/// "Half", "BFloat16".
runtime::GpuProgram common_program(const std::string& input);
/// Segments from labels per frame.
runtime::GpuProgram labels_program();
/// Further inference, in doubles.
runtime::GpuProgram scope_program();
/// What it loads and stores: "float" or "double".
runtime::GpuProgram scope_program(const std::string& input);
/// Decoding of rows that arrive in pieces, and what it loads: "float" or "double".
runtime::GpuProgram online_program();
runtime::GpuProgram online_program(const std::string& input);
/// One kernel, "scan".
runtime::GpuProgram scan_program(const ScanShape& shape);
/// One kernel, "best_scan".
runtime::GpuProgram best_program(const ScanShape& shape, const std::string& input);
}  // namespace segfuse::semicrf::gpu
