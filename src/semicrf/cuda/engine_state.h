#pragma once
// What the parts of CudaEngine share: its state, and what a call asks for.

#include <fmt/core.h>

#include <array>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "segfuse/semicrf_cuda.h"
#include "semicrf/cuda/programs.h"
#include "semicrf/cuda/queue.h"
#include "semicrf/cuda/views.h"
#include "semicrf/cuda/workspace.h"

namespace segfuse::semicrf {

using gpu::Call;
using runtime::Extent3;
using runtime::GpuKernel;
using runtime::StreamHandle;

/// What a call asks for beyond the log-partition.
struct DeviceWanted {
  bool frames = false;  ///< emission, start or end
  bool transition = false;
  bool duration = false;
  bool ends = false;  ///< initial or final
  bool boundary = false;
  bool by_row = false;  ///< counts of transitions and durations are wanted for each row
  bool entropy = false;
  bool any() const { return frames || transition || duration || ends || boundary || by_row; }
};

/// How a round of passes is cut in time.
struct ChunkCut {
  int count = 1;        ///< chunks of the longest row that may come; of a part of one, its own
  int least = kNotCut;  ///< frames of a chunk
  int warm_up = 0;

  static constexpr int kNotCut = std::numeric_limits<int>::max();
  bool is_cut() const { return least != kNotCut; }
};
/// The rounds of the passes of sums: every row is in the first one; the others take rows whose
/// chunks did not fit together in the one before. The last one is not cut.
using ChunkCuts = std::vector<ChunkCut>;

struct CudaEngine::State {
  std::shared_ptr<gpu::Queue> gpu;
  CudaOptions options;
  std::map<std::string, GpuKernel> kernels;
  /// By best segmentation or not, classes, longest duration, start or end scores.
  std::map<std::array<int, 4>, std::optional<gpu::ScanShape>> shapes;
  std::map<void*, bool> rooms;  ///< of kernels of clusters: whether the device runs one
  gpu::Faults faults;
  gpu::Sizes sizes{};  ///< of the last call, for describing faults

  State(const runtime::DeviceAccess& device, const CudaOptions& o)
      : gpu(std::make_shared<gpu::Queue>(device, o.context)), options(o), faults(*gpu) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  template <class T>
  GpuKernel common(const std::string& entry) {
    GpuKernel& kernel = kernels[entry + ":" + kInputName<T>];
    if (kernel.handle == nullptr) kernel = gpu->kernel(gpu::common_program(kInputName<T>), entry);
    return kernel;
  }

  GpuKernel of_labels(const std::string& entry) {
    GpuKernel& kernel = kernels["labels:" + entry];
    if (kernel.handle == nullptr) kernel = gpu->kernel(gpu::labels_program(), entry);
    return kernel;
  }

  static std::string name_of(const gpu::ScanShape& shape) {
    return fmt::format("{}:{}:{}:{}:{}:{}:{}", shape.classes, shape.group, shape.taps, shape.edges,
                       shape.blocks, shape.resident, shape.far > 0);
  }

  GpuKernel scan(const gpu::ScanShape& shape) {
    GpuKernel& kernel = kernels["scan:" + name_of(shape)];
    if (kernel.handle == nullptr) kernel = gpu->kernel(gpu::scan_program(shape), "scan");
    return kernel;
  }

  template <class T>
  GpuKernel best_scan(const gpu::ScanShape& shape) {
    GpuKernel& kernel = kernels[fmt::format("best:{}:{}", kInputName<T>, name_of(shape))];
    if (kernel.handle == nullptr)
      kernel = gpu->kernel(gpu::best_program(shape, kInputName<T>), "best_scan");
    return kernel;
  }

  /// How the passes of a call are laid out; nothing if they do not fit into registers.
  std::optional<gpu::ScanShape> shape_of(const Call& call);
  /// The same for the best segmentation.
  template <class T>
  std::optional<gpu::ScanShape> best_shape_of(const Call& call);
  template <class Choose, class Given, class Kernel>
  std::optional<gpu::ScanShape> shape_with_room(const Call& call, bool is_best, Choose choose,
                                                Given given, Kernel kernel);
  /// Whether the device runs a cluster of the kernel's blocks.
  bool has_room(const GpuKernel& kernel, const gpu::ScanShape& shape);
  runtime::GpuLaunch launch_of(const gpu::ScanShape& shape, Extent3 grid) const {
    grid.x *= static_cast<unsigned>(shape.blocks);
    return {grid,
            {static_cast<unsigned>(shape.threads())},
            shape.shared_bytes(),
            false,
            static_cast<unsigned>(shape.blocks)};
  }

