#include "runtime/plan_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/check/race_checker.h"
#include "segfuse/error.h"
#include "support/random/random_plan.h"
#include "support/sim/sim_device.h"

namespace segfuse::runtime {
namespace {

using testing::HasSubstr;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  a ^= b + 0x9E3779B97F4A7C15ULL + (a << 6) + (a >> 2);
  return a * 0xBF58476D1CE4E5B9ULL;
}

/// Every word of what a step writes depends on all words of what it reads and, for in-outs, on what
/// was there.
void go(const plan::Plan& plan, std::size_t number, std::span<std::byte* const> addresses) {
  const plan::Step& step = plan.steps[number];
  std::uint64_t value = number + 1;
  for (std::size_t r = 0; r < step.reads.size(); ++r) {
    const std::size_t words = plan.buffers[step.reads[r].index].bytes / 8;
    const auto* const at = reinterpret_cast<const std::uint64_t*>(addresses[r]);
    for (std::size_t i = 0; i < words; ++i) value = mix(value, at[i]);
  }
  const std::size_t words = plan.buffers[step.writes[0].index].bytes / 8;
  auto* const to = reinterpret_cast<std::uint64_t*>(addresses[step.reads.size()]);
  for (std::size_t i = 0; i < words; ++i) to[i] = mix(value, i);
}

using Contents = std::vector<std::vector<std::uint64_t>>;  // by buffer

/// What steps one after the other give, starting from `contents`.
void run_in_order(const plan::Plan& plan, Contents& contents) {
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const plan::Step& step = plan.steps[i];
    std::vector<std::byte*> addresses;
    for (const auto* ids : {&step.reads, &step.writes})
      for (const plan::BufferId id : *ids)
        addresses.push_back(reinterpret_cast<std::byte*>(contents[id.index].data()));
    const std::size_t bytes = plan.buffers[step.writes[0].index].bytes;
    if (step.kind == plan::Step::Kind::kFill)
      std::memset(addresses[0], step.value, bytes);
    else if (step.kind == plan::Step::Kind::kCopy)
      std::memcpy(addresses[1], addresses[0],
                  std::min(bytes, plan.buffers[step.reads[0].index].bytes));
    else
      go(plan, i, addresses);
  }
}

struct Machine {
  Machine(std::shared_ptr<sim::Schedule> schedule, int count, HeapOptions options = {})
      : device({.schedule = std::move(schedule), .granule = 4096, .limit = std::size_t{64} << 20}),
        checker(device),
        heap(checker, timeline, options),
        executor(timeline) {
    for (int i = 0; i < count; ++i) streams.push_back(timeline.create(checker));
  }
  void synchronize() {
    for (const StreamId stream : streams) timeline.synchronize(stream);
  }

  sim::SimDevice device;
  RaceChecker checker;
  Timeline timeline;
  Heap heap;
  Executor executor;
  std::vector<StreamId> streams;
};

std::vector<PlanFunction> functions(const plan::Plan& plan) {
  std::vector<PlanFunction> all;
  for (std::size_t i = 0; i < plan.steps.size(); ++i)
    all.push_back([&plan, i](StreamHandle, std::span<std::byte* const> addresses) {
      go(plan, i, addresses);
    });
  return all;
}

struct Given {
  std::vector<Buffer> buffers;
  std::vector<std::uint32_t> numbers;
};

/// Buffers for what is not scratch, filled with their numbers by a kernel on the last stream.
Given give(Machine& machine, const plan::Plan& plan, Contents& contents) {
  Given given;
  contents.assign(plan.buffers.size(), {});
  for (std::uint32_t b = 0; b < plan.buffers.size(); ++b) {
    const std::size_t words = plan.buffers[b].bytes / 8;
    contents[b].assign(words, 0);
    if (plan.buffers[b].kind == plan::BufferSpec::Kind::kScratch) continue;
    contents[b].assign(words, b + 1);
    Buffer buffer = machine.heap.allocate(words * 8, machine.streams.back(), "given");
    std::byte* const at = buffer.address();
    machine.executor.launch(machine.streams.back(),
                            {"given",
                             [=](StreamHandle) {
                               std::fill_n(reinterpret_cast<std::uint64_t*>(at), words,
                                           std::uint64_t{b} + 1);
                             }},
                            {writes(buffer)});
    given.buffers.push_back(std::move(buffer));
    given.numbers.push_back(b);
  }
  return given;
}

