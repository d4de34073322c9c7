#include "runtime/plan_runner.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "segfuse/error.h"

namespace segfuse::runtime {

namespace {

constexpr std::uint32_t kNone = ~std::uint32_t{0};

std::vector<std::byte*> addresses_of(std::span<const Buffer> buffers) {
  std::vector<std::byte*> addresses;
  addresses.reserve(buffers.size());
  for (const Buffer& buffer : buffers) addresses.push_back(buffer.address());
  return addresses;
}

}  // namespace

/// One run while it is enqueued.
struct PlanRunner::Running {
  std::span<const Buffer> given;
  std::vector<std::byte*> addresses;  ///< of `given`
  StreamId first;                     ///< in place of streams_[0]
  Buffer arena;
  Frontier former;                ///< uses of the arena's memory before this run
  std::vector<StreamTick> ticks;  ///< of the steps enqueued so far
  std::vector<bool> begun;        ///< streams that have been ordered after `former`
};

PlanRunner::PlanRunner(plan::Plan plan, std::vector<PlanFunction> functions, Heap& heap,
                       Executor& executor, std::vector<StreamId> streams)
    : plan_(std::move(plan)), heap_(&heap), executor_(&executor), streams_(std::move(streams)) {
  for (PlanFunction& function : functions)
    functions_.push_back(std::make_shared<const PlanFunction>(std::move(function)));
  plan::verify(plan_);
  if (streams_.empty())
    throw UsageError(fmt::format("plan {}: no stream was given to run on", plan_.name));
  for (const plan::Step& step : plan_.steps) {
    const bool calls =
        step.kind == plan::Step::Kind::kCall || step.kind == plan::Step::Kind::kCollective;
    if (calls && step.function >= functions_.size())
      throw InternalError(fmt::format("plan {}, step {}: function {} of {} does not exist",
                                      plan_.name, step.name, step.function, functions_.size()));
  }
  placement_ = plan::place(plan_, static_cast<int>(streams_.size()));
  std::size_t number = 0;
  for (const plan::BufferSpec& buffer : plan_.buffers)
    given_.push_back(buffer.kind == plan::BufferSpec::Kind::kScratch ? 0 : number++);
  last_uses_.resize(number);
  find_last_uses();
}

void PlanRunner::find_last_uses() {
  const auto lanes = static_cast<std::size_t>(std::max(placement_.streams, 1));
  std::vector<std::vector<std::uint32_t>> last(last_uses_.size(),
                                               std::vector<std::uint32_t>(lanes, kNone));
  for (std::uint32_t i = 0; i < plan_.steps.size(); ++i)
    for (const auto* ids : {&plan_.steps[i].reads, &plan_.steps[i].writes})
      for (const plan::BufferId id : *ids)
        if (plan_.buffers[id.index].kind != plan::BufferSpec::Kind::kScratch)
          last[given_[id.index]][static_cast<std::size_t>(placement_.steps[i].stream)] = i;
  for (std::size_t given = 0; given < last.size(); ++given)
    for (const std::uint32_t step : last[given])
      if (step != kNone) last_uses_[given].push_back(step);
}

/// Of any of a set, one a stream.
std::vector<std::uint32_t> PlanRunner::last_uses(const std::vector<std::size_t>& set) const {
  std::map<int, std::uint32_t> of_stream;
  for (const std::size_t given : set)
    for (const std::uint32_t step : last_uses_.at(given)) {
      std::uint32_t& last = of_stream.emplace(placement_.steps[step].stream, step).first->second;
      last = std::max(last, step);
    }
  std::vector<std::uint32_t> steps;
  for (const auto& [stream, step] : of_stream) steps.push_back(step);
  return steps;
}

void PlanRunner::check(std::span<const Buffer> given) const {
  const auto wanted = static_cast<std::size_t>(
      std::ranges::count_if(plan_.buffers, [](const plan::BufferSpec& buffer) {
        return buffer.kind != plan::BufferSpec::Kind::kScratch;
      }));
  if (given.size() != wanted)
    throw UsageError(
        fmt::format("plan {}: {} buffers were given, it has {}", plan_.name, given.size(), wanted));
  for (std::size_t b = 0; b < plan_.buffers.size(); ++b) {
    const plan::BufferSpec& buffer = plan_.buffers[b];
    if (buffer.kind != plan::BufferSpec::Kind::kScratch && given[given_[b]].bytes() < buffer.bytes)
      throw UsageError(fmt::format("plan {}: {} has {} bytes, the plan needs {}", plan_.name,
                                   buffer.name, given[given_[b]].bytes(), buffer.bytes));
  }
}

std::vector<Frontier> PlanRunner::run(std::span<const Buffer> given, StreamId first,
                                      std::span<const std::vector<std::size_t>> sets) {
  check(given);
  std::vector<std::vector<std::uint32_t>> lasts;
  std::vector<bool> marked(plan_.steps.size(), false);
  for (const std::vector<std::size_t>& set : sets) {
    lasts.push_back(last_uses(set));
    for (const std::uint32_t step : lasts.back()) marked[step] = true;
  }
  Running running;
  running.given = given;
  running.addresses = addresses_of(given);
  running.first = first;
  running.begun.assign(streams_.size(), false);
  if (placement_.arena_bytes > 0) {
    running.arena = heap_->allocate(placement_.arena_bytes, first, "scratch");
    running.former = executor_->uses_of(running.arena);
  }
  // What was enqueued uses the arena, also when a later step cannot be.
  const auto note = [&] {
    if (!running.arena) return;
    Frontier uses;
    for (const StreamTick tick : running.ticks) uses.raise(tick);
    executor_->note(running.arena, uses);
  };
  try {
    for (std::uint32_t i = 0; i < plan_.steps.size(); ++i) {
      enqueue(running, i);
      if (!marked[i]) continue;
      Frontier now(running.ticks[i]);
      executor_->timeline().settle(now, kMaxStreams);  // an event, before the next step
    }
  } catch (...) {
    note();
    throw;
  }
  note();
  std::vector<Frontier> over(sets.size());
  for (std::size_t set = 0; set < sets.size(); ++set)
    for (const std::uint32_t step : lasts[set]) over[set].raise(running.ticks[step]);
  return over;
}

/// What a step touches in one run.
struct PlanRunner::Bound {
  std::vector<std::byte*> addresses;
  std::vector<MemoryAccess> accesses;
  bool scratch = false;
};

StreamTick PlanRunner::run_in_order(std::span<std::byte* const> given, StreamId stream) {
  Timeline& timeline = executor_->timeline();
  Device& device = timeline.device(stream);
  Buffer arena;
  if (placement_.arena_bytes > 0) {
    arena = heap_->allocate(placement_.arena_bytes, stream, "scratch");
    timeline.order_after(stream, executor_->uses_of(arena));
  }
  const auto note = [&](StreamTick now) {
    if (arena) executor_->note(arena, Frontier(now));
    return now;
  };
  try {
    return note(timeline.enqueue(stream, [&](StreamHandle handle) {
      Bound bound;
      for (const plan::Step& step : plan_.steps) {
        bind(step, arena.address(), given, bound);
        put(device, handle, step, bound);
      }
    }));
  } catch (...) {
    note(timeline.touch(stream));  // what was enqueued uses the arena
    throw;
  }
}

Work PlanRunner::work(const plan::Step& step, const std::vector<std::byte*>& addresses) const {
  return {step.name, [function = functions_[step.function], addresses](StreamHandle stream) {
            (*function)(stream, addresses);
          }};
}

void PlanRunner::bind(const plan::Step& step, std::byte* arena, std::span<std::byte* const> given,
                      Bound& bound) const {
  bound.addresses.clear();
  bound.accesses.clear();
  bound.scratch = false;
  const auto add = [&](plan::BufferId id, bool write) {
    const plan::BufferSpec& buffer = plan_.buffers[id.index];
    const bool scratch = buffer.kind == plan::BufferSpec::Kind::kScratch;
    std::byte* const address =
        scratch ? arena + placement_.offsets[id.index] : given[given_[id.index]];
    bound.scratch = bound.scratch || scratch;
    bound.addresses.push_back(address);
    if (buffer.bytes > 0 && address != nullptr)
      bound.accesses.push_back({address, buffer.bytes, write, buffer.name});
  };
  for (const plan::BufferId id : step.reads) add(id, false);
  for (const plan::BufferId id : step.writes) add(id, true);
}

/// Of the buffers that were given.
std::vector<Use> PlanRunner::uses(const plan::Step& step, std::span<const Buffer> given) const {
  std::vector<Use> uses;
  const auto add = [&](plan::BufferId id, bool write) {
    if (plan_.buffers[id.index].kind != plan::BufferSpec::Kind::kScratch)
      uses.push_back({given[given_[id.index]], write});
  };
  for (const plan::BufferId id : step.reads) add(id, false);
  for (const plan::BufferId id : step.writes) add(id, true);
  return uses;
}

void PlanRunner::put(Device& device, StreamHandle stream, const plan::Step& step,
                     const Bound& bound) const {
  switch (step.kind) {
    case plan::Step::Kind::kCopy:
      device.copy(stream, bound.addresses[1], bound.addresses[0],
                  std::min(plan_.buffers[step.reads[0].index].bytes,
                           plan_.buffers[step.writes[0].index].bytes));
      break;
    case plan::Step::Kind::kFill:
      if (bound.addresses[0] == nullptr) break;  // what is empty
      device.fill(stream, bound.addresses[0], step.value,
                  plan_.buffers[step.writes[0].index].bytes);
      break;
    case plan::Step::Kind::kCall:
    case plan::Step::Kind::kCollective:
      device.launch(stream, work(step, bound.addresses), bound.accesses);
      break;
  }
}

void PlanRunner::enqueue(Running& running, std::uint32_t number) {
  const plan::Step& step = plan_.steps[number];
  const plan::Placement::Step& placed = placement_.steps[number];
  const auto lane = static_cast<std::size_t>(placed.stream);
  const StreamId stream = lane == 0 ? running.first : streams_[lane];
  Bound bound;
  bind(step, running.arena.address(), running.addresses, bound);
  const std::vector<Use> used = uses(step, running.given);

  Frontier needed = executor_->before(stream, used, step.name.c_str(), false);
  for (const std::uint32_t other : placed.waits) needed.raise(running.ticks[other]);
  if (bound.scratch && !running.begun[lane]) {
    needed.join(running.former);
    running.begun[lane] = true;
  }
  Timeline& timeline = executor_->timeline();
  timeline.order_after(stream, needed);
  Device& device = timeline.device(stream);
  const StreamTick now =
      timeline.enqueue(stream, [&](StreamHandle handle) { put(device, handle, step, bound); });
  running.ticks.push_back(now);
  executor_->after(stream, used, now);
}

// The waits are those of the placement, between the streams of the capture.
void PlanRunner::capture(Device& device, std::span<const StreamHandle> streams, const Buffer& arena,
                         std::span<std::byte* const> given) const {
  std::vector<bool> awaited(plan_.steps.size(), false);
  for (const plan::Placement::Step& step : placement_.steps)
    for (const std::uint32_t other : step.waits) awaited[other] = true;
  std::vector<EventHandle> events(plan_.steps.size());
  const auto destroy = [&] {
    for (const EventHandle event : events)
      if (event) device.destroy_event(event);
  };
  Bound bound;
  try {
    for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
      const plan::Placement::Step& placed = placement_.steps[i];
      const StreamHandle stream = streams[static_cast<std::size_t>(placed.stream)];
      for (const std::uint32_t other : placed.waits) device.wait(stream, events[other]);
      bind(plan_.steps[i], arena.address(), given, bound);
      put(device, stream, plan_.steps[i], bound);
      if (!awaited[i]) continue;
      events[i] = device.create_event();
      device.record(stream, events[i]);
    }
  } catch (...) {
    destroy();
    throw;
  }
  destroy();
}

