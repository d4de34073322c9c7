#include <fmt/core.h>

#include <algorithm>

#include "runtime/open_device.h"
#include "semicrf/cuda/engine_state.h"
#include "semicrf/cuda/over_device.h"
#include "semicrf/model/gradients.h"
#include "semicrf/model/posteriors.h"

namespace segfuse::semicrf {

CudaEngine::CudaEngine(int device, CudaOptions options)
    : state_(std::make_unique<State>(runtime::access_cuda(device), options)) {}
CudaEngine::CudaEngine(std::unique_ptr<State> state) : state_(std::move(state)) {}
template <>
CudaEngine OverDevice::make(const runtime::DeviceAccess& device, const CudaOptions& options) {
  return CudaEngine(std::make_unique<CudaEngine::State>(device, options));
}
std::string CudaEngine::describe_device(int device) {
  try {
    return runtime::open_cuda(device)->device().name() + ", " + runtime::cuda_compiler();
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
                               void* caller) {
  const StreamHandle stream = runtime::legacy_if_null(caller);
  Call call = make_call(potentials);
  const DeviceWanted wanted = want_gradients(potentials, gradients, call);
  set_weights(weights, call);
  call.rows.log_partition =
      row_output<double>("log_partition", result.log_partition, call.sizes.batch);
  call.rows.status = row_output<unsigned char>("status", result.status, call.sizes.batch);
  state_->run<T>(call, wanted, stream);
}

template <class T>
void CudaEngine::loss(const Potentials<T>& potentials, const SegmentationsView& gold,
                      const LossResult& result, const Gradients<T>& gradients,
                      const View<const double, 1>& weights, void* caller) {
  const StreamHandle stream = runtime::legacy_if_null(caller);
  Call call = make_call(potentials);
  const DeviceWanted wanted = want_gradients(potentials, gradients, call);
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
                            void* caller) {
  const StreamHandle stream = runtime::legacy_if_null(caller);
  Gradients<T> frames;
  frames.emission = result.label;
  frames.start = result.start;
  frames.end = result.end;
  Call call = make_call(potentials);
  DeviceWanted wanted = want_gradients(potentials, frames, call);
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
                         const ViterbiResult& result, void* caller) {
  const StreamHandle stream = runtime::legacy_if_null(caller);
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
                                           const View<std::int64_t, 1>& frames, void* stream) {
  segmentations_from_marked_labels(labels, {}, lengths, rules, out, frames, stream);
}

template <class Int>
void CudaEngine::segmentations_from_marked_labels(const View<const Int, 2>& labels,
                                                  const View<const std::uint8_t, 2>& begins,
                                                  const Lengths& lengths, const LabelRules& rules,
                                                  const DeviceSegmentations& out,
                                                  const View<std::int64_t, 1>& frames,
                                                  void* caller) {
  const StreamHandle stream = runtime::legacy_if_null(caller);
  constexpr std::int64_t kMaxInt = 1 << 30;
  if (rules.max_duration < 1 || rules.classes < 1)
    throw UsageError(
        fmt::format("semicrf: label rules need max_duration and classes of at least 1, not {}, {}",
                    rules.max_duration, rules.classes));
  if (labels.extent(1) >= kMaxInt)
    throw UsageError(
        fmt::format("semicrf: T = {}; it must be below {}", labels.extent(1), kMaxInt));
  if (!lengths.empty() && lengths.size() != labels.extent(0))
    throw UsageError(
        fmt::format("semicrf: {} lengths for {} rows of labels", lengths.size(), labels.extent(0)));
  Call call{};
  call.sizes = {static_cast<int>(labels.extent(0)), static_cast<int>(labels.extent(1)),
                static_cast<int>(std::min(rules.classes, kMaxInt)),
                static_cast<int>(std::min(rules.max_duration, kMaxInt)), 0};
  call.lengths = row_lengths(lengths);
  if constexpr (std::is_same_v<Int, std::int64_t>)
    call.labels.wide = reinterpret_cast<const long long*>(labels.data());
  else
    call.labels.narrow = labels.data();
  call.labels.stride[0] = labels.stride(0);
  call.labels.stride[1] = labels.stride(1);
  if (!begins.empty()) {
    if (begins.extent(0) != labels.extent(0) || begins.extent(1) != labels.extent(1))
      throw UsageError(
          fmt::format("semicrf: the marks of segments are [{}, {}], the labels [{}, {}]",
                      begins.extent(0), begins.extent(1), labels.extent(0), labels.extent(1)));
    call.labels.begins = begins.data();
    call.labels.begins_stride[0] = begins.stride(0);
    call.labels.begins_stride[1] = begins.stride(1);
  }
  call.labels.frames =
      reinterpret_cast<long long*>(whole_output("frames", frames, labels.extent(0)));
  call.labels.ignore = rules.ignore;
  call.labels.split = rules.long_runs == LongRuns::kSplit ? 1 : 0;
  set_segmentations(out, call);
  state_->segment(call, stream);
}

std::size_t CudaEngine::measure(const std::function<void()>& calls) {
  return state_->gpu->measure(calls);
}

void CudaEngine::check(void* caller) {
  const StreamHandle stream = runtime::legacy_if_null(caller);
  check_faults(*state_->gpu, state_->faults.words(), state_->sizes, stream);
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
#undef SEGFUSE_INSTANTIATE

#define SEGFUSE_INSTANTIATE_LABELS(Int)                                                         \
  template void CudaEngine::segmentations_from_labels(                                          \
      const View<const Int, 2>&, const Lengths&, const LabelRules&, const DeviceSegmentations&, \
      const View<std::int64_t, 1>&, void*);                                                     \
  template void CudaEngine::segmentations_from_marked_labels(                                   \
      const View<const Int, 2>&, const View<const std::uint8_t, 2>&, const Lengths&,            \
      const LabelRules&, const DeviceSegmentations&, const View<std::int64_t, 1>&, void*);

SEGFUSE_INSTANTIATE_LABELS(std::int32_t)
SEGFUSE_INSTANTIATE_LABELS(std::int64_t)

}  // namespace segfuse::semicrf
