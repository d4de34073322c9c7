#include "base/os/ranks.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace segfuse {
namespace {

constexpr const char* kSizes[] = {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE",
                                  "PMI_SIZE", "MV2_COMM_WORLD_SIZE"};

class RanksOfEnvironment : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name : kSizes) ::unsetenv(name);
    ::unsetenv("SLURM_NTASKS");
  }
};

TEST_F(RanksOfEnvironment, AProcessIsAloneWithoutALauncher) {
  EXPECT_FALSE(ranks_of_environment());
}

TEST_F(RanksOfEnvironment, EachLaunchersCountIsFoundAndNamed) {
  for (const char* name : kSizes) {
    clear();
    ::setenv(name, "12", 1);
    const auto ranks = ranks_of_environment();
    ASSERT_TRUE(ranks) << name;
    EXPECT_EQ(ranks->count, 12);
    EXPECT_EQ(ranks->variable, name);
  }
}

TEST_F(RanksOfEnvironment, OneRankAndWhatIsNoCountAreNoCompany) {
  for (const char* value : {"1", "0", "-3", "", "two", "2x", "99999999999999999999"}) {
    ::setenv("WORLD_SIZE", value, 1);
    EXPECT_FALSE(ranks_of_environment()) << value;
  }
  ::setenv("WORLD_SIZE", "1", 1);
  ::setenv("PMI_SIZE", "2", 1);
  EXPECT_EQ(ranks_of_environment()->variable, "PMI_SIZE");
}

TEST_F(RanksOfEnvironment, TheScriptOfAJobOfManyTasksIsAlone) {
  ::setenv("SLURM_NTASKS", "64", 1);
  EXPECT_FALSE(ranks_of_environment());
}

}  // namespace
}  // namespace segfuse
