#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "runtime/gpu.h"
#include "segfuse/error.h"
#include "segfuse/semicrf_cuda.h"
#include "semicrf/cuda/kernels/arguments.h"
#include "semicrf/cuda/programs.h"
#include "semicrf/cuda/workspace.h"
#include "semicrf/gradients.h"
#include "semicrf/posteriors.h"
#include "semicrf/problem.h"

namespace segfuse::semicrf {

using gpu::Call;
using runtime::Extent3;
using runtime::GpuKernel;
using runtime::StreamHandle;

namespace {

constexpr std::int64_t kLargestGridSide = 65535;
constexpr std::int64_t kPartialBytes = std::int64_t{256} << 20;
constexpr int kWantedSlots =
    528;  ///< blocks that sum shared counts: four for each of 132 processors

template <class T>
constexpr const char* kInputName = nullptr;
template <>
constexpr const char* kInputName<float> = "float";
template <>
constexpr const char* kInputName<double> = "double";
template <>
constexpr const char* kInputName<Half> = "Half";
template <>
constexpr const char* kInputName<BFloat16> = "BFloat16";

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

unsigned side(std::int64_t n) { return static_cast<unsigned>(n); }

template <class T, int N>
gpu::Strided strided(const View<const T, N>& view) {
  gpu::Strided out{view.data(), {0, 0, 0}};
  for (int axis = 0; axis < N; ++axis) out.stride[axis] = view.stride(axis);
  return out;
}

template <class T, int N>
gpu::StridedOut strided_out(const View<T, N>& view) {
  gpu::StridedOut out{view.data(), {0, 0, 0}};
  for (int axis = 0; axis < N; ++axis) out.stride[axis] = view.stride(axis);
  return out;
}

/// One value a row, with the caller's stride. Device is what the kernels take T for.
template <class Device, class T>
gpu::RowOutput<Device> row_output(const char* name, const View<T, 1>& view, std::int64_t rows) {
  static_assert(sizeof(Device) == sizeof(T));
  if (view.empty()) return {nullptr, 0};
  check_vector(name, false, view.extent(0), rows);
  return {reinterpret_cast<Device*>(view.data()), view.stride(0)};
}

/// An array that kernels write as a whole.
template <class T>
T* whole_output(const char* name, const View<T, 1>& view, std::int64_t n) {
  if (view.empty()) return nullptr;
  check_vector(name, false, view.extent(0), n);
  if (n > 1 && view.stride(0) != 1)
    throw UsageError("semicrf: {} on the device must be contiguous; its stride is {}", name,
                     view.stride(0));
  return view.data();
}

template <class T>
void check_contiguous(const char* name, const View<const T, 1>& view) {
  if (view.extent(0) > 1 && view.stride(0) != 1)
    throw UsageError("semicrf: the segmentations' {} on the device must be contiguous", name);
}

gpu::RowLengths row_lengths(const Lengths& lengths) {
  gpu::RowLengths out{};
  if (!lengths.wide().empty()) {
    static_assert(sizeof(long long) == sizeof(std::int64_t));
    out.wide = reinterpret_cast<const long long*>(lengths.wide().data());
    out.stride = lengths.wide().stride(0);
  } else if (!lengths.narrow().empty()) {
    out.narrow = lengths.narrow().data();
    out.stride = lengths.narrow().stride(0);
  }
  return out;
}

/// What a call asks for beyond the log-partition.
struct Wanted {
  bool frames = false;  ///< emission, start or end
  bool transition = false;
  bool duration = false;
  bool ends = false;  ///< initial or final
  bool boundary = false;
  bool by_row = false;  ///< counts of transitions and durations are wanted for each row
  bool entropy = false;
  bool any() const { return frames || transition || duration || ends || boundary || by_row; }
};

/// Where the first fault of an input lies, as the CPU engine names it.
std::string describe_fault(int kind, unsigned long long index, const gpu::Sizes& n) {
  static constexpr std::array<const char*, gpu::kFaults> kNames = {
      "emission", "start",  "end",   "transition", "duration", "initial",
      "final",    "length", "label", "label",      "label",    "gold"};
  const char* name = kNames[static_cast<std::size_t>(kind)];
  const auto at = static_cast<std::int64_t>(index);
  const std::int64_t classes = n.classes;
  if (kind <= gpu::kFaultEnd)
    return fmt::format(
        "{} at batch {}, time {}, class {} is NaN or +inf; scores are finite or -inf", name,
        at / classes / n.frames, at / classes % n.frames, at % classes);
  if (kind == gpu::kFaultTransition)
    return fmt::format("transition[{}, {}, {}] is NaN or +inf; scores are finite or -inf",
                       at / classes / classes, at / classes % classes, at % classes);
  if (kind == gpu::kFaultDuration)
    return fmt::format("duration[{}, {}] is NaN or +inf; scores are finite or -inf", at / classes,
                       at % classes);
  if (kind == gpu::kFaultLength)
    return fmt::format("the length of batch {} is not in [0, {}], the frames of emission", at,
                       n.frames);
  if (kind == gpu::kFaultLabel)
    return fmt::format("batch {}, time {}: the label is not in [0, {})", at / n.frames,
                       at % n.frames, n.classes);
  if (kind == gpu::kFaultAfterIgnored)
    return fmt::format("batch {}, time {}: a label after ignored frames", at / n.frames,
                       at % n.frames);
  if (kind == gpu::kFaultLongRun)
    return fmt::format(
        "batch {}, time {}: a label runs for longer than the longest segment, {} frames; raise K "
        "or split long runs",
        at / n.frames, at % n.frames, n.max_duration);
  if (kind == gpu::kFaultGold)
    return fmt::format(
        "gold segment {} does not fit: segments tile their row in order, with durations in [1, {}] "
        "and labels in [0, {})",
        at, n.max_duration, n.classes);
  return fmt::format("{}[{}] is NaN or +inf; scores are finite or -inf", name, at);
}

}  // namespace

struct CudaEngine::State {
  std::shared_ptr<runtime::Gpu> gpu;
  CudaOptions options;
  std::map<std::string, GpuKernel> kernels;
  unsigned long long* faults = nullptr;
  gpu::Sizes sizes{};  ///< of the last call, for describing faults