void expect_contents(Machine& machine, const Given& given, const Contents& contents) {
  machine.synchronize();
  for (std::size_t i = 0; i < given.buffers.size(); ++i) {
    const auto& expected = contents[given.numbers[i]];
    EXPECT_EQ(std::memcmp(given.buffers[i].address(), expected.data(), expected.size() * 8), 0)
        << "buffer " << given.numbers[i];
  }
  for (const Finding& finding : machine.checker.findings()) ADD_FAILURE() << finding.describe();
}

TEST(PlanRunner, GivesWhatStepsInOrderGiveUnderEverySchedule) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const plan::Plan plan = plan::random_plan(seed, 30, 12);
    for (const sim::NamedSchedule& named : sim::all_schedules(3, 3)) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " " << named.name << named.number);
      Machine machine(named.make(), 3);
      Contents contents;
      {
        PlanRunner runner(plan, functions(plan), machine.heap, machine.executor, machine.streams);
        const Given given = give(machine, plan, contents);
        // Three runs in a row, the host not waiting between.
        for (int run = 0; run < 3; ++run) {
          runner.run(given.buffers);
          run_in_order(plan, contents);
        }
        expect_contents(machine, given, contents);
      }
      machine.heap.verify();
      if (HasFailure()) return;
    }
  }
}

TEST(PlanRunner, RunsOnOtherBuffersMayOverlap) {
  const plan::Plan plan = plan::random_plan(5, 30, 12);
  Machine machine(sim::overlap(), 4);
  const std::vector<StreamId> first(machine.streams.begin(), machine.streams.begin() + 2);
  const std::vector<StreamId> second(machine.streams.begin() + 2, machine.streams.end());
  PlanRunner a(plan, functions(plan), machine.heap, machine.executor, first);
  PlanRunner b(plan, functions(plan), machine.heap, machine.executor, second);
  Contents contents_a;
  Contents contents_b;
  const Given given_a = give(machine, plan, contents_a);
  const Given given_b = give(machine, plan, contents_b);
  for (int run = 0; run < 3; ++run) {
    a.run(given_a.buffers);
    b.run(given_b.buffers);
    run_in_order(plan, contents_a);
    run_in_order(plan, contents_b);
  }
  expect_contents(machine, given_a, contents_a);
  expect_contents(machine, given_b, contents_b);
}

/// The callers' memory is ordered by their streams; scratch goes from one to the other.
TEST(PlanRunner, RunsByAddressesAreInTheOrderOfTheirStream) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const plan::Plan plan = plan::random_plan(seed, 30, 12);
    for (const sim::NamedSchedule& named : sim::all_schedules(3, 3)) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " " << named.name << named.number);
      HeapOptions options;
      options.magazine_bytes = 0;  // else each stream keeps its own
      Machine machine(named.make(), 3, options);
      const std::vector<StreamId> one(machine.streams.begin(), machine.streams.begin() + 1);
      PlanRunner runner(plan, functions(plan), machine.heap, machine.executor, one);
      std::array<Contents, 2> contents;
      std::array<Given, 2> given;
      std::array<std::vector<std::byte*>, 2> addresses;
      for (std::size_t i = 0; i < 2; ++i) {
        given[i] = give(machine, plan, contents[i]);
        for (const Buffer& buffer : given[i].buffers) {
          addresses[i].push_back(buffer.address());
          machine.timeline.order_after(machine.streams[i], machine.executor.uses_of(buffer));
        }
      }
      for (int run = 0; run < 6; ++run) {
        const auto i = static_cast<std::size_t>(run / 2 % 2);
        runner.run_in_order(addresses[i], machine.streams[i]);
        run_in_order(plan, contents[i]);
      }
      for (std::size_t i = 0; i < 2; ++i) expect_contents(machine, given[i], contents[i]);
      machine.heap.verify();
      if (HasFailure()) return;
    }
  }
}