FrozenPlan PlanRunner::freeze(std::span<const Buffer> given) {
  check(given);
  FrozenPlan frozen;
  frozen.runner_ = this;
  frozen.given_.assign(given.begin(), given.end());
  if (plan_.steps.empty()) return frozen;
  Device& device = executor_->timeline().device(streams_[0]);
  if (placement_.arena_bytes > 0)
    frozen.arena_ = heap_->allocate(placement_.arena_bytes, streams_[0], "scratch");
  frozen.work_ = device.capture(placement_.streams, [&](std::span<const StreamHandle> streams) {
    capture(device, streams, frozen.arena_, addresses_of(frozen.given_));
  });
  frozen.work_.name = plan_.name;
  if (!frozen.is_one_launch()) frozen.arena_ = {};
  return frozen;
}

void FrozenPlan::run() {
  if (!is_one_launch()) return runner_->run(given_);
  std::vector<Use> uses;
  std::size_t number = 0;
  for (const plan::BufferSpec& buffer : runner_->plan_.buffers) {
    if (buffer.kind == plan::BufferSpec::Kind::kScratch) continue;
    const bool only_read = buffer.kind == plan::BufferSpec::Kind::kInput ||
                           buffer.kind == plan::BufferSpec::Kind::kConstant;
    uses.push_back({given_[number++], !only_read});
  }
  if (arena_) uses.push_back(writes(arena_));
  runner_->executor_->launch(runner_->streams_[0], work_, uses);
}

}  // namespace segfuse::runtime