  State(std::shared_ptr<runtime::Gpu> g, CudaOptions o) : gpu(std::move(g)), options(o) {
    constexpr std::size_t kBytes = gpu::kFaults * sizeof(unsigned long long);
    faults = static_cast<unsigned long long*>(gpu->allocate(kBytes, nullptr));
    gpu->fill(faults, 0xff, kBytes, nullptr);
    gpu->synchronize(nullptr);
  }
  ~State() { gpu->release(faults, nullptr); }
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
    return fmt::format("{}:{}:{}:{}", shape.classes, shape.group, shape.taps, shape.edges);
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
  std::optional<gpu::ScanShape> shape_of(const Call& call) const {
    const gpu::Sizes& n = call.sizes;
    if (options.algorithm != Algorithm::kFast || n.by_duration != 0) return {};
    const bool edges = call.scores.start.data != nullptr || call.scores.end.data != nullptr;
    return options.lanes_per_class == 0
               ? gpu::choose_scan_shape(n.classes, n.max_duration, edges)
               : gpu::scan_shape(n.classes, n.max_duration, options.lanes_per_class, edges);
  }

  void launch(GpuKernel kernel, Extent3 grid, Extent3 block, const Call& call, StreamHandle stream,
              std::size_t shared_bytes = 0) {
    gpu->launch(kernel, grid, block, shared_bytes, &call, sizeof call, stream);
  }

