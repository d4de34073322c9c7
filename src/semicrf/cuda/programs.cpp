#include "semicrf/cuda/programs.h"

#include <algorithm>

#include "semicrf/cuda/sources.h"

namespace segfuse::semicrf::gpu {
namespace {

constexpr int kRegistersOfBlock = 65536;
constexpr int kMostRegisters = 255;

/// Conversions between the stored type and double, and what differs between device compilers.
std::string prelude(const std::string& input) {
  return "#define DEVICE_MEMBER __device__ __forceinline__\n"
         "#define INPUT " +
         input + "\n" + kernel_source("half.cuh") + kernel_source("prelude.cuh");
}

int ceil_divide(int a, int b) { return (a + b - 1) / b; }

/// What a thread needs beside matrix column, taps and pending sums: fitted to what the assembler
/// reports, and kept true by the test that compiles the largest shapes.
int scan_registers(const ScanShape& s) {
  const int sources = ceil_divide(s.classes, s.group);
  return 2 * sources + 4 * s.taps + 68 + 2 * std::min(sources, 8) + (s.edges ? 46 : 0);
}
int best_registers(const ScanShape& s) {
  return 2 * ceil_divide(s.classes, s.group) + 5 * s.taps + 96 + (s.edges ? 28 : 0);
}

/// Registers are handed out to warps in fours.
int register_limit(const ScanShape& s) {
  return std::min(kMostRegisters,
                  kRegistersOfBlock / (ceil_divide(s.threads(), 128) * 128) / 8 * 8);
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
  std::string source = prelude(input);
  for (const char* file : {"arguments.h",
                           "common.cuh",
                           "prepare.cuh",
                           "exact.cuh",
                           "range.cuh",
                           "team.cuh",
                           "wide.cuh",
                           "rows.cuh",
                           "frames.cuh",
                           "transitions.cuh",
                           "durations.cuh",
                           "shared.cuh",
                           "grid.cuh",
                           "best_measure.cuh",
                           "best.cuh",
                           "best_chunks.cuh",
                           "best_trace.cuh",
                           "chunks.cuh",
                           "by_duration.cuh",
                           "by_duration_team.cuh",
                           "by_duration_counts.cuh",
                           "best_by_duration.cuh",
                           "row_counts.cuh",
                           "pointers.cuh"})
    source += kernel_source(file);
  return {"semicrf_" + input, std::move(source), {}};
}

runtime::GpuProgram labels_program() {
  std::string source = prelude("double");
  for (const char* file : {"arguments.h", "common.cuh", "pointers.cuh", "labels.cuh"})
    source += kernel_source(file);
  return {"semicrf_labels", std::move(source), {}};
}

runtime::GpuProgram scope_program() {
  std::string source = prelude("double");
  for (const char* file :
       {"arguments.h", "common.cuh", "scope_arguments.h", "scope.cuh", "scope_pass.cuh",
        "scope_sample.cuh", "scope_best.cuh", "scope_marginals.cuh"})
    source += kernel_source(file);
  return {"semicrf_scope", std::move(source), {}};
}

runtime::GpuProgram scope_program(const std::string& input) {
  std::string source = prelude(input);
  for (const char* file :
       {"arguments.h", "common.cuh", "scope_arguments.h", "scope.cuh", "scope_load.cuh"})
    source += kernel_source(file);
  return {"semicrf_scope_" + input, std::move(source), {}};
}

runtime::GpuProgram online_program() {
  std::string source = prelude("double");
  for (const char* file :
       {"arguments.h", "common.cuh", "scope_arguments.h", "scope.cuh", "scope_pass.cuh",
        "online_arguments.h", "online.cuh", "online_decide.cuh", "online_kernels.cuh"})
    source += kernel_source(file);
  return {"semicrf_online", std::move(source), {}};
}

runtime::GpuProgram online_program(const std::string& input) {
  std::string source = prelude(input);
  for (const char* file :
       {"arguments.h", "common.cuh", "scope_arguments.h", "online_arguments.h", "online_load.cuh"})
    source += kernel_source(file);
  return {"semicrf_online_" + input, std::move(source), {}};
}

runtime::GpuProgram scan_program(const ScanShape& shape) {
  std::string source = prelude("double");
  for (const char* file : {"arguments.h", "common.cuh", "range.cuh", "scan.cuh", "scan_kernel.cuh"})
    source += kernel_source(file);
  return {"semicrf_scan", std::move(source), shape_defines(shape)};
}

runtime::GpuProgram best_program(const ScanShape& shape, const std::string& input) {
  std::string source = prelude(input);
  for (const char* file : {"arguments.h", "common.cuh", "grid.cuh", "best_chunks.cuh",
                           "best_scan.cuh", "best_scan_kernel.cuh"})
    source += kernel_source(file);
  return {"semicrf_best_" + input, std::move(source), shape_defines(shape)};
}

}  // namespace segfuse::semicrf::gpu
