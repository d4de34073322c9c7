// SplitCudaEngine: checks, views of what each device holds, and the way over one device.

#include <fmt/core.h>

#include "runtime/open_device.h"
#include "segfuse/error.h"
#include "semicrf/cuda/over_device.h"
#include "semicrf/cuda/split/run.h"

namespace segfuse::semicrf {

struct SplitCudaEngine::State {
  std::vector<CudaEngine> engines;
  std::unique_ptr<Staging> kept;  ///< from the first call on

  CudaEngine::State& of(std::size_t device) { return *engines[device].state_; }
  SplitPlan plan(const RowShape& row);
  /// The results for a row depend on the kind of device.
  void check_kind() {
    for (const CudaEngine& engine : engines)
      if (engine.state_->gpu->device_name() != of(0).gpu->device_name())
        throw UsageError(fmt::format(
            "semicrf: a row cannot be split over a {} and a {}; give devices of one kind",
            of(0).gpu->device_name(), engine.state_->gpu->device_name()));
  }
  Staging* staging() {
    if (kept == nullptr) kept = std::make_unique<Staging>(of(0).gpu);
    return kept.get();
  }

  template <class T>
  struct Args {
    const RowShape& row;
    const std::vector<Share>& shares;
    const std::vector<Potentials<T>>& parts;
    const std::vector<Gradients<T>>& gradients;
    std::vector<StreamHandle> streams;
  };
  template <class T>
  std::vector<Member> members(const Args<T>& args, const SplitPlan& plan, DeviceWanted& wanted);
  template <class T>
  Partition on_one(const Args<T>& args);
};

namespace {

template <class T, int N>
View<T, N> whole_row(const View<T, N>& part, const FrameSpan& held, std::int64_t frames) {
  if (part.empty()) return part;
  return {part.data() - held.begin * part.extent(2), {1, frames, part.extent(2)}};
}

/// A part's frames: (1, n, C), contiguous, n as the share says.
template <class T, int N>
void check_part(const char* name, std::size_t device, const View<T, N>& part, const FrameSpan& held,
                std::int64_t classes) {
  if (part.empty()) return;
  const std::int64_t frames = held.end - held.begin;
  if (part.extent(0) == 1 && part.extent(1) == frames && part.extent(2) == classes &&
      (frames < 2 || part.stride(1) == classes) && (classes < 2 || part.stride(2) == 1))
    return;
  throw UsageError(fmt::format(
      "semicrf: {} of device {} has shape ({}, {}, {}), expected (1, {}, {}), contiguous", name,
      device, part.extent(0), part.extent(1), part.extent(2), frames, classes));
}

template <class T>
void check_parts(const RowShape& row, const std::vector<SplitCudaEngine::Share>& shares,
                 const std::vector<Potentials<T>>& parts,
                 const std::vector<Gradients<T>>& gradients) {
  if (parts.size() != shares.size() || (!gradients.empty() && gradients.size() != shares.size()))
    throw UsageError(fmt::format(
        "semicrf: {} parts and {} gradients for {} devices; give one for each, or no gradients",
        parts.size(), gradients.size(), shares.size()));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const FrameSpan& reads = shares[i].reads;
    const FrameSpan& writes = shares[i].writes;
    const Potentials<T>& part = parts[i];
    if (!part.lengths.empty())
      throw UsageError("semicrf: a row over several devices has no lengths");
    if (part.emission.empty() && reads.end > reads.begin)
      throw UsageError(fmt::format("semicrf: emission of device {} is missing", i));
    check_part("emission", i, part.emission, reads, row.classes);
    check_part("start", i, part.start, reads, row.classes);
    check_part("end", i, part.end, reads, row.classes);
    if (reads.end == reads.begin) continue;
    const Potentials<T>& shared = parts[0];
    if (part.start.empty() != shared.start.empty() || part.end.empty() != shared.end.empty() ||
        part.initial.empty() != shared.initial.empty() ||
        part.final.empty() != shared.final.empty())
      throw UsageError(fmt::format(
          "semicrf: devices 0 and {} do not both have initial, final, start and end scores", i));
    if (row.edges != !(part.start.empty() && part.end.empty()))
      throw UsageError(
          fmt::format("semicrf: device {} has {}start or end scores, unlike the row's shape", i,
                      row.edges ? "no " : ""));
    if (gradients.empty()) continue;
    const Gradients<T>& out = gradients[i];
    check_part("the gradient of emission", i, out.emission, writes, row.classes);
    check_part("the gradient of start", i, out.start, writes, row.classes);
    check_part("the gradient of end", i, out.end, writes, row.classes);
    const Gradients<T>& first = gradients[0];
    if (row.classes > 1 && !first.final.empty() && first.final.stride(0) != 1)
      throw UsageError("semicrf: the gradient of final has to be contiguous");
    if (out.emission.empty() != first.emission.empty() ||
        out.start.empty() != first.start.empty() || out.end.empty() != first.end.empty())
      throw UsageError(
          fmt::format("semicrf: devices 0 and {} do not want the same gradients of frames", i));
  }
}

}  // namespace

