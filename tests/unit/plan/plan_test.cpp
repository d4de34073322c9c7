#include "plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "segfuse/error.h"
#include "support/random/random_plan.h"

namespace segfuse::plan {
namespace {

using testing::HasSubstr;

Plan two_steps() {
  Plan plan{"p", {}, {}, {}};
  plan.buffers = {{BufferSpec::Kind::kInput, "x", 8},
                  {BufferSpec::Kind::kScratch, "h", 8},
                  {BufferSpec::Kind::kOutput, "y", 8}};
  Step first{Step::Kind::kCall, "first", 0, 0, {{0}}, {{1}}};
  Step second{Step::Kind::kCall, "second", 1, 0, {{1}}, {{2}}};
  plan.steps = {first, second};
  return plan;
}

void expect_refused(const Plan& plan, std::string_view what) {
  try {
    verify(plan);
    FAIL() << "accepted: " << what;
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr(std::string(what)));
  }
}

TEST(Plan, Text) {
  verify(two_steps());
  EXPECT_EQ(to_string(two_steps()),
            "plan p\n"
            "  input x 8\n"
            "  scratch h 8\n"
            "  output y 8\n"
            "  call first (x) -> (h)\n"
            "  call second (h) -> (y)\n");
}

TEST(Plan, WhatCannotBeIsRefused) {
  Plan plan = two_steps();
  std::swap(plan.steps[0], plan.steps[1]);
  expect_refused(plan, "plan p, step 0 (second): it reads h, which nothing has written");
  plan = two_steps();
  plan.steps[1].writes = {{0}};
  expect_refused(plan, "step 1 (second): it writes x, which is only read");
  plan = two_steps();
  plan.steps[1].writes = {{1}};
  expect_refused(plan, "it names a buffer twice");
  plan = two_steps();
  plan.steps[1].writes = {{7}};
  expect_refused(plan, "there is no buffer 7");
  plan = two_steps();
  plan.steps[0].kind = Step::Kind::kFill;
  expect_refused(plan, "a fill writes one buffer");
  plan = two_steps();
  plan.steps[0].kind = Step::Kind::kCopy;
  plan.steps[0].reads.clear();
  expect_refused(plan, "a copy has one source and one end");
  plan = two_steps();
  plan.steps[1].reads = {{2}};
  plan.steps[1].writes = {{1}};
  expect_refused(plan, "it reads y, which nothing has written");
}

TEST(Plan, RandomPlansAreRight) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) verify(random_plan(seed, 30, 10));
}

}  // namespace
}  // namespace segfuse::plan