  template <class T>
  void run(Call& call, const Wanted& wanted, StreamHandle stream);
  template <class T>
  void prepare(const Call& call, StreamHandle stream);
  template <class T>
  void pass(Call& call, bool both, StreamHandle stream);
  template <class T>
  void count(const Call& call, const Wanted& wanted, StreamHandle stream);
  template <class T>
  void count_by_row(const Call& call, const Wanted& wanted, StreamHandle stream);
  template <class T>
  void reduce(const Call& call, StreamHandle stream);
  template <class T>
  void clear(Call& call, const Wanted& wanted, StreamHandle stream);
  template <class T>
  void decode(Call& call, StreamHandle stream);
  void segment(Call& call, StreamHandle stream);
};

namespace {

/// Checks shapes and fills what a call has in common. Reads no device memory.
template <class T>
Call make_call(const Potentials<T>& potentials) {
  Potentials<T> shapes = potentials;
  shapes.lengths = {};
  const Dims dims = check_potentials(shapes);
  if (!potentials.lengths.empty())
    check_vector("lengths", false, potentials.lengths.size(), dims.batch);
  if (dims.batch > kLargestGridSide)
    throw UsageError("semicrf: {} rows in one call; on the device at most {}, split the batch",
                     dims.batch, kLargestGridSide);
  constexpr std::int64_t kMostInt = 1 << 30;
  if (dims.frames >= kMostInt || dims.classes >= kMostInt || dims.max_duration >= kMostInt)
    throw UsageError("semicrf: T = {}, C = {}, K = {}; each must be below {}", dims.frames,
                     dims.classes, dims.max_duration, kMostInt);
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
  return call;
}

template <class T>
Wanted want_gradients(const Potentials<T>& potentials, const Gradients<T>& g, Call& call) {
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
  Wanted wanted;
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

/// Where packed segmentations go.
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

std::int64_t slices_of(const gpu::Sizes& n) { return n.by_duration != 0 ? n.max_duration : 1; }

/// Time slices: long enough to be worth a block, few enough that a running sum over them is cheap.
void cut_into_slices(Call& call, const Wanted& wanted) {
  constexpr std::int64_t kShortest = 64;
  constexpr std::int64_t kMost = 256;
  const std::int64_t frames = std::max(1, call.sizes.frames);
  const std::int64_t even = ceil_divide(ceil_divide(frames, kMost), 32) * 32;
  call.slice_frames = static_cast<int>(std::max(kShortest, even));
  call.slices = static_cast<int>(ceil_divide(frames, call.slice_frames));
  const std::int64_t classes = call.sizes.classes;
  const std::int64_t elements =
      std::max(slices_of(call.sizes) * classes * classes, call.sizes.max_duration * classes);
  const std::int64_t units = static_cast<std::int64_t>(call.sizes.batch) * call.slices;
  const std::int64_t room = std::max<std::int64_t>(1, kPartialBytes / 8 / elements);
  call.gold_parts = static_cast<int>(std::clamp<std::int64_t>(frames / 1024, 1, 64));
  const std::int64_t slots = std::min({units, std::int64_t{kWantedSlots}, room});
  const std::int64_t rows = call.sizes.batch;
  call.slots =
      static_cast<int>(wanted.by_row ? rows * std::max<std::int64_t>(1, slots / rows) : slots);
}

/// Cuts the passes in time when there are too few rows to fill a device: chunks at least twice as
/// long as their warm-up, as many as keep a large device busy. A function of the sizes alone.
void cut_into_chunks(Call& call, const Wanted& wanted, const gpu::ScanShape& shape,
                     std::int64_t warm_up) {
  // Two for each of 132 processors, unless one keeps all its arithmetic busy.
  const std::int64_t wanted_passes = shape.threads() > 96 ? 132 : 264;
  const std::int64_t passes = static_cast<std::int64_t>(call.sizes.batch) * (wanted.any() ? 2 : 1);
  const std::int64_t warm =
      ceil_divide(warm_up != 0 ? warm_up : std::max<std::int64_t>(64, 4 * call.sizes.max_duration),
                  4) *
      4;
  const std::int64_t count =
      std::min(wanted_passes / passes, call.sizes.frames / std::max<std::int64_t>(1, 2 * warm));
  call.chunks = {
      1, call.sizes.frames, static_cast<int>(warm), 0, nullptr, nullptr, nullptr, nullptr, nullptr};
  if (count < 2 || warm < call.sizes.max_duration) return;
  call.chunks.steps = static_cast<int>(ceil_divide(ceil_divide(call.sizes.frames, count), 4) * 4);
  call.chunks.count = static_cast<int>(ceil_divide(call.sizes.frames, call.chunks.steps));
}

void plan_workspace(gpu::Workspace& workspace, Call& call, const Wanted& wanted) {
  const gpu::Sizes& n = call.sizes;
  const std::int64_t rows = n.batch;
  const std::int64_t frames = rows * n.frames;
  const std::int64_t cells = frames * n.classes;
  const std::int64_t boundaries = rows * (n.frames + 1);
  const std::int64_t lattice = boundaries * n.classes;
  const std::int64_t pairs = slices_of(n) * n.classes * n.classes;
  const std::int64_t durations = static_cast<std::int64_t>(n.max_duration) * n.classes;
  workspace.add(call.factors.emission, cells);
  workspace.add(call.factors.frame_exponent, frames);
  workspace.add(call.factors.start, call.scores.start.data != nullptr ? cells : 0);
  workspace.add(call.factors.end, call.scores.end.data != nullptr ? cells : 0);
  workspace.add(call.factors.transition, pairs);
  workspace.add(call.factors.duration, durations);
  workspace.add(call.factors.initial, n.classes);
  workspace.add(call.factors.final, n.classes);
  workspace.add(call.factors.exponents, 4);
  workspace.add(call.lattice.alpha, lattice);
  workspace.add(call.lattice.gamma, lattice);
  workspace.add(call.lattice.delta, lattice);
  workspace.add(call.lattice.beta, lattice);
  workspace.add(call.lattice.forward_scale, boundaries);
  workspace.add(call.lattice.backward_scale, boundaries);
  workspace.add(call.lattice.partition, rows);
  workspace.add(call.lattice.flags, rows);
  workspace.add(call.row_weight, rows);
  if (wanted.entropy && call.rows.log_partition.data == nullptr) {
    workspace.add(call.rows.log_partition.data, rows);
    call.rows.log_partition.stride = 1;
  }
  workspace.add(call.pending, 2 * rows * durations);
  workspace.add(call.gold_frames, call.gold.row_pointer != nullptr ? frames : 0);
  workspace.add(call.gold_score, call.gold.row_pointer != nullptr ? rows * call.gold_parts : 0);
  workspace.add(call.cover, wanted.frames || wanted.entropy ? rows * call.slices * n.classes : 0);
  workspace.add(call.expected, wanted.entropy ? rows * call.slices : 0);
  // Durations are counted as sums over pairs where transitions depend on them.
  const bool pairs_wanted = wanted.transition || (wanted.duration && n.by_duration != 0);
  workspace.add(call.transition_partial, pairs_wanted ? call.slots * pairs : 0);
  workspace.add(call.duration_partial, wanted.duration ? call.slots * durations : 0);
  const std::int64_t chunks = call.chunks.count > 1 ? 2 * rows * call.chunks.count : 0;
  workspace.add(call.chunks.source, chunks * (call.chunks.warm_up + 1) * n.classes);
  workspace.add(call.chunks.value, chunks * (call.chunks.warm_up + 1) * n.classes);
  workspace.add(call.chunks.scale, chunks * (call.chunks.warm_up + 1));
  workspace.add(call.chunks.ratio, chunks);
  workspace.add(call.chunks.ratio_exponent, chunks);
  workspace.add(call.lattice.forward_ratio, chunks > 0 ? boundaries : 0);
  workspace.add(call.lattice.backward_ratio, chunks > 0 ? boundaries : 0);
  workspace.add(call.by_duration.weight, n.by_duration != 0 ? lattice : 0);
  workspace.add(call.by_duration.peak, n.by_duration != 0 ? boundaries : 0);
  workspace.add(call.by_duration.factors, n.by_duration != 0 ? rows * durations : 0);
}

}  // namespace

template <class T>
void CudaEngine::State::prepare(const Call& call, StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  gpu->fill(call.lattice.flags, 0, sizeof(int) * static_cast<std::size_t>(n.batch), stream);
  gpu->fill(call.factors.exponents, 0, sizeof(int) * 4, stream);
  constexpr std::int64_t kFramesOfBlock = 8;
  const std::int64_t blocks = ceil_divide(n.frames, kFramesOfBlock);
  if (blocks > 0)
    launch(common<T>("prepare_frames"), {side(blocks), side(n.batch)}, {32, kFramesOfBlock}, call,
           stream);
  const std::int64_t shared =
      static_cast<std::int64_t>(n.classes) * (slices_of(n) * n.classes + n.max_duration);
  launch(common<T>("prepare_shared"),
         {side(std::min<std::int64_t>(ceil_divide(shared, 256), 1024))}, {256}, call, stream);
  launch(common<T>("prepare_ends"), {3}, {32}, call, stream);
}

template <class T>
void CudaEngine::State::pass(Call& call, bool both, StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  const unsigned directions = both ? 2 : 1;
  if (n.by_duration != 0) {
    launch(common<T>("pass_by_duration"), {side(n.batch), directions}, {32, 16}, call, stream);
    return;
  }
  const std::optional<gpu::ScanShape> shape = shape_of(call);
  if (!shape) {
    gpu->fill(call.lattice.flags, 1, sizeof(int) * static_cast<std::size_t>(n.batch), stream);
  } else {
    const GpuKernel kernel = scan(*shape);
    const Extent3 block{side(shape->threads())};
    const auto chunks = side(call.chunks.count);
    launch(kernel, {side(n.batch), directions, chunks}, block, call, stream);
    if (chunks > 1) {
      launch(common<T>("compare_chunks"), {side(n.batch), directions, chunks - 1}, {256}, call,
             stream);
      launch(common<T>("join_chunks"), {side(n.batch), directions, chunks}, {256}, call, stream);
      call.chunks.redo = 1;
      launch(kernel, {side(n.batch), directions}, block, call, stream);
    }
  }
  // Rows in range leave at once.
  launch(common<T>("exact_pass"), {side(n.batch), 2}, {512}, call, stream,
         static_cast<std::size_t>(n.classes) * sizeof(double));
}

template <class T>
void CudaEngine::State::count(const Call& call, const Wanted& wanted, StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  const bool shared = wanted.transition || wanted.duration;
  if (shared && n.by_duration != 0)
    launch(common<T>("counts_by_duration"), {side(call.slots), side(ceil_divide(n.classes, 32))},
           {32, 8}, call, stream);
  if (wanted.transition && n.by_duration == 0) {
    constexpr int kSide = 16;
    const int each = std::min(4, static_cast<int>(ceil_divide(n.classes, kSide)));
    const std::int64_t tiles = ceil_divide(n.classes, kSide * each);
    launch(common<T>(fmt::format("transition_counts_{}", each)),
           {side(call.slots), side(tiles), side(tiles)}, {kSide * kSide}, call, stream);
  }
  if (wanted.duration && n.by_duration == 0) {
    constexpr std::int64_t kEach = 8;
    constexpr std::int64_t kSources = 32;
    const std::int64_t columns = std::min<std::int64_t>(32, ceil_divide(n.max_duration, kEach));
    const std::int64_t classes =
        std::min<std::int64_t>(n.classes, std::max<std::int64_t>(8, 256 / columns));
    const std::int64_t reach = kSources + kEach * columns;
    const std::int64_t doubles = (kSources + 2 * reach) * classes + 3 * reach;
    const auto bytes = static_cast<std::size_t>(doubles * 8 + classes * 4);
    launch(common<T>("duration_counts"),
           {side(call.slots), side(ceil_divide(n.classes, classes)),
            side(ceil_divide(n.max_duration, kEach * columns))},
           {side(classes), side(columns)}, call, stream, bytes);
  }
  if (shared) {
    if (n.by_duration == 0)
      launch(common<T>("exact_counts"), {side(call.slots)}, {256}, call, stream);
    if (call.gold.row_pointer != nullptr)
      launch(common<T>("gold_counts"), {side(call.slots)}, {256}, call, stream);
    if (wanted.by_row) return;
    reduce<T>(call, stream);
  }
}

/// Sums the slots into the gradients.
template <class T>
void CudaEngine::State::reduce(const Call& call, StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  const std::int64_t elements =
      static_cast<std::int64_t>(n.classes) * (slices_of(n) * n.classes + n.max_duration);
  launch(common<T>("reduce_shared"), {side(ceil_divide(elements, 32))}, {32, 8}, call, stream);
}

/// No rows: shared gradients are sums of nothing.
template <class T>
void CudaEngine::State::clear(Call& call, const Wanted& wanted, StreamHandle stream) {
  double nothing = 0.0;  // told from "not wanted" by its address; no slot is read
  call.slots = 0;
  if (wanted.transition) call.transition_partial = &nothing;
  if (wanted.duration) call.duration_partial = &nothing;
  if (wanted.ends)
    launch(common<T>("end_gradients"), {side(ceil_divide(call.sizes.classes, 4)), 2}, {32, 4}, call,
           stream);
  if (wanted.transition || wanted.duration) reduce<T>(call, stream);
}

template <class T>
void CudaEngine::State::run(Call& call, const Wanted& wanted, StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  sizes = n;
  if (n.batch == 0) return clear<T>(call, wanted, stream);
  cut_into_slices(call, wanted);
  if (const std::optional<gpu::ScanShape> shape = shape_of(call); shape && options.chunked)
    cut_into_chunks(call, wanted, *shape, options.warm_up);
  gpu::Workspace workspace(*gpu, stream);
  plan_workspace(workspace, call, wanted);
  workspace.allocate();
  call.faults = faults;
  call.by_duration.direct = options.algorithm == Algorithm::kReference ? 1 : 0;

  prepare<T>(call, stream);
  pass<T>(call, wanted.any(), stream);
  if (call.gold.row_pointer != nullptr)
    launch(common<T>("gold_path"), {side(call.gold_parts), side(n.batch)}, {256}, call, stream);
  launch(common<T>("finish_rows"), {side(n.batch)}, {512}, call, stream);
  if (n.by_duration != 0 && (wanted.frames || wanted.boundary || wanted.ends || wanted.entropy) &&
      n.frames > 0)
    launch(common<T>("starts_by_duration"), {side(ceil_divide(n.frames, 8)), side(n.batch)},
           {32, 8}, call, stream);
  const Extent3 slices{side(call.slices), side(n.batch)};
  if ((wanted.frames || wanted.entropy) && n.frames > 0)
    launch(common<T>("slice_cover"), slices, {256}, call, stream);
  if (wanted.frames && n.frames > 0) {
    constexpr std::size_t kStageBytes = (32 + 33 + 32) * 64 * sizeof(double);
    launch(common<T>("frame_gradients"), slices, {256}, call, stream, kStageBytes);
  }
  if (wanted.boundary && n.frames > 0)
    launch(common<T>("boundary_posteriors"), {side(ceil_divide(n.frames, 128)), side(n.batch)},
           {128}, call, stream);
  if (wanted.ends)
    launch(common<T>("end_gradients"), {side(ceil_divide(n.classes, 4)), 2}, {32, 4}, call, stream);
  count<T>(call, wanted, stream);
  if (wanted.by_row) count_by_row<T>(call, wanted, stream);
}

template <class T>
void CudaEngine::State::count_by_row(const Call& call, const Wanted& wanted, StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  if (call.gradients.row_duration.data != nullptr)
    launch(common<T>("row_durations"),
           {side(ceil_divide(static_cast<std::int64_t>(n.max_duration) * n.classes, 256)),
            side(n.batch)},
           {256}, call, stream);
  if (!wanted.entropy) return;
  const auto threads = side(std::min<std::int64_t>(256, ceil_divide(n.classes, 32) * 32));
  launch(common<T>("expected_frames"), {side(call.slices), side(n.batch)}, {threads}, call, stream);
  launch(common<T>("row_entropy"), {side(n.batch)}, {256}, call, stream);
}

template <class T>
void CudaEngine::State::decode(Call& call, StreamHandle stream) {
  const gpu::Sizes& n = call.sizes;
  sizes = n;
  if (n.batch == 0) {
    gpu->fill(call.best.row_pointer, 0, sizeof(std::int64_t), stream);
    return;
  }
  const std::int64_t boundaries = static_cast<std::int64_t>(n.batch) * (n.frames + 1) * n.classes;
  gpu::Workspace workspace(*gpu, stream);
  plan_workspace(workspace, call, {});
  workspace.add(call.best.duration, boundaries);
  workspace.add(call.best.label, boundaries);
  workspace.add(call.best.count, n.batch);
  workspace.add(call.best.trace, 3 * static_cast<std::int64_t>(n.batch) * n.frames);
  workspace.allocate();
  call.faults = faults;
  prepare<T>(call, stream);  // for the faults it finds
  std::optional<gpu::ScanShape> shape;
  const bool edges = call.scores.start.data != nullptr || call.scores.end.data != nullptr;
  if (options.algorithm == Algorithm::kFast && n.by_duration == 0)
    shape = gpu::choose_best_shape(n.classes, n.max_duration, edges);
  if (shape)
    launch(best_scan<T>(*shape), {side(n.batch)}, {side(shape->threads())}, call, stream);
  else if (n.by_duration != 0)
    launch(common<T>("best_pass_by_duration"), {side(n.batch)}, {32, 16}, call, stream);
  else
    launch(common<T>("best_pass"), {side(n.batch)}, {512}, call, stream);
  launch(common<T>("best_trace"), {side(n.batch)}, {32}, call, stream);
  launch(common<T>("best_pointers"), {1}, {256}, call, stream);
  launch(common<T>("best_pack"), {side(n.batch)}, {128}, call, stream);
}

void CudaEngine::State::segment(Call& call, StreamHandle stream) {
  sizes = call.sizes;
  if (sizes.batch == 0) {
    gpu->fill(call.best.row_pointer, 0, sizeof(std::int64_t), stream);
    return;
  }
  gpu::Workspace workspace(*gpu, stream);
  workspace.add(call.best.count, sizes.batch);
  workspace.allocate();
  call.faults = faults;
  launch(of_labels("count_labels"), {side(sizes.batch)}, {256}, call, stream);
  launch(of_labels("best_pointers"), {1}, {256}, call, stream);
  launch(of_labels("pack_labels"), {side(sizes.batch)}, {256}, call, stream);
}

CudaEngine::CudaEngine(int device, CudaOptions options)
    : CudaEngine(runtime::open_cuda_gpu(device), options) {}
CudaEngine::CudaEngine(std::shared_ptr<runtime::Gpu> gpu, CudaOptions options)
    : state_(std::make_unique<State>(std::move(gpu), options)) {}
std::string CudaEngine::describe_device(int device) {
  try {
    return runtime::open_cuda_gpu(device)->name() + ", " + runtime::cuda_compiler();
  } catch (const Error& error) {
    return error.what();
  }
}

CudaEngine::~CudaEngine() = default;
CudaEngine::CudaEngine(CudaEngine&&) noexcept = default;
CudaEngine& CudaEngine::operator=(CudaEngine&&) noexcept = default;

template <class T>
void CudaEngine::log_partition(const Potentials<T>& potentials, const PartitionResult& result,
                               const Gradients<T>& gradients, const View<const double, 1>& weights,
                               void* stream) {
  Call call = make_call(potentials);
  const Wanted wanted = want_gradients(potentials, gradients, call);
  set_weights(weights, call);
  call.rows.log_partition =
      row_output<double>("log_partition", result.log_partition, call.sizes.batch);
  call.rows.status = row_output<unsigned char>("status", result.status, call.sizes.batch);
  state_->run<T>(call, wanted, stream);
}

template <class T>
void CudaEngine::loss(const Potentials<T>& potentials, const SegmentationsView& gold,
                      const LossResult& result, const Gradients<T>& gradients,
                      const View<const double, 1>& weights, void* stream) {
  Call call = make_call(potentials);
  const Wanted wanted = want_gradients(potentials, gradients, call);
  set_weights(weights, call);
  const std::int64_t rows = call.sizes.batch;
  check_vector("the segmentations' row_pointer", gold.row_pointer.empty(),
               gold.row_pointer.extent(0), rows + 1);
  check_vector("the segmentations' duration", gold.duration.empty(), gold.duration.extent(0),
               gold.start.extent(0));
  check_vector("the segmentations' label", gold.label.empty(), gold.label.extent(0),
               gold.start.extent(0));
  check_contiguous("row_pointer", gold.row_pointer);
  check_contiguous("start", gold.start);
  check_contiguous("duration", gold.duration);
  check_contiguous("label", gold.label);
  call.gold = {reinterpret_cast<const long long*>(gold.row_pointer.data()), gold.start.data(),
               gold.duration.data(), gold.label.data(), gold.start.extent(0)};
  call.rows.loss = row_output<double>("loss", result.loss, rows);
  call.rows.score = row_output<double>("score", result.score, rows);
  call.rows.log_partition = row_output<double>("log_partition", result.log_partition, rows);
  call.rows.status = row_output<unsigned char>("status", result.status, rows);
  state_->run<T>(call, wanted, stream);
}

template <class T>
void CudaEngine::posteriors(const Potentials<T>& potentials, const Posteriors<T>& result,
                            void* stream) {
  Gradients<T> frames;
  frames.emission = result.label;
  frames.start = result.start;
  frames.end = result.end;
  Call call = make_call(potentials);
  Wanted wanted = want_gradients(potentials, frames, call);
  const std::int64_t rows = call.sizes.batch;
  Potentials<T> shapes = potentials;
  shapes.lengths = {};
  check_posteriors(result, check_potentials(shapes));
  if (!result.boundary.empty()) {
    call.gradients.boundary = strided_out(result.boundary);
    wanted.boundary = true;
  }
  if (!result.duration.empty() || !result.entropy.empty()) {
    call.gradients.row_duration = strided_out(result.duration);
    call.rows.entropy = row_output<double>("entropy", result.entropy, rows);
    wanted.by_row = wanted.duration = true;
    wanted.entropy = wanted.transition = !result.entropy.empty();
  }
  call.rows.log_partition = row_output<double>("log_partition", result.log_partition, rows);
  call.rows.status = row_output<unsigned char>("status", result.status, rows);
  state_->run<T>(call, wanted, stream);
}

template <class T>
void CudaEngine::viterbi(const Potentials<T>& potentials, const DeviceSegmentations& best,
                         const ViterbiResult& result, void* stream) {
  Call call = make_call(potentials);
  const std::int64_t rows = call.sizes.batch;
  set_segmentations(best, call);
  call.best.score = row_output<double>("score", result.score, rows);
  call.rows.status = row_output<unsigned char>("status", result.status, rows);
  state_->decode<T>(call, stream);
}

template <class Int>
void CudaEngine::segmentations_from_labels(const View<const Int, 2>& labels, const Lengths& lengths,
                                           const LabelRules& rules, const DeviceSegmentations& out,
                                           void* stream) {
  constexpr std::int64_t kMostInt = 1 << 30;
  if (rules.max_duration < 1 || rules.classes < 1)
    throw UsageError("semicrf: label rules need max_duration and classes of at least 1, not {}, {}",
                     rules.max_duration, rules.classes);
  if (labels.extent(1) >= kMostInt)
    throw UsageError("semicrf: T = {}; it must be below {}", labels.extent(1), kMostInt);
  if (!lengths.empty() && lengths.size() != labels.extent(0))
    throw UsageError("semicrf: {} lengths for {} rows of labels", lengths.size(), labels.extent(0));
  Call call{};
  call.sizes = {static_cast<int>(labels.extent(0)), static_cast<int>(labels.extent(1)),
                static_cast<int>(std::min(rules.classes, kMostInt)),
                static_cast<int>(std::min(rules.max_duration, kMostInt)), 0};
  call.lengths = row_lengths(lengths);
  if constexpr (std::is_same_v<Int, std::int64_t>)
    call.labels.wide = reinterpret_cast<const long long*>(labels.data());
  else
    call.labels.narrow = labels.data();
  call.labels.stride[0] = labels.stride(0);
  call.labels.stride[1] = labels.stride(1);
  call.labels.ignore = rules.ignore;
  call.labels.split = rules.long_runs == LongRuns::kSplit ? 1 : 0;
  set_segmentations(out, call);
  state_->segment(call, stream);
}

void CudaEngine::check(void* stream) {
  State& s = *state_;
  std::array<unsigned long long, gpu::kFaults> seen{};
  s.gpu->copy_to_host(seen.data(), s.faults, sizeof seen, stream);
  for (int kind = 0; kind < gpu::kFaults; ++kind) {
    if (seen[static_cast<std::size_t>(kind)] == ~0ull) continue;
    s.gpu->fill(s.faults, 0xff, sizeof seen, stream);
    throw DataError("semicrf: {}",
                    describe_fault(kind, seen[static_cast<std::size_t>(kind)], s.sizes));
  }
}

#define SEGFUSE_INSTANTIATE(T)                                                               \
  template void CudaEngine::log_partition(const Potentials<T>&, const PartitionResult&,      \
                                          const Gradients<T>&, const View<const double, 1>&, \
                                          void*);                                            \
  template void CudaEngine::loss(const Potentials<T>&, const SegmentationsView&,             \
                                 const LossResult&, const Gradients<T>&,                     \
                                 const View<const double, 1>&, void*);                       \
  template void CudaEngine::posteriors(const Potentials<T>&, const Posteriors<T>&, void*);   \
  template void CudaEngine::viterbi(const Potentials<T>&, const DeviceSegmentations&,        \
                                    const ViterbiResult&, void*);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
SEGFUSE_INSTANTIATE(Half)
SEGFUSE_INSTANTIATE(BFloat16)

template void CudaEngine::segmentations_from_labels(const View<const std::int32_t, 2>&,
                                                    const Lengths&, const LabelRules&,
                                                    const DeviceSegmentations&, void*);
template void CudaEngine::segmentations_from_labels(const View<const std::int64_t, 2>&,
                                                    const Lengths&, const LabelRules&,
                                                    const DeviceSegmentations&, void*);

}  // namespace segfuse::semicrf