  void launch(GpuKernel kernel, Extent3 grid, Extent3 block, const Call& call, StreamHandle stream,
              std::size_t shared_bytes = 0) {
    gpu->launch(kernel, {grid, block, shared_bytes}, call, stream);
  }

  bool teams_wanted(const Call& call);
  /// How the passes of a call are cut in time.
  ChunkCuts cuts_of(const Call& call);
  template <class T>
  void run(Call& call, const DeviceWanted& wanted, StreamHandle stream);
  template <class T>
  void prepare(const Call& call, StreamHandle stream);
  template <class T>
  void team_pass(const Call& call, unsigned chunks, unsigned directions, StreamHandle stream);
  template <class T>
  void prepare_teams(const Call& call, StreamHandle stream);
  template <class T>
  void pass_chunks(const Call& call, unsigned directions, StreamHandle stream);
  template <class T>
  void join_chunks(const Call& call, unsigned directions, StreamHandle stream);
  template <class T>
  void linear_pass(Call& call, const ChunkCuts& cuts, unsigned directions, StreamHandle stream);
  template <class T>
  void pass(Call& call, const ChunkCuts& cuts, bool both, StreamHandle stream);
  template <class T>
  void cover_slices(const Call& call, unsigned slices, StreamHandle stream);
  template <class T>
  void frames_of_slices(const Call& call, unsigned slices, StreamHandle stream);
  template <class T>
  void ends(const Call& call, StreamHandle stream);
  template <class T>
  void count_slots(const Call& call, const DeviceWanted& wanted, unsigned slots,
                   StreamHandle stream);
  template <class T>
  void count(const Call& call, const DeviceWanted& wanted, StreamHandle stream);
  template <class T>
  void count_by_row(const Call& call, const DeviceWanted& wanted, StreamHandle stream);
  template <class T>
  void reduce(const Call& call, StreamHandle stream);
  template <class T>
  void clear(Call& call, const DeviceWanted& wanted, StreamHandle stream);
  template <class T>
  void measure(const Call& call, StreamHandle stream);
  template <class T>
  void best_in_registers(Call& call, const gpu::ScanShape& shape, StreamHandle stream);
  template <class T>
  void recover(const Call& call, StreamHandle stream);
  template <class T>
  void best_of_team(Call& call, StreamHandle stream);
  template <class T>
  void decode(Call& call, StreamHandle stream);
  void segment(Call& call, StreamHandle stream);
};

// What a call has in common with others (calls.cpp).

/// Checks shapes and fills what a call has in common. Reads no device memory.
template <class T>
Call make_call(const Potentials<T>& potentials);
/// Checks shapes, and fills where gradients go.
template <class T>
DeviceWanted want_gradients(const Potentials<T>& potentials, const Gradients<T>& gradients,
                            Call& call);
void set_weights(const View<const double, 1>& weights, Call& call);
/// Where packed segmentations go.
void set_segmentations(const DeviceSegmentations& out, Call& call);

// How a call is laid out (plan.cpp).

inline std::int64_t slices_of(const gpu::Sizes& n) {
  return n.by_duration != 0 ? n.max_duration : 1;
}
void cut_into_slices(Call& call, const DeviceWanted& wanted);
/// Cuts the passes in time: a row into chunks by its own length, K and the pass's shape alone; no
/// shape: a team's.
ChunkCuts cut_into_chunks(const gpu::Sizes& sizes, const std::optional<gpu::ScanShape>& shape,
                          std::int64_t warm_up);
void apply(const ChunkCut& cut, Call& call);
/// The same for the best segmentation, whose sums are exact: how it is cut does not show. Into as
/// many chunks as keep a large device busy. No shape: a team's.
void cut_best_pass(Call& call, const std::optional<gpu::ScanShape>& shape, std::int64_t warm_up);
/// Deals a pass that does not fit registers out to blocks, by classes, or by durations where
/// transitions depend on them; call.team.members = 0 where there are too many classes for shared
/// memory either. How many blocks does not show in the bits.
void plan_team(Call& call, const DeviceWanted& wanted, const gpu::Queue& device);
/// The same for the best segmentation, whose pass has been cut in time. `doubles`: scores are.
void plan_best_team(Call& call, bool doubles, const gpu::Queue& device);
/// Declares the arrays that a call works in, in all its rounds. Of frames those of its part alone,
/// counted from part.frame.
void plan_workspace(gpu::Workspace& workspace, Call& call, const DeviceWanted& wanted,
                    const ChunkCuts& cuts);

}  // namespace segfuse::semicrf
