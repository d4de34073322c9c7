#pragma once
// Random plans that are right: scratch is written before it is read.

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "plan/plan.h"

namespace segfuse::plan {

/// All steps are calls, each with a function of its own number, or fills and copies.
inline Plan random_plan(std::uint64_t seed, int steps, int buffers) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  Plan plan{fmt::format("random {}", seed), {}, {}, {}};
  using Kind = BufferSpec::Kind;
  std::vector<bool> written;
  for (int b = 0; b < buffers; ++b) {
    const std::size_t dice = below(8);
    const Kind kind = dice == 0   ? Kind::kInput
                      : dice == 1 ? Kind::kOutput
                      : dice == 2 ? Kind::kInOut
                                  : Kind::kScratch;
    plan.buffers.push_back(
        {kind, fmt::format("b{}", b), 8 * (1 + below(std::size_t{1} << below(9)))});
    written.push_back(kind == Kind::kInput || kind == Kind::kInOut);
  }
  const auto any = [&] { return static_cast<std::uint32_t>(below(plan.buffers.size())); };
  for (int s = 0; s < steps; ++s) {
    Step step;
    step.name = fmt::format("s{}", s);
    const std::uint32_t target = any();
    if (plan.buffers[target].kind == Kind::kInput) continue;
    step.writes.push_back({target});
    if (below(6) == 0) {
      step.kind = Step::Kind::kFill;
      step.value = static_cast<std::uint8_t>(below(256));
    } else {
      for (std::size_t r = below(4); r > 0; --r) {
        const std::uint32_t source = any();
        const BufferId id{source};
        if (written[source] && source != target &&
            std::ranges::find(step.reads, id) == step.reads.end())
          step.reads.push_back(id);
      }
      if (below(8) == 0 && step.reads.size() == 1 &&
          plan.buffers[step.reads[0].index].bytes >= plan.buffers[target].bytes)
        step.kind = Step::Kind::kCopy;
      else if (below(10) == 0)
        step.kind = Step::Kind::kCollective;
    }
    step.function = static_cast<std::uint32_t>(plan.steps.size());
    written[target] = true;
    plan.steps.push_back(step);
  }
  return plan;
}

}  // namespace segfuse::plan
