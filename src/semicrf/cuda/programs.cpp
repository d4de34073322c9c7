#include "semicrf/cuda/programs.h"

#include <algorithm>

#include "semicrf/cuda/sources.h"

namespace segfuse::semicrf::gpu {
namespace {

constexpr int kRegistersOfBlock = 65536;
constexpr int kMaxRegisters = 255;

/// The program whose root is `file` of cuda/kernels, for scores stored as `input`.
std::string source_of(std::string_view file, const std::string& input) {
  return "#define INPUT " + input + "\n" + kernel_source(file);
}

int ceil_divide(int a, int b) { return (a + b - 1) / b; }

/// What a thread needs beside matrix column, taps and pending sums: fitted to what the assembler
/// reports, and kept true by the test that compiles the largest shapes.
int scan_registers(const ScanShape& s) {
  const int sources = ceil_divide(s.classes, s.group);
  return 2 * sources + 4 * s.taps + 68 + 2 * std::min(sources, 8) + (s.edges ? 46 : 0);
}
/// Many maxima are under way at once; scores of boundaries wait as they are stored.
int best_registers(const ScanShape& s) {
  const ScanShape plain{s.classes, s.group, s.taps, false};
  const int edges = 20 + std::min(ceil_divide(s.classes, s.group), 8) / 4;
  return scan_registers(plain) + (s.taps > 8 ? s.taps - 4 : 0) + (s.edges ? edges : 0);
}

/// Registers are handed out to warps in fours.
int register_limit(const ScanShape& s) {
  return std::min(kMaxRegisters, kRegistersOfBlock / (ceil_divide(s.threads(), 128) * 128) / 8 * 8);
}

/// Cycles a frame: issue slots of the busiest of the four schedulers at two a double operation, and
/// the latency of the reduction over a group's lanes.
double cost_of(const ScanShape& s) {
  const int warps = ceil_divide(s.threads() / 32, 4);
  const double operations = ceil_divide(s.classes, s.group) + 1.5 * s.taps;
  double reduction = 0;
  for (int lanes = s.group; lanes > 1; lanes /= 2) reduction += 30;
  return 2.0 * warps * operations + reduction + 20.0 * warps;
}

/// The fitting layout of least cost.
template <class Shape>
std::optional<ScanShape> cheapest(Shape shape_of, int classes, int max_duration, bool edges) {
  std::optional<ScanShape> best;
  for (int group = 1; group <= 32; group *= 2) {
    const std::optional<ScanShape> shape = shape_of(classes, max_duration, group, edges);
    if (shape && (!best || cost_of(*shape) < cost_of(*best))) best = shape;
  }
  return best;
}

std::vector<std::string> shape_defines(const ScanShape& s) {
  return {"SCAN_CLASSES=" + std::to_string(s.classes), "SCAN_GROUP=" + std::to_string(s.group),
          "SCAN_TAPS=" + std::to_string(s.taps), "SCAN_THREADS=" + std::to_string(s.threads()),
          std::string("SCAN_EDGES=") + (s.edges ? "true" : "false")};
}

}  // namespace

std::optional<ScanShape> scan_shape(int classes, int max_duration, int group, bool edges) {
  const ScanShape shape{classes, group, ceil_divide(max_duration, group), edges};
  if (classes > 1024 / group || scan_registers(shape) > register_limit(shape)) return {};
  return shape;
}

std::optional<ScanShape> best_shape(int classes, int max_duration, int group, bool edges) {
  const ScanShape shape{classes, group, ceil_divide(max_duration, group), edges};
  if (classes > 1024 / group || best_registers(shape) > register_limit(shape)) return {};
  return shape;
}

std::optional<ScanShape> choose_scan_shape(int classes, int max_duration, bool edges) {
  return cheapest(scan_shape, classes, max_duration, edges);
}

std::optional<ScanShape> choose_best_shape(int classes, int max_duration, bool edges) {
  return cheapest(best_shape, classes, max_duration, edges);
}

runtime::GpuProgram common_program(const std::string& input) {
  return {"semicrf_" + input, source_of("any_size.cuh", input), {}};
}

runtime::GpuProgram labels_program() {
  return {"semicrf_labels", source_of("labels/labels.cuh", "double"), {}};
}

runtime::GpuProgram scope_program() {
  return {"semicrf_scope", source_of("scope/kernels.cuh", "double"), {}};
}

runtime::GpuProgram scope_program(const std::string& input) {
  return {"semicrf_scope_" + input, source_of("scope/load.cuh", input), {}};
}

runtime::GpuProgram online_program() {
  return {"semicrf_online", source_of("online/kernels.cuh", "double"), {}};
}

runtime::GpuProgram online_program(const std::string& input) {
  return {"semicrf_online_" + input, source_of("online/load.cuh", input), {}};
}

runtime::GpuProgram scan_program(const ScanShape& shape) {
  return {"semicrf_scan", source_of("sum/scan_kernel.cuh", "double"), shape_defines(shape)};
}

runtime::GpuProgram best_program(const ScanShape& shape, const std::string& input) {
  return {"semicrf_best_" + input, source_of("best/scan_kernel.cuh", input), shape_defines(shape)};
}

}  // namespace segfuse::semicrf::gpu
