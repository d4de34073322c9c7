// What launchers say in the environment, and what they say wrongly.

#include "base/os/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "segfuse/error.h"

namespace segfuse {
namespace {

using ::testing::HasSubstr;
using Set = std::map<std::string, std::string>;

std::optional<Ranks> found(const Set& set) {
  return ranks_of([&](const char* name) -> const char* {
    const auto at = set.find(name);
    return at == set.end() ? nullptr : at->second.c_str();
  });
}

std::string refusal(const Set& set) {
  try {
    found(set);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no refusal";
}

TEST(Ranks, AProcessIsAloneWithoutALauncher) {
  EXPECT_FALSE(found({}));
  EXPECT_FALSE(found({{"RANK", "3"}}));
  EXPECT_FALSE(found({{"WORLD_SIZE", "1"}, {"RANK", "0"}}));
  EXPECT_FALSE(found({{"WORLD_SIZE", ""}}));
  EXPECT_FALSE(found({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}));
}

struct Launched {
  const char* what;
  Set set;
  std::int64_t count, rank, local_rank, local_count;  ///< -1: not known
  const char* variable;
  const char* host;
  int port;
  const char* job;
};

const Launched kLaunched[] = {
    {"torchrun",
     {{"RANK", "5"},
      {"WORLD_SIZE", "8"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "4"},
      {"MASTER_ADDR", "node1"},
      {"MASTER_PORT", "29500"},
      {"TORCHELASTIC_RUN_ID", "abc"}},
     8,
     5,
     1,
     4,
     "WORLD_SIZE",
     "node1",
     29500,
     "TORCHELASTIC_RUN_ID abc"},
    {"torchrun that listens at its port itself",
     {{"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"MASTER_ADDR", "node1"},
      {"MASTER_PORT", "29500"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_RUN_ID", "none"}},
     2,
     1,
     -1,
     -1,
     "WORLD_SIZE",
     "node1",
     0,
     "torchrun at node1:29500"},
    {"torchrun whose job has no name",
     {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "none"}},
     2,
     1,
     -1,
     -1,
     "WORLD_SIZE",
     "",
     0,
     ""},
    {"srun",
     {{"SLURM_STEP_NUM_TASKS", "7"},
      {"SLURM_NTASKS", "64"},
      {"SLURM_PROCID", "6"},
      {"SLURM_LOCALID", "0"},
      {"SLURM_NODEID", "3"},
      {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
      {"SLURM_STEP_NODELIST", "gpu[003-005,17]"},
      {"SLURM_JOB_ID", "99"},
      {"SLURM_STEP_ID", "2"}},
     7,
     6,
     0,
     1,
     "SLURM_STEP_NUM_TASKS",
     "gpu003",
     0,
     "Slurm 99.2"},
    {"srun on one machine",
     {{"SLURM_STEP_NUM_TASKS", "2"},
      {"SLURM_PROCID", "1"},
      {"SLURM_NODEID", "0"},
      {"SLURM_STEP_TASKS_PER_NODE", "2"},
      {"SLURM_STEP_NODELIST", "login"}},
     2,
     1,
     -1,
     2,
     "SLURM_STEP_NUM_TASKS",
     "127.0.0.1",
     0,
     ""},
    {"Open MPI",
     {{"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_RANK", "2"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
      {"PMIX_RANK", "2"},
      {"PMIX_NAMESPACE", "prterun-a-1@1"}},
     4,
     2,
     2,
     4,
     "OMPI_COMM_WORLD_SIZE",
     "127.0.0.1",
     0,
     "PMIX_NAMESPACE prterun-a-1@1"},
    {"MPICH",
     {{"PMI_SIZE", "3"}, {"PMI_RANK", "0"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}},
     3,
     0,
     0,
     2,
     "PMI_SIZE",
     "",
     0,
     ""},
    {"Cray",
     {{"PMI_SIZE", "3"}, {"PMI_RANK", "1"}, {"PMI_LOCAL_RANK", "1"}, {"PMI_LOCAL_SIZE", "3"}},
     3,
     1,
     1,
     3,
     "PMI_SIZE",
     "127.0.0.1",
     0,
     ""},
    {"MVAPICH",
     {{"MV2_COMM_WORLD_SIZE", "2"},
      {"MV2_COMM_WORLD_RANK", "1"},
      {"MV2_COMM_WORLD_LOCAL_RANK", "0"},
      {"MV2_COMM_WORLD_LOCAL_SIZE", "1"}},
     2,
     1,
     0,
     1,
     "MV2_COMM_WORLD_SIZE",
     "",
     0,
     ""},
    {"MVAPICH 3",
     {{"MVP_COMM_WORLD_SIZE", "2"}, {"MVP_COMM_WORLD_RANK", "1"}},
     2,
     1,
     -1,
     -1,
     "MVP_COMM_WORLD_SIZE",
     "",
     0,
     ""},
    {"PMIx says the rank that MPI does not",
     {{"PMI_SIZE", "4"}, {"PMIX_RANK", "3"}},
     4,
     3,
     -1,
     -1,
     "PMI_SIZE",
     "",
     0,
     ""},
};

TEST(Ranks, EachLauncherIsUnderstood) {
  for (const Launched& one : kLaunched) {
    SCOPED_TRACE(one.what);
    const auto ranks = found(one.set);
    ASSERT_TRUE(ranks);
    EXPECT_EQ(ranks->count, one.count);
    EXPECT_EQ(ranks->rank, one.rank);
    EXPECT_EQ(ranks->local_rank.value_or(-1), one.local_rank);
    EXPECT_EQ(ranks->local_count.value_or(-1), one.local_count);
    EXPECT_EQ(ranks->variable, one.variable);
    EXPECT_EQ(ranks->host, one.host);
    EXPECT_EQ(ranks->port, one.port);
    EXPECT_EQ(ranks->job, one.job);
  }
}

TEST(Ranks, TheScriptOfAJobOfManyTasksIsAlone) {
  EXPECT_FALSE(found({{"SLURM_NTASKS", "64"}, {"SLURM_PROCID", "0"}}));
}

TEST(Ranks, NamesOfMachines) {
  const auto host = [](const std::string& list) {
    return found({{"SLURM_STEP_NUM_TASKS", "2"},
                  {"SLURM_PROCID", "0"},
                  {"SLURM_STEP_NODELIST", list}})
        ->host;
  };
  EXPECT_EQ(host("a,b"), "a");
  EXPECT_EQ(host("a[7,9]"), "a7");
  EXPECT_EQ(host("a[07-12]b,c"), "a07b");
  EXPECT_EQ(host("a["), "");
  EXPECT_EQ(host("a[x]"), "");
}

TEST(Ranks, OneRankIsNoCompany) {
  const auto ranks =
      found({{"WORLD_SIZE", "1"}, {"RANK", "0"}, {"PMI_SIZE", "2"}, {"PMI_RANK", "1"}});
  ASSERT_TRUE(ranks);
  EXPECT_EQ(ranks->variable, "PMI_SIZE");
}

TEST(Ranks, WhatIsNoNumberIsRefusedByName) {
  for (const char* value : {"0", "-3", "two", "2x", " 2", "99999999999999999999"}) {
    const std::string text = refusal({{"WORLD_SIZE", value}, {"RANK", "0"}});
    EXPECT_THAT(text, HasSubstr("WORLD_SIZE is '" + std::string(value) + "'"));
  }
  EXPECT_THAT(refusal({{"PMI_SIZE", "2"}, {"PMI_RANK", "x"}}), HasSubstr("PMI_RANK is 'x'"));
  EXPECT_THAT(refusal({{"WORLD_SIZE", "2"}, {"RANK", "1"}, {"LOCAL_RANK", "-1"}}),
              HasSubstr("LOCAL_RANK is '-1'"));
  EXPECT_THAT(refusal({{"WORLD_SIZE", "2"}, {"RANK", "1"}, {"MASTER_PORT", "65536"}}),
              HasSubstr("MASTER_PORT is '65536'"));
}

TEST(Ranks, ARankBeyondTheCountAndACountWithoutARankAreRefused) {
  const std::string beyond = refusal({{"WORLD_SIZE", "2"}, {"RANK", "2"}});
  EXPECT_THAT(beyond, HasSubstr("RANK=2"));
  EXPECT_THAT(beyond, HasSubstr("WORLD_SIZE=2"));
  const std::string without = refusal({{"WORLD_SIZE", "12"}});
  EXPECT_THAT(without, HasSubstr("WORLD_SIZE=12"));
  EXPECT_THAT(without, HasSubstr("set RANK"));
  EXPECT_THAT(refusal({{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "x"}}), HasSubstr("PMIX_RANK=1"));
}

TEST(Ranks, TheRankMayComeFromAnotherLauncherOfTheSameCount) {
  const auto ranks = found({{"WORLD_SIZE", "4"},
                            {"MASTER_ADDR", "a"},
                            {"SLURM_STEP_NUM_TASKS", "4"},
                            {"SLURM_PROCID", "3"}});
  ASSERT_TRUE(ranks);
  EXPECT_EQ(ranks->rank, 3);
}

TEST(Ranks, LaunchersThatContradictEachOtherAreBothNamed) {
  const std::string counts = refusal(
      {{"WORLD_SIZE", "8"}, {"RANK", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "0"}});
  EXPECT_THAT(counts, HasSubstr("WORLD_SIZE=8 and SLURM_STEP_NUM_TASKS=4"));
  const std::string ranks = refusal(
      {{"WORLD_SIZE", "4"}, {"RANK", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "3"}});
  EXPECT_THAT(ranks, HasSubstr("RANK=0 and SLURM_PROCID=3"));
  // Four tasks that each start a pair would be four trainings.
  EXPECT_THAT(refusal({{"OMPI_COMM_WORLD_SIZE", "2"},
                       {"OMPI_COMM_WORLD_RANK", "1"},
                       {"SLURM_STEP_NUM_TASKS", "4"},
                       {"SLURM_PROCID", "3"}}),
              HasSubstr("OMPI_COMM_WORLD_SIZE=2 and SLURM_STEP_NUM_TASKS=4"));
}

TEST(Ranks, ALauncherMayStartAnother) {
  // One torchrun a machine by srun; their order is torchrun's.
  const auto torch = found({{"WORLD_SIZE", "16"},
                            {"RANK", "3"},
                            {"TORCHELASTIC_RUN_ID", "x"},
                            {"SLURM_STEP_NUM_TASKS", "2"},
                            {"SLURM_PROCID", "1"}});
  ASSERT_TRUE(torch);
  EXPECT_EQ(torch->count, 16);
  EXPECT_EQ(torch->rank, 3);
  // The helpers of mpirun, which srun started on the other machines.
  const auto mpi = found({{"OMPI_COMM_WORLD_SIZE", "16"},
                          {"OMPI_COMM_WORLD_RANK", "12"},
                          {"SLURM_STEP_NUM_TASKS", "3"},
                          {"SLURM_PROCID", "2"}});
  ASSERT_TRUE(mpi);
  EXPECT_EQ(mpi->rank, 12);
}

TEST(Ranks, TheEnvironmentIsRead) {
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    ::unsetenv(name);
  ::setenv("WORLD_SIZE", "12", 1);
  ::setenv("RANK", "7", 1);
  const auto ranks = ranks_of_environment();
  ::unsetenv("WORLD_SIZE");
  ::unsetenv("RANK");
  ASSERT_TRUE(ranks);
  EXPECT_EQ(ranks->count, 12);
  EXPECT_EQ(ranks->rank, 7);
}

}  // namespace
}  // namespace segfuse