SplitCudaEngine::SplitCudaEngine(const std::vector<int>& devices, CudaOptions options)
    : state_(std::make_unique<State>()) {
  if (devices.empty()) throw UsageError("semicrf: a row needs at least one device");
  for (const int device : devices) state_->engines.emplace_back(device, options);
  state_->check_kind();
}
SplitCudaEngine::SplitCudaEngine(std::unique_ptr<State> state) : state_(std::move(state)) {}
SplitCudaEngine::~SplitCudaEngine() = default;
SplitCudaEngine::SplitCudaEngine(SplitCudaEngine&&) noexcept = default;
SplitCudaEngine& SplitCudaEngine::operator=(SplitCudaEngine&&) noexcept = default;

SplitCudaEngine OverDevice::split(const std::vector<runtime::DeviceAccess>& devices,
                                  const CudaOptions& options) {
  auto state = std::make_unique<SplitCudaEngine::State>();
  for (const runtime::DeviceAccess& device : devices)
    state->engines.push_back(make<CudaEngine>(device, options));
  state->check_kind();
  return SplitCudaEngine(std::move(state));
}

SplitPlan SplitCudaEngine::State::plan(const RowShape& row) {
  constexpr std::int64_t kMaxInt = 1 << 30;
  if (row.frames < 0 || row.frames >= kMaxInt || row.classes < 1 || row.classes >= kMaxInt ||
      row.max_duration < 1 || row.max_duration >= kMaxInt)
    throw UsageError(fmt::format(
        "semicrf: a row of T = {}, C = {}, K = {}; C and K are at least 1, all below {}",
        row.frames, row.classes, row.max_duration, kMaxInt));
  Call call{};
  call.sizes = {1, static_cast<int>(row.frames), static_cast<int>(row.classes),
                static_cast<int>(row.max_duration), row.by_duration ? 1 : 0};
  static const double edge = 0.0;  // only whether there is one counts
  if (row.edges) call.scores.start.data = &edge;
  call.part.frame_end = std::numeric_limits<int>::max();
  return plan_split(of(0), call, static_cast<int>(engines.size()));
}

std::vector<SplitCudaEngine::Share> SplitCudaEngine::shares(const RowShape& row) const {
  std::vector<Share> out(state_->engines.size());
  const SplitPlan plan = state_->plan(row);
  out[0] = {{0, row.frames}, {0, row.frames}};
  for (std::size_t i = 0; i < plan.parts.size(); ++i)
    out[i] = {plan.parts[i].held, plan.parts[i].own};
  return out;
}

template <class T>
std::vector<Member> SplitCudaEngine::State::members(const Args<T>& args, const SplitPlan& plan,
                                                    DeviceWanted& wanted) {
  std::vector<Member> out(engines.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Share& share = args.shares[i];
    Potentials<T> row = args.parts[i];
    row.emission = whole_row(row.emission, share.reads, args.row.frames);
    row.start = whole_row(row.start, share.reads, args.row.frames);
    row.end = whole_row(row.end, share.reads, args.row.frames);
    Gradients<T> gradients;
    if (!args.gradients.empty()) {
      if (i == 0) gradients = args.gradients[0];
      gradients.emission = whole_row(args.gradients[i].emission, share.writes, args.row.frames);
      gradients.start = whole_row(args.gradients[i].start, share.writes, args.row.frames);
      gradients.end = whole_row(args.gradients[i].end, share.writes, args.row.frames);
    }
    Member& member = out[i];
    member.engine = &of(i);
    member.staging = staging();
    member.stream = args.streams[i];
    member.part = plan.parts[i];
    member.call = make_call(row);
    if (member.call.sizes.max_duration != args.row.max_duration)
      throw UsageError(fmt::format("semicrf: duration of device {} has {} rows, the row's shape {}",
                                   i, member.call.sizes.max_duration, args.row.max_duration));
    const DeviceWanted here = want_gradients(row, gradients, member.call);
    if (i == 0) wanted = here;
    if (member.call.sizes.by_duration != 0)
      throw UsageError(
          fmt::format("semicrf: transition of device {} has {} slices, unlike the row's shape", i,
                      row.transition.extent(0)));
  }
  for (Member& member : out) prepare_member<T>(member, plan, wanted);
  return out;
}

