#include "semicrf/cuda/programs.h"

#include <algorithm>

#include "semicrf/cuda/sources.h"

namespace segfuse::semicrf::gpu {
namespace {

constexpr int kRegistersOfBlock = 65536;
constexpr int kMaxRegisters = 255;
constexpr int kFarOfLane = 48;       ///< durations of a lane in shared memory: teams are faster
constexpr int kRegistersOfFar = 16;  ///< of a thread, for durations in shared memory

/// Groups of multiprocessors on an H100 that a cluster does not leave, and the least of a group.
constexpr int kGroups = 8;
constexpr int kGroupOfProcessors = 16;

/// The program whose root is `file` of cuda/kernels, for scores stored as `input`.
std::string source_of(std::string_view file, const std::string& input) {
  return "#define INPUT " + input + "\n" + kernel_source(file);
}

int ceil_divide(int a, int b) { return (a + b - 1) / b; }

/// What a thread needs beside matrix column, taps and pending sums: fitted to what the assembler
/// reports, and kept true by the test that compiles the largest shapes.
int scan_registers(const ScanShape& s) {
  const int sources = ceil_divide(s.classes, s.group);
  return 2 * sources + 4 * s.taps + 68 + 2 * std::min(sources, 8) + (s.edges ? 46 : 0) +
         (s.far > 0 ? kRegistersOfFar : 0);
}
/// Many maxima are under way at once; scores of boundaries wait as they are stored.
int best_registers(const ScanShape& s) {
  ScanShape plain = s;
  plain.edges = false;
  const int edges = 20 + std::min(ceil_divide(s.classes, s.group), 8) / 4;
  return scan_registers(plain) + (s.taps > 8 ? s.taps - 4 : 0) + (s.edges ? edges : 0);
}

/// Registers are handed out to warps in fours.
int register_limit(const ScanShape& s) {
  return std::min(kMaxRegisters, kRegistersOfBlock / (ceil_divide(s.threads(), 128) * 128) / 8 * 8);
}

/// Blocks of a cluster's pass that a multiprocessor has registers for.
int resident_blocks(const ScanShape& s, int registers) {
  constexpr int kSchedulers = 4;
  constexpr int kSpare = 4;  // the assembler finds so many where it has to
  const int of_warp = ceil_divide(registers - kSpare, 8) * 8 * 32;
  const int warps = kRegistersOfBlock / kSchedulers / of_warp * kSchedulers;
  return std::max(1, warps / (s.threads() / 32));
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

/// Cycles a frame for durations in shared memory: three words each, and what a lane does for them.
double cost_of_far(const ScanShape& s) {
  const double words = 0.25 * s.classes_of_block() * s.far * s.resident;
  return std::max(words, 60.0 * ceil_divide(s.far, s.group));
}

/// The same in all, over how many passes run at once. A cluster's values are on their way for
/// longer than a block computes, and a block sends each to all.
double cost_of_pass(const ScanShape& s) {
  const double cycles = cost_of(s) + cost_of_far(s);
  if (s.blocks == 1) return cycles / (kGroupOfProcessors * kGroups);
  return (cycles + 400.0 + 30.0 * s.blocks) / s.passes_at_once();
}

/// A layout with so many durations a lane, and so many blocks or fewer, if its state fits
/// registers.
template <class Registers>
std::optional<ScanShape> fitting(Registers registers, int classes, int max_duration, int group,
                                 bool edges, int blocks, int taps) {
  ScanShape s{classes, group, taps, edges};
  s.blocks = ceil_divide(classes, ceil_divide(classes, blocks));  // each has classes
  s.far = std::max(0, max_duration - group * taps);
  const int needed = registers(s);
  if (s.classes_of_block() > 1024 / group || needed > register_limit(s)) return {};
  if (s.blocks > 1) s.resident = resident_blocks(s, needed);
  return s;
}

/// The fitting layout of least cost: of one block with all in registers if there is one, else of a
/// cluster with all in registers, else with durations in shared memory.
template <class Registers>
std::optional<ScanShape> cheapest(Registers registers, int classes, int max_duration, bool edges,
                                  const Room& room) {
  std::optional<ScanShape> best;
  double least = 0;
  const auto consider = [&](int group, int blocks, int taps, auto cost) {
    auto shape = fitting(registers, classes, max_duration, group, edges, blocks, taps);
    if (!shape) return;
    if (shape->far > kFarOfLane * group) return;
    if (shape->far > 0) {
      const auto bytes = static_cast<int>(shape->shared_bytes());
      if (bytes > room.shared_bytes) return;
      shape->resident = std::min(shape->resident, room.shared_bytes / bytes);
    }
    if (shape->passes_at_once() == 0 || (best && cost(*shape) >= least)) return;
    best = shape;
    least = cost(*shape);
  };
  const auto all_of = [&](int group) { return ceil_divide(max_duration, group); };
  for (int group = 1; group <= 32; group *= 2) consider(group, 1, all_of(group), cost_of);
  if (best) return best;
  for (int group = 1; group <= 32; group *= 2)
    for (int blocks = 2; blocks <= room.blocks; ++blocks)
      consider(group, blocks, all_of(group), cost_of_pass);
  if (best) return best;
  for (int group = 1; group <= 32; group *= 2)
    for (int blocks = 1; blocks <= room.blocks; ++blocks)
      for (int taps = 4; taps < std::min(all_of(group), 64); taps += 4)
        consider(group, blocks, taps, cost_of_pass);
  return best;
}

std::vector<std::string> shape_defines(const ScanShape& s) {
  return {"SCAN_CLASSES=" + std::to_string(s.classes),
          "SCAN_GROUP=" + std::to_string(s.group),
          "SCAN_TAPS=" + std::to_string(s.taps),
          "SCAN_THREADS=" + std::to_string(s.threads()),
          std::string("SCAN_EDGES=") + (s.edges ? "true" : "false"),
          "SCAN_BLOCKS=" + std::to_string(s.blocks),
          std::string("SCAN_FAR=") + (s.far > 0 ? "true" : "false"),
          "SCAN_RESIDENT=" + std::to_string(s.resident)};
}

}  // namespace

int ScanShape::passes_at_once() const {
  return blocks == 1 ? kGroups * kGroupOfProcessors
                     : kGroups * (kGroupOfProcessors * resident / blocks);
}

std::size_t ScanShape::shared_bytes() const {
  const int part = (ceil_divide(classes, group) + 13) / 16 * 16 + 2;
  const int window = 2 * classes_of_block() * far;
  return static_cast<std::size_t>(2 * group * part + 2 + 1 + window) * sizeof(double);
}

std::optional<ScanShape> scan_shape(int classes, int max_duration, int group, bool edges,
                                    int blocks, int taps) {
  if (taps == 0) taps = ceil_divide(max_duration, group);
  return fitting(scan_registers, classes, max_duration, group, edges, blocks, taps);
}

std::optional<ScanShape> best_shape(int classes, int max_duration, int group, bool edges,
                                    int blocks, int taps) {
  if (taps == 0) taps = ceil_divide(max_duration, group);
  return fitting(best_registers, classes, max_duration, group, edges, blocks, taps);
}

std::optional<ScanShape> choose_scan_shape(int classes, int max_duration, bool edges,
                                           const Room& room) {
  return cheapest(scan_registers, classes, max_duration, edges, room);
}

std::optional<ScanShape> choose_best_shape(int classes, int max_duration, bool edges,
                                           const Room& room) {
  return cheapest(best_registers, classes, max_duration, edges, room);
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
