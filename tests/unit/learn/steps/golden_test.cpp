// The bits of trainings, pinned: a change of any of them is a change for users, who compare models.
#include <gtest/gtest.h>

#include "base/code/blake2b.h"
#include "unit/learn/small_training.h"

namespace segfuse::learn {
namespace {

struct Golden {
  const char* name;
  HeadKind head;
  nn::Recurrence recurrence;
  std::int64_t recurrent_blocks;
  std::int64_t attention_blocks;
  const char* hash;
};

std::string name_of(const ::testing::TestParamInfo<Golden>& golden) { return golden.param.name; }

class PinnedTraining : public ::testing::TestWithParam<Golden> {};

/// One shard, one rank, nothing clipped. The bits are the same with AVX2 and with AVX-512.
TEST_P(PinnedTraining, MakesTheSameBitsAsTheReleaseBefore) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "products have other bits without AVX2";
  const Golden& golden = GetParam();
  ModelConfig config = tiny(0.3, golden.head);
  config.recurrence = golden.recurrence;
  config.recurrent_blocks = golden.recurrent_blocks;
  config.recurrent_states = 3;
  config.attention_blocks = golden.attention_blocks;
  Training training(config);
  training.plan.shards = 1;
  training.plan.clip = 0;
  training.plan.adamw.average = 0.9;
  training.options.execution.backend = "loops";
  const TrainingOutcome outcome = training.run(1);
  std::string bytes;
  for (const Tensor& parameter : outcome.parameters)
    bytes.append(static_cast<const char*>(parameter.data()), parameter.bytes());
  EXPECT_EQ(blake2b_hex(bytes).substr(0, 32), golden.hash);
}

INSTANTIATE_TEST_SUITE_P(
    Models, PinnedTraining,
    ::testing::Values(Golden{"segments", HeadKind::kSemiMarkov, nn::Recurrence::kLstm, 0, 0,
                             "fb43315974b53e47004e89abc8fd42ef"},
                      Golden{"chain", HeadKind::kLinearChain, nn::Recurrence::kSsm, 1, 0,
                             "38b87659a4f696b93ca900692dc4c5cf"},
                      Golden{"softmax", HeadKind::kSoftmax, nn::Recurrence::kGru, 1, 0,
                             "5e1537a88b43e927a3b3e47e2c6ab6bd"},
                      Golden{"attention", HeadKind::kSemiMarkov, nn::Recurrence::kLstm, 1, 1,
                             "429ebea1242ae36d808b539353bddc09"}),
    name_of);

}  // namespace
}  // namespace segfuse::learn
