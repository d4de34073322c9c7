#include "plan/placement.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace segfuse::plan {

namespace {

/// For each stream, the number of its steps that are over, counted from 1.
using Clock = std::vector<std::uint32_t>;

/// Steps that each step has to come after because of what they read and write.
std::vector<std::vector<std::uint32_t>> dependencies(const Plan& plan) {
  struct Last {
    std::vector<std::uint32_t> reads;  // since the write
    std::vector<std::uint32_t> write;  // one or none
  };
  std::vector<Last> last(plan.buffers.size());
  std::vector<std::uint32_t> collective;
  std::vector<std::vector<std::uint32_t>> needs(plan.steps.size());
  for (std::uint32_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    auto& need = needs[i];
    const auto add = [&](const std::vector<std::uint32_t>& steps) {
      need.insert(need.end(), steps.begin(), steps.end());
    };
    for (const BufferId id : step.reads) {
      add(last[id.index].write);
      last[id.index].reads.push_back(i);
    }
    for (const BufferId id : step.writes) {
      add(last[id.index].write);
      add(last[id.index].reads);
      last[id.index] = {{}, {i}};
    }
    if (step.kind == Step::Kind::kCollective) {
      add(collective);
      collective = {i};
    }
    std::ranges::sort(need);
    need.erase(std::ranges::unique(need).begin(), need.end());
  }
  return needs;
}

class Placer {
 public:
  Placer(const Plan& plan, int streams)
      : plan_(plan),
        needs_(dependencies(plan)),
        clocks_(plan.steps.size()),
        number_(plan.steps.size()),
        tails_(static_cast<std::size_t>(streams), kNone),
        counts_(static_cast<std::size_t>(streams), 0) {}

  Placement place(std::size_t alignment) {
    placement_.steps.resize(plan_.steps.size());
    for (std::uint32_t i = 0; i < plan_.steps.size(); ++i) place_step(i);
    place_scratch(alignment);
    placement_.least_bytes = least_bytes(alignment);
    return std::move(placement_);
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  std::size_t stream_of(std::uint32_t step) const {
    return static_cast<std::size_t>(placement_.steps[step].stream);
  }

  /// Step a is over before step b begins.
  bool before(std::uint32_t a, std::uint32_t b) const {
    return a != b && clocks_[b][stream_of(a)] >= number_[a];
  }

  void place_step(std::uint32_t i) {
    const std::size_t stream = choose(i);
    Placement::Step& placed = placement_.steps[i];
    placed.stream = static_cast<int>(stream);
    placement_.streams = std::max(placement_.streams, placed.stream + 1);
    Clock clock = tails_[stream] == kNone ? Clock(tails_.size(), 0) : clocks_[tails_[stream]];
    // The latest first: others often follow from it.
    for (auto need = needs_[i].rbegin(); need != needs_[i].rend(); ++need) {
      if (clock[stream_of(*need)] >= number_[*need]) continue;
      placed.waits.push_back(*need);
      for (std::size_t s = 0; s < clock.size(); ++s)
        clock[s] = std::max(clock[s], clocks_[*need][s]);
    }
    // A wait may follow from one that was added after it.
    const std::vector<std::uint32_t> waits = placed.waits;
    std::erase_if(placed.waits, [&](std::uint32_t wait) {
      return std::ranges::any_of(waits, [&](std::uint32_t other) { return before(wait, other); });
    });
    std::ranges::sort(placed.waits);
    number_[i] = ++counts_[stream];
    clock[stream] = number_[i];
    clocks_[i] = std::move(clock);
    tails_[stream] = i;
  }

  // The stream of the latest needed step that is last on its stream; else the least used stream.
  std::size_t choose(std::uint32_t i) const {
    for (auto need = needs_[i].rbegin(); need != needs_[i].rend(); ++need)
      if (tails_[stream_of(*need)] == *need) return stream_of(*need);
    return static_cast<std::size_t>(std::ranges::min_element(counts_) - counts_.begin());
  }

  struct Scratch {
    std::uint32_t buffer = 0;
    std::size_t bytes = 0;
    std::vector<std::uint32_t> uses;  // the first one writes
  };

  std::vector<Scratch> scratch(std::size_t alignment) const {
    std::vector<Scratch> all;
    std::vector<std::size_t> index(plan_.buffers.size(), 0);
    for (std::uint32_t b = 0; b < plan_.buffers.size(); ++b) {
      if (plan_.buffers[b].kind != BufferSpec::Kind::kScratch) continue;
      index[b] = all.size();
      all.push_back({b, (plan_.buffers[b].bytes + alignment - 1) / alignment * alignment, {}});
    }
    for (std::uint32_t i = 0; i < plan_.steps.size(); ++i)
      for (const auto* ids : {&plan_.steps[i].reads, &plan_.steps[i].writes})
        for (const BufferId id : *ids)
          if (plan_.buffers[id.index].kind == BufferSpec::Kind::kScratch)
            all[index[id.index]].uses.push_back(i);
    return all;
  }

  bool may_share(const Scratch& a, const Scratch& b) const {
    const auto all_before = [&](const Scratch& first, const Scratch& second) {
      return std::ranges::all_of(
          first.uses, [&](std::uint32_t use) { return before(use, second.uses.front()); });
    };
    return a.uses.empty() || b.uses.empty() || all_before(a, b) || all_before(b, a);
  }

  // The largest first, each at the lowest place where nothing is that lives at the same time.
  void place_scratch(std::size_t alignment) {
    placement_.offsets.assign(plan_.buffers.size(), 0);
    std::vector<Scratch> left = scratch(alignment);
    std::ranges::stable_sort(left, std::ranges::greater{}, &Scratch::bytes);
    std::vector<std::pair<std::size_t, const Scratch*>> placed;  // by offset
    for (const Scratch& buffer : left) {
      std::size_t offset = 0;
      for (const auto& [start, other] : placed) {
        if (may_share(buffer, *other)) continue;
        if (offset + buffer.bytes <= start) break;
        offset = std::max(offset, start + other->bytes);
      }
      placement_.offsets[buffer.buffer] = offset;
      placement_.arena_bytes = std::max(placement_.arena_bytes, offset + buffer.bytes);
      const std::pair entry(offset, &buffer);
      placed.insert(
          std::ranges::upper_bound(placed, offset, {}, [](const auto& p) { return p.first; }),
          entry);
    }
  }

  std::size_t least_bytes(std::size_t alignment) const {
    std::vector<std::size_t> in_use(plan_.steps.size(), 0);
    for (const Scratch& buffer : scratch(alignment))
      if (!buffer.uses.empty())
        for (std::uint32_t i = buffer.uses.front(); i <= buffer.uses.back(); ++i)
          in_use[i] += buffer.bytes;
    return in_use.empty() ? 0 : std::ranges::max(in_use);
  }

  const Plan& plan_;
  std::vector<std::vector<std::uint32_t>> needs_;
  std::vector<Clock> clocks_;          // when a step is over
  std::vector<std::uint32_t> number_;  // of a step on its stream, from 1
  std::vector<std::uint32_t> tails_;   // last step of a stream
  std::vector<std::uint32_t> counts_;  // steps of a stream
  Placement placement_;
};

}  // namespace

Placement place(const Plan& plan, int streams, std::size_t alignment) {
  return Placer(plan, std::max(streams, 1)).place(alignment);
}

}  // namespace segfuse::plan