/// What is written is in one allocation, as the gradients of a model are.
Given give_parts(Machine& machine, const plan::Plan& plan, Contents& contents) {
  Given given = give(machine, plan, contents);
  std::size_t bytes = 0;
  for (const Buffer& buffer : given.buffers) bytes += buffer.bytes();
  const Buffer whole = machine.heap.allocate(bytes, machine.streams.back(), "whole");
  std::size_t offset = 0;
  for (std::size_t i = 0; i < given.buffers.size(); ++i) {
    if (plan.buffers[given.numbers[i]].kind == plan::BufferSpec::Kind::kInput) continue;
    Buffer part = whole.part(offset, given.buffers[i].bytes());
    offset += part.bytes();
    machine.executor.copy(machine.streams.back(), part, 0, given.buffers[i], 0, part.bytes());
    given.buffers[i] = part;
  }
  return given;
}

/// Work of another stream on a buffer, as an exchange between ranks is.
Work change(const Buffer& buffer, std::uint64_t by, std::vector<std::uint64_t>* ran = nullptr) {
  auto* const at = reinterpret_cast<std::uint64_t*>(buffer.address());
  return {"change", [=, words = buffer.bytes() / 8](StreamHandle) {
            for (std::size_t i = 0; i < words; ++i) at[i] = mix(at[i], by);
            if (ran != nullptr) ran->push_back(by);
          }};
}

TEST(PlanRunner, WhatStepsUseNoMoreIsChangedBesideTheOthers) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const plan::Plan plan = plan::random_plan(seed, 30, 14);
    for (const sim::NamedSchedule& named : sim::all_schedules(3, 2)) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " " << named.name << named.number);
      Machine machine(named.make(), 3);
      const std::vector<StreamId> streams(machine.streams.begin(),
                                          machine.streams.begin() + 1 + static_cast<int>(seed % 2));
      PlanRunner runner(plan, functions(plan), machine.heap, machine.executor, streams);
      Contents contents;
      const Given given = give_parts(machine, plan, contents);
      std::vector<std::vector<std::size_t>> sets(2);  // every other one in one set
      for (std::size_t i = 0; i < given.buffers.size(); ++i)
        if (plan.buffers[given.numbers[i]].kind != plan::BufferSpec::Kind::kInput) {
          sets.push_back({i});
          sets[i % 2].push_back(i);
        }
      std::vector<std::uint64_t> ran;
      std::vector<std::uint64_t> enqueued;
      for (int run = 0; run < 3; ++run) {
        const auto over = runner.run(given.buffers, streams[0], sets);
        run_in_order(plan, contents);
        for (std::size_t set = 0; set < sets.size(); ++set)
          for (const std::size_t i : sets[set]) {
            enqueued.push_back(set + 1);
            machine.executor.launch(machine.streams.back(), change(given.buffers[i], set + 1, &ran),
                                    std::array{writes(given.buffers[i])}, over[set]);
            for (std::uint64_t& word : contents[given.numbers[i]]) word = mix(word, set + 1);
          }
      }
      expect_contents(machine, given, contents);
      EXPECT_EQ(ran, enqueued) << "one after the other";
      if (HasFailure()) return;
    }
  }
}

/// Two steps, each of which writes a part of one allocation.
plan::Plan two_parts() {
  using Kind = plan::BufferSpec::Kind;
  plan::Plan plan{"parts", {{Kind::kInOut, "a", 64}, {Kind::kInOut, "b", 64}}, {}, {}};
  for (std::uint32_t part = 0; part < 2; ++part)
    plan.steps.push_back({plan::Step::Kind::kCall, "write", part, 0, {}, {{part}}});
  return plan;
}

TEST(PlanRunner, ThatIsBeforeTheLastStepRuns) {
  const plan::Plan plan = two_parts();
  Machine machine(sim::reverse(), 2);
  std::vector<std::uint64_t> ran;
  std::vector<PlanFunction> functions;
  for (const std::uint64_t part : {1, 2})
    functions.push_back([&ran, part](StreamHandle, auto) { ran.push_back(part); });
  PlanRunner runner(plan, functions, machine.heap, machine.executor, {machine.streams[0]});
  Contents contents;
  const Given given = give_parts(machine, plan, contents);
  machine.synchronize();
  const std::vector<std::vector<std::size_t>> sets = {{0}, {1}};
  const auto over = runner.run(given.buffers, machine.streams[0], sets);
  for (std::size_t i = 0; i < 2; ++i)
    machine.executor.launch(machine.streams[1], change(given.buffers[i], 11 + i, &ran),
                            std::array{writes(given.buffers[i])}, over[i]);
  machine.timeline.synchronize(machine.streams[1]);
  EXPECT_THAT(ran, testing::ElementsAre(1, 11, 2, 12));
}