template <class T>
SplitCudaEngine::Partition SplitCudaEngine::State::on_one(const Args<T>& args) {
  std::vector<Member> members(engines.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    members[i].engine = &of(i);
    members[i].staging = staging();
    members[i].stream = args.streams[i];
  }
  const Member& first = members[0];
  const std::int64_t cells = args.row.frames * args.row.classes;
  gpu::Workspace workspace(first.queue(), first.stream);
  Potentials<T> row = args.parts[0];
  Gradients<T> gradients;
  if (!args.gradients.empty()) gradients = args.gradients[0];
  const bool split = args.shares[0].writes.end < args.row.frames;
  struct Gathered {
    T* memory = nullptr;
    View<const T, 3> Potentials<T>::* in = nullptr;
    View<T, 3> Gradients<T>::* out = nullptr;
  };
  std::vector<Gathered> arrays;
  if (split) {
    for (View<const T, 3> Potentials<T>::* in :
         {&Potentials<T>::emission, &Potentials<T>::start, &Potentials<T>::end})
      if (!(row.*in).empty()) arrays.push_back({nullptr, in, nullptr});
    for (View<T, 3> Gradients<T>::* out :
         {&Gradients<T>::emission, &Gradients<T>::start, &Gradients<T>::end})
      if (!(gradients.*out).empty()) arrays.push_back({nullptr, nullptr, out});
  }
  double* value = nullptr;
  RowStatus* status = nullptr;
  workspace.add(value, 1);
  workspace.add(status, 1);
  for (Gathered& array : arrays) workspace.add(array.memory, cells);
  workspace.allocate();
  const auto at = [&](std::int64_t frame) { return frame * args.row.classes; };
  const auto bytes = [&](const Share& share) {
    return sizeof(T) * static_cast<std::size_t>(at(share.writes.end - share.writes.begin));
  };
  for (const Gathered& array : arrays) {
    const View<T, 3> whole(array.memory, {1, args.row.frames, args.row.classes});
    if (array.out != nullptr) {
      gradients.*array.out = whole;
      continue;
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      const Share& share = args.shares[i];
      members[i].give(first, array.memory + at(share.writes.begin),
                      (args.parts[i].*array.in).data() + at(share.writes.begin - share.reads.begin),
                      bytes(share));
    }
    row.*array.in = whole;
  }
  CudaEngine& engine = engines[0];
  engine.log_partition<T>(row, {View<double, 1>(value, {1}), View<RowStatus, 1>(status, {1})},
                          gradients, {}, first.stream.get());
  engine.check(first.stream.get());
  for (const Gathered& array : arrays) {
    if (array.out == nullptr) continue;
    for (std::size_t i = 0; i < members.size(); ++i) {
      const Share& share = args.shares[i];
      first.give(members[i], (args.gradients[i].*array.out).data(),
                 array.memory + at(share.writes.begin), bytes(share));
    }
  }
  Partition result;
  Reads reads;
  reads.add(first, value, result.log_partition);
  reads.add(first, status, result.status);
  reads.run();
  return result;
}

template <class T>
SplitCudaEngine::Partition SplitCudaEngine::log_partition(
    const RowShape& row, const std::vector<Potentials<T>>& parts,
    const std::vector<Gradients<T>>& gradients, const std::vector<void*>& streams) {
  const std::vector<Share> held = shares(row);
  check_parts(row, held, parts, gradients);
  if (!streams.empty() && streams.size() != held.size())
    throw UsageError(
        fmt::format("semicrf: {} streams for {} devices", streams.size(), held.size()));
  State::Args<T> args{row, held, parts, gradients, {}};
  for (std::size_t i = 0; i < held.size(); ++i)
    args.streams.push_back(runtime::legacy_if_null(streams.empty() ? nullptr : streams[i]));
  const SplitPlan plan = state_->plan(row);
  if (!plan.parts.empty()) {
    DeviceWanted wanted;
    std::vector<Member> members = state_->members(args, plan, wanted);
    Partition result;
    if (run_split<T>(members, plan.cuts, wanted, result)) return result;
  }
  return state_->on_one(args);
}

#define SEGFUSE_INSTANTIATE(T)                                                              \
  template SplitCudaEngine::Partition SplitCudaEngine::log_partition(                       \
      const RowShape&, const std::vector<Potentials<T>>&, const std::vector<Gradients<T>>&, \
      const std::vector<void*>&);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
SEGFUSE_INSTANTIATE(Half)
SEGFUSE_INSTANTIATE(BFloat16)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
