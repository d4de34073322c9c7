#include "plan/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "support/random/random_plan.h"

namespace segfuse::plan {
namespace {

/// Who is over before whom, by following the order of streams and waits: reach[b] has all a.
std::vector<std::set<std::uint32_t>> reachable(const Placement& placement) {
  std::vector<std::set<std::uint32_t>> reach(placement.steps.size());
  std::map<int, std::uint32_t> tail;
  for (std::uint32_t i = 0; i < placement.steps.size(); ++i) {
    const Placement::Step& step = placement.steps[i];
    std::vector<std::uint32_t> before = step.waits;
    if (tail.contains(step.stream)) before.push_back(tail[step.stream]);
    for (const std::uint32_t other : before) {
      reach[i].insert(other);
      reach[i].insert(reach[other].begin(), reach[other].end());
    }
    tail[step.stream] = i;
  }
  return reach;
}

bool touches(const std::vector<BufferId>& ids, std::uint32_t buffer) {
  return std::ranges::find(ids, BufferId{buffer}) != ids.end();
}

/// Pairs of steps (a before b in the plan) that must not run at the same time.
std::set<std::pair<std::uint32_t, std::uint32_t>> conflicts(const Plan& plan) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> found;
  for (std::uint32_t b = 0; b < plan.steps.size(); ++b)
    for (std::uint32_t a = 0; a < b; ++a) {
      const Step& first = plan.steps[a];
      const Step& second = plan.steps[b];
      bool conflict = first.kind == Step::Kind::kCollective && second.kind == first.kind;
      for (std::uint32_t buffer = 0; buffer < plan.buffers.size(); ++buffer) {
        const bool first_writes = touches(first.writes, buffer);
        const bool second_writes = touches(second.writes, buffer);
        conflict = conflict || (first_writes && (second_writes || touches(second.reads, buffer))) ||
                   (second_writes && touches(first.reads, buffer));
      }
      if (conflict) found.emplace(a, b);
    }
  return found;
}

TEST(Placement, EveryConflictIsOrderedAndNoWaitIsInVain) {
  std::size_t waits = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const Plan plan = random_plan(seed, 40, 14);
    const Placement placement = place(plan, 1 + static_cast<int>(seed % 4));
    const auto reach = reachable(placement);
    const auto conflicting = conflicts(plan);
    for (const auto& [a, b] : conflicting) EXPECT_TRUE(reach[b].contains(a)) << a << " " << b;
    // Without any one wait some conflict is in no order.
    for (std::uint32_t i = 0; i < placement.steps.size(); ++i) {
      for (const std::uint32_t wait : placement.steps[i].waits) {
        ++waits;
        Placement without = placement;
        std::erase(without.steps[i].waits, wait);
        const auto less = reachable(without);
        EXPECT_TRUE(std::ranges::any_of(
            conflicting, [&](const auto& pair) { return !less[pair.second].contains(pair.first); }))
            << "step " << i << " waits for " << wait << " in vain";
      }
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(waits, 1000U);
}

TEST(Placement, ScratchSharesBytesOnlyWhereOrderIsThereAnyway) {
  std::size_t shared = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const Plan plan = random_plan(seed, 40, 16);
    const Placement placement = place(plan, 1 + static_cast<int>(seed % 4), 8);
    const auto reach = reachable(placement);
    const auto uses = [&](std::uint32_t buffer) {
      std::vector<std::uint32_t> steps;
      for (std::uint32_t i = 0; i < plan.steps.size(); ++i)
        if (touches(plan.steps[i].reads, buffer) || touches(plan.steps[i].writes, buffer))
          steps.push_back(i);
      return steps;
    };
    for (std::uint32_t a = 0; a < plan.buffers.size(); ++a) {
      if (plan.buffers[a].kind != BufferSpec::Kind::kScratch) continue;
      EXPECT_LE(placement.offsets[a] + plan.buffers[a].bytes, placement.arena_bytes);
      for (std::uint32_t b = 0; b < plan.buffers.size(); ++b) {
        if (b == a || plan.buffers[b].kind != BufferSpec::Kind::kScratch) continue;
        const bool overlap = placement.offsets[a] < placement.offsets[b] + plan.buffers[b].bytes &&
                             placement.offsets[b] < placement.offsets[a] + plan.buffers[a].bytes;
        const auto uses_a = uses(a);
        const auto uses_b = uses(b);
        if (!overlap || uses_a.empty() || uses_b.empty()) continue;
        ++shared;
        const auto all_before = [&](const auto& first, const auto& second) {
          for (const std::uint32_t x : first)
            for (const std::uint32_t y : second)
              if (!reach[y].contains(x)) return false;
          return true;
        };
        EXPECT_TRUE(all_before(uses_a, uses_b) || all_before(uses_b, uses_a)) << a << " " << b;
      }
    }
    EXPECT_GE(placement.arena_bytes, place(plan, 1, 8).least_bytes);
  }
  EXPECT_GT(shared, 300U);
}

TEST(Placement, OneStreamNeedsLittleMoreThanTheLeast) {
  std::size_t arena = 0;
  std::size_t least = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Placement placement = place(random_plan(seed, 60, 20), 1);
    EXPECT_EQ(placement.streams, 1);
    arena += placement.arena_bytes;
    least += placement.least_bytes;
  }
  EXPECT_LE(static_cast<double>(arena), 1.1 * static_cast<double>(least));
}

TEST(Placement, IndependentChainsRunBesideEachOther) {
  Plan plan{"chains", {}, {}, {}};
  for (std::uint32_t chain = 0; chain < 3; ++chain)
    plan.buffers.push_back({BufferSpec::Kind::kInOut, std::to_string(chain), 8});
  for (int depth = 0; depth < 4; ++depth)
    for (std::uint32_t chain = 0; chain < 3; ++chain)
      plan.steps.push_back({Step::Kind::kCall, "s", 0, 0, {}, {{chain}}});
  const Placement placement = place(plan, 3);
  EXPECT_EQ(placement.streams, 3);
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    EXPECT_EQ(placement.steps[i].stream, static_cast<int>(i % 3));
    EXPECT_TRUE(placement.steps[i].waits.empty());
  }
}

TEST(Placement, NothingToDo) {
  const Placement placement = place({"empty", {}, {}, {}}, 4);
  EXPECT_EQ(placement.arena_bytes, 0U);
  EXPECT_EQ(placement.streams, 0);
}

}  // namespace
}  // namespace segfuse::plan
