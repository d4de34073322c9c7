#include "comm/meet/state.h"

#include <fmt/core.h>

namespace segfuse::comm::meet {

std::string_view name_of(Phase phase) noexcept {
  constexpr std::string_view kNames[kPhases] = {"starting", "reading data", "forward", "backward",
                                                "exchange", "update",       "scoring", "saving"};
  return kNames[static_cast<std::size_t>(phase)];
}

bool State::same_place(const State& other) const noexcept {
  return generation == other.generation && step == other.step && shard == other.shard &&
         bucket == other.bucket && phase == other.phase && doing == other.doing;
}

std::string place_of(const State& state) {
  std::string text = fmt::format("step {}, {}", state.step, name_of(state.phase));
  if (state.phase == Phase::kExchange && state.bucket >= 0)
    text += fmt::format(" of bucket {}", state.bucket);
  if (!state.doing.empty()) text += fmt::format(" ({})", state.doing);
  return text;
}

std::string work_of(const State& state) {
  constexpr std::string_view kWords[kPhases] = {"starting",
                                                "reading data",
                                                "in the forward pass",
                                                "in the backward pass",
                                                "in the exchange",
                                                "in the update",
                                                "scoring",
                                                "saving"};
  std::string text(kWords[static_cast<std::size_t>(state.phase)]);
  if (state.phase == Phase::kExchange && state.bucket >= 0)
    text += fmt::format(" of bucket {}", state.bucket);
  if (!state.doing.empty()) text += fmt::format(" ({})", state.doing);
  return text;
}

}  // namespace segfuse::comm::meet
