#include <array>

#include "semicrf/cuda/views.h"

namespace segfuse::semicrf {

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

}  // namespace segfuse::semicrf
