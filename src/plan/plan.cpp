#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "segfuse/error.h"

namespace segfuse::plan {

namespace {

constexpr std::array kBufferKinds = {"input", "output", "inout", "constant", "scratch"};
constexpr std::array kStepKinds = {"call", "copy", "fill", "collective"};

std::string names(const Plan& plan, const std::vector<BufferId>& ids) {
  std::string text;
  for (const BufferId id : ids)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", plan.buffers[id.index].name);
  return text;
}

}  // namespace

void verify(const Plan& plan) {
  std::vector<bool> written(plan.buffers.size(), false);
  for (std::size_t i = 0; i < plan.buffers.size(); ++i)
    written[i] = plan.buffers[i].kind != BufferSpec::Kind::kScratch &&
                 plan.buffers[i].kind != BufferSpec::Kind::kOutput;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    const auto require = [&](bool holds, std::string_view what) {
      if (!holds)
        throw InternalError(
            fmt::format("plan {}, step {} ({}): {}", plan.name, i, step.name, what));
    };
    std::vector<BufferId> used = step.reads;
    used.insert(used.end(), step.writes.begin(), step.writes.end());
    for (const BufferId id : used)
      require(id.index < plan.buffers.size(), fmt::format("there is no buffer {}", id.index));
    std::ranges::sort(used);
    require(std::ranges::adjacent_find(used) == used.end(), "it names a buffer twice");
    for (const BufferId id : step.reads)
      require(written[id.index],
              fmt::format("it reads {}, which nothing has written", plan.buffers[id.index].name));
    for (const BufferId id : step.writes) {
      const BufferSpec::Kind kind = plan.buffers[id.index].kind;
      require(kind != BufferSpec::Kind::kInput && kind != BufferSpec::Kind::kConstant,
              fmt::format("it writes {}, which is only read", plan.buffers[id.index].name));
      written[id.index] = true;
    }
    if (step.kind == Step::Kind::kCopy)
      require(step.reads.size() == 1 && step.writes.size() == 1,
              "a copy has one source and one end");
    if (step.kind == Step::Kind::kFill)
      require(step.reads.empty() && step.writes.size() == 1, "a fill writes one buffer");
  }
}

std::string to_string(const Plan& plan) {
  std::string text = fmt::format("plan {}\n", plan.name);
  for (const BufferSpec& buffer : plan.buffers)
    text += fmt::format("  {} {} {}\n", kBufferKinds[static_cast<std::size_t>(buffer.kind)],
                        buffer.name, buffer.bytes);
  for (const Step& step : plan.steps)
    text += fmt::format("  {} {} ({}) -> ({})\n", kStepKinds[static_cast<std::size_t>(step.kind)],
                        step.name, names(plan, step.reads), names(plan, step.writes));
  return text;
}

}  // namespace segfuse::plan