TEST(PlanRunner, WhoBeginsTooEarlyIsCaught) {
  const plan::Plan plan = two_parts();
  for (const bool right : {true, false}) {
    Machine machine(sim::lazy(), 2);
    PlanRunner runner(plan, functions(plan), machine.heap, machine.executor, {machine.streams[0]});
    Contents contents;
    const Given given = give_parts(machine, plan, contents);
    const std::vector<std::vector<std::size_t>> sets = {{0}, {1}};
    const auto over = runner.run(given.buffers, machine.streams[0], sets);
    machine.executor.launch(machine.streams[1], change(given.buffers[1], 1),
                            std::array{writes(given.buffers[1])}, over[right ? 1 : 0]);
    machine.synchronize();
    EXPECT_EQ(machine.checker.findings().empty(), right);
  }
}

/// A reader waits for all that wrote to the memory, not only for who wrote last.
TEST(PlanRunner, AReaderComesAfterAllThatWroteAtOnce) {
  const plan::Plan plan = two_parts();
  for (const sim::NamedSchedule& named : sim::all_schedules(3, 3)) {
    SCOPED_TRACE(::testing::Message() << named.name << named.number);
    Machine machine(named.make(), 3);
    PlanRunner runner(plan, functions(plan), machine.heap, machine.executor, {machine.streams[0]});
    Contents contents;
    const Given given = give_parts(machine, plan, contents);
    const std::vector<std::vector<std::size_t>> sets = {{0}};
    const auto over = runner.run(given.buffers, machine.streams[0], sets);
    machine.executor.launch(machine.streams[1], change(given.buffers[0], 1),
                            std::array{writes(given.buffers[0])}, over[0]);
    machine.executor.launch(machine.streams[2], {"read", [](StreamHandle) {}},
                            {reads(given.buffers[1])});
    machine.synchronize();
    EXPECT_TRUE(machine.checker.findings().empty());
  }
}

TEST(PlanRunner, WarmRunsMakeNoDeviceCallForMemory) {
  const plan::Plan plan = plan::random_plan(9, 40, 12);
  Machine machine(sim::lazy(), 2);
  PlanRunner runner(plan, functions(plan), machine.heap, machine.executor, machine.streams);
  Contents contents;
  const Given given = give(machine, plan, contents);
  for (int run = 0; run < 3; ++run) runner.run(given.buffers);
  const std::uint64_t maps = machine.device.calls(sim::Call::kMap);
  const std::uint64_t queries = machine.device.calls(sim::Call::kQuery);
  for (int run = 0; run < 20; ++run) runner.run(given.buffers);
  EXPECT_EQ(machine.device.calls(sim::Call::kMap), maps);
  EXPECT_EQ(machine.device.calls(sim::Call::kQuery), queries);
}

TEST(PlanRunner, AFaultAtAnyCallLosesNothing) {
  const plan::Plan plan = plan::random_plan(3, 20, 10);
  for (std::uint64_t k = 1;; ++k) {
    Machine machine(sim::lazy(), 3);
    Contents contents;
    PlanRunner runner(plan, functions(plan), machine.heap, machine.executor, machine.streams);
    Given given = give(machine, plan, contents);
    machine.device.fail_at(k);
    bool thrown = false;
    try {
      runner.run(given.buffers);
    } catch (const DeviceError&) {
      thrown = true;
    }
    machine.device.fail_at(0);
    machine.heap.verify();
    // In-outs may be half done; begin again.
    given = give(machine, plan, contents);
    runner.run(given.buffers);
    run_in_order(plan, contents);
    expect_contents(machine, given, contents);
    if (HasFailure() || !thrown) {
      EXPECT_GT(k, 10U);
      break;
    }
  }
}

TEST(PlanRunner, WrongBuffersAreNamed) {
  plan::Plan plan{"p", {{plan::BufferSpec::Kind::kInOut, "state", 64}}, {}, {}};
  Machine machine(sim::lazy(), 1);
  PlanRunner runner(plan, {}, machine.heap, machine.executor, machine.streams);
  EXPECT_THROW(runner.run({}), UsageError);
  const Buffer small = machine.heap.allocate(32, machine.streams[0]);
  try {
    runner.run(std::span(&small, 1));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("plan p: state has 32 bytes, the plan needs 64"));
  }
}

}  // namespace
}  // namespace segfuse::runtime
