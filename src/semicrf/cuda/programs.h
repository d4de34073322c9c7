#pragma once
// The device code of the semi-CRF as programs, and the choice of the passes' shape.

#include <cstddef>
#include <optional>
#include <string>

#include "runtime/kernels.h"

namespace segfuse::semicrf::gpu {

/// How a pass is laid out in registers: `group` lanes a class, `taps` durations a lane. How many
/// blocks share the classes does not show in the bits, nor which durations are in shared memory.
struct ScanShape {
  int classes = 0;
  int group = 1;
  int taps = 1;
  bool edges = false;  ///< there are start or end scores
  int blocks = 1;      ///< of a cluster, to which the classes are dealt out
  int far = 0;         ///< durations beyond those of the lanes, in shared memory
  int resident = 1;    ///< such blocks of a multiprocessor: registers are limited for as many

  int classes_of_block() const { return (classes + blocks - 1) / blocks; }
  int threads() const { return (classes_of_block() * group + 31) / 32 * 32; }
  int warps_of_all() const { return (classes * group + 31) / 32; }
  /// On an H100.
  int passes_at_once() const;
  /// Shared memory of a block: common/cluster.cuh, a number, and common/far.cuh.
  std::size_t shared_bytes() const;
  bool operator==(const ScanShape&) const = default;
};

/// What a pass may take beside the registers of one multiprocessor.
struct Room {
  int blocks = 1;        ///< of a cluster
  int shared_bytes = 0;  ///< of a block, for durations; 0: they are all in registers
};

/// The shape that should take the fewest cycles a frame: of one block if the state of (C, K) fits
/// into the registers of one multiprocessor, else with what else there is room for; nothing if it
/// does not fit.
std::optional<ScanShape> choose_scan_shape(int classes, int max_duration, bool edges,
                                           const Room& room = {});
/// The same with the lanes of a class and the blocks given, and the durations of a lane unless 0.
std::optional<ScanShape> scan_shape(int classes, int max_duration, int group, bool edges,
                                    int blocks = 1, int taps = 0);

/// The same for the best segmentation, whose state is larger.
std::optional<ScanShape> best_shape(int classes, int max_duration, int group, bool edges,
                                    int blocks = 1, int taps = 0);
std::optional<ScanShape> choose_best_shape(int classes, int max_duration, bool edges,
                                           const Room& room = {});

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
