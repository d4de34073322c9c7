#include <fmt/core.h>

#include <array>

#include "semicrf/cuda/views.h"

namespace segfuse::semicrf {

namespace {

constexpr std::size_t kFaultBytes = gpu::kFaults * sizeof(unsigned long long);

}  // namespace

gpu::Faults::Faults(Queue& queue)
    : queue_(queue),
      words_(reinterpret_cast<unsigned long long*>(queue.allocate(kFaultBytes, queue.home()))) {
  queue.fill(words_, 0xff, kFaultBytes, queue.home());
  queue.synchronize(queue.home());
}

gpu::Faults::~Faults() {
  try {
    queue_.drain();
  } catch (const Error&) {
    // A failure of that work; it is over all the same.
  }
  queue_.release(reinterpret_cast<std::byte*>(words_), queue_.home());
}

std::string describe_fault(int kind, unsigned long long index, const gpu::Sizes& n) {
  static constexpr std::array<const char*, gpu::kFaults> kNames = {
      "emission", "start", "end",   "transition", "duration", "initial", "final",
      "length",   "label", "label", "label",      "start",    "gold",    "label",
      "boundary", "tail",  "limit", "length",     "room"};
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
        "batch {}, time {}: a run of one label is longer than the longest segment, {} frames; "
        "raise K or split long runs",
        at / n.frames, at % n.frames, n.max_duration);
  if (kind == gpu::kFaultGold)
    return fmt::format(
        "gold segment {} does not fit: segments tile their row in order, with durations in [1, {}] "
        "and labels in [0, {})",
        at, n.max_duration, n.classes);
  if (kind == gpu::kFaultKnownLabel)
    return fmt::format("batch {}, time {}: the known label is not below {}", at / n.frames,
                       at % n.frames, n.classes);
  if (kind == gpu::kFaultKnownBoundary)
    return fmt::format("batch {}, time {}: the known boundary is not -1, 0 or 1", at / n.frames,
                       at % n.frames);
  if (kind == gpu::kFaultLimit)
    return fmt::format(
        "label {} is limited to more frames than K = {}; with a tail limits are at most K", at,
        n.max_duration);
  if (kind == gpu::kFaultLengths)
    return fmt::format("batch {} has a different number of frames in the two models", at);
  if (kind == gpu::kFaultNoStart)
    return fmt::format("batch {}, time {}: the label changes without the start of a segment",
                       at / n.frames, at % n.frames);
  if (kind == gpu::kFaultRoom)
    return fmt::format("{} segments do not fit into the arrays for them; pass larger arrays", at);
  return fmt::format("{}[{}] is NaN or +inf; scores are finite or -inf", name, at);
}

void check_faults(gpu::Queue& queue, unsigned long long* faults, const gpu::Sizes& sizes,
                  runtime::StreamHandle stream) {
  std::array<unsigned long long, gpu::kFaults> seen{};
  queue.read(seen.data(), faults, sizeof seen, stream);
  for (int kind = 0; kind < gpu::kFaults; ++kind) {
    const unsigned long long index = seen[static_cast<std::size_t>(kind)];
    if (index == ~0ull) continue;
    queue.fill(faults, 0xff, sizeof seen, stream);
    throw DataError(fmt::format("semicrf: {}", describe_fault(kind, index, sizes)));
  }
}

}  // namespace segfuse::semicrf
