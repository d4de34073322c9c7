// Ranks as processes of an MPI's launcher. This program is its own rank (ranks.h): the tests start
// it under Debian's Open MPI, and under the MPICH of the Python tests through the standard ABI.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/os/shared_library.h"
#include "ranks.h"
#include "segfuse/spawn.h"
#include "support/files.h"
#include "support/source_dir.h"

namespace segfuse {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

const fs::path kWheel = fs::path(SEGFUSE_SOURCE_DIR) / ".venv-python";

struct Mpi {
  const char* name;
  const char* engine;  ///< the beginning of Group::engine()
};

/// What starts `ranks` ranks, without the program; or the reason why there is none.
std::vector<std::string> launcher(const Mpi& mpi, int ranks, std::string& missing) {
  if (mpi.name == std::string("OpenMpi")) {
    for (const char* mpirun : {"mpirun.openmpi", "mpirun"}) {
      const spawn::Result version = spawn::run({.arguments = {mpirun, "--version"}});
      if (version.out.find("Open MPI") != std::string::npos)
        return {mpirun, "--allow-run-as-root", "--oversubscribe", "-n", std::to_string(ranks)};
    }
    missing = "Open MPI's mpirun is not installed (openmpi-bin)";
    return {};
  }
  if (fs::exists(kWheel / "lib/libmpi_abi.so.1") && fs::exists(kWheel / "bin/mpiexec"))
    return {(kWheel / "bin/mpiexec").string(), "-n", std::to_string(ranks)};
  missing = "the Python package mpich is not in .venv-python (tools/setup python)";
  return {};
}

std::string own_program() { return fs::read_symlink("/proc/self/exe").string(); }

using Changes = std::map<std::string, std::optional<std::string>>;

spawn::Result run(std::vector<std::string> line, const std::vector<std::string>& job,
                  Changes changes = {}) {
  line.push_back(own_program());
  line.emplace_back("rank");
  line.insert(line.end(), job.begin(), job.end());
  changes.try_emplace("SEGFUSE_MPI", std::nullopt);
  spawn::Request request{.arguments = std::move(line),
                         .environment = spawn::Environment::patch(std::move(changes)),
                         .timeout = std::chrono::minutes(5)};
  request.end_group = true;
  return spawn::run(request);
}

std::string told(const spawn::Result& result) {
  return result.outcome() + "\n" + result.out + result.err;
}

class Ranks : public ::testing::TestWithParam<Mpi> {
 protected:
  void SetUp() override {
    std::string missing;
    launcher(GetParam(), 1, missing);
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
  spawn::Result start(int ranks, const std::vector<std::string>& job, Changes changes = {}) const {
    std::string missing;
    return run(launcher(GetParam(), ranks, missing), job, std::move(changes));
  }
  std::string on(int ranks) const {
    return "on " + std::to_string(ranks) + " ranks of " + GetParam().engine;
  }
};

TEST_P(Ranks, MakeTheBitsOfOneRank) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    const spawn::Result result = start(ranks, {"sums"});
    ASSERT_TRUE(result.ok()) << told(result);
    EXPECT_THAT(result.out, HasSubstr(on(ranks)));
  }
}

TEST_P(Ranks, HandEachOtherBytes) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    const spawn::Result result = start(ranks, {"primitives"});
    ASSERT_TRUE(result.ok()) << told(result);
    EXPECT_THAT(result.out, HasSubstr("primitives " + on(ranks)));
  }
}

TEST_P(Ranks, CutWhatIsLongerThanAMessage) {
  for (const char* job : {"primitives", "sums"}) {
    const spawn::Result result = start(3, {job, "1000"});
    ASSERT_TRUE(result.ok()) << told(result);
    EXPECT_THAT(result.out, HasSubstr(on(3)));
  }
}

TEST_P(Ranks, EndTogetherWhenOneThrows) {
  const spawn::Result result = start(3, {"fault"});
  EXPECT_EQ(result.exit_code, 3) << told(result);
  EXPECT_THAT(result.err, HasSubstr("segfuse: rank 1 of 3 ended the work of all ranks: "
                                    "recording 'x.wav' ends early\n"));
}

TEST_P(Ranks, SayWhatMpiSaysAboutAnError) {
  const spawn::Result result = start(2, {"too-long"});
  EXPECT_EQ(result.exit_code, 4) << told(result);
  EXPECT_THAT(result.err, AllOf(HasSubstr("segfuse: rank 1 of 2 ended the work of all ranks: "
                                          "MPI_Irecv with rank 0 failed on rank 1"),
                                ::testing::ContainsRegex("[Tt]runcat")));
}

TEST_P(Ranks, NoticeAMessageThatIsTooShort) {
  const spawn::Result result = start(2, {"too-short"});
  EXPECT_EQ(result.exit_code, 4) << told(result);
  EXPECT_THAT(result.err, HasSubstr("rank 0 sends 4 bytes, and rank 1 expects 8"));
}

TEST_P(Ranks, EndWhenOneLeavesWithoutAWord) {
  const spawn::Result result = start(2, {"leave-early"});
  EXPECT_EQ(result.exit_code, 4) << told(result);
  EXPECT_THAT(result.err, HasSubstr("rank 1 of 2 ended the work of all ranks: it left without"));
}

TEST_P(Ranks, EndWhenAnotherThreadSaysSo) {
  const spawn::Result result = start(2, {"watched"});
  EXPECT_EQ(result.exit_code, 4) << told(result);
  EXPECT_THAT(result.err, HasSubstr("rank 0 of 2 ended the work of all ranks: rank 1 has not"));
}

TEST_P(Ranks, EndWhenOneIsKilled) {
  const spawn::Result result = start(2, {"killed"});
  EXPECT_FALSE(result.timed_out);
  EXPECT_NE(result.exit_code, 0) << told(result);
}

TEST_P(Ranks, LeaveTheProcessorToOthersWhileTheyWait) {
  const spawn::Result result = start(2, {"idle"});
  EXPECT_TRUE(result.ok()) << told(result);
}

TEST_P(Ranks, AreUsedByOneThreadAndStartOnce) {
  EXPECT_TRUE(start(1, {"other-thread"}).ok());
  const spawn::Result twice = start(1, {"start-twice"});
  EXPECT_EQ(twice.exit_code, 4) << told(twice);
  EXPECT_THAT(twice.err, HasSubstr("MPI was ended in this process, and it starts once only"));
}

TEST_P(Ranks, RefuseALibraryThatIsNone) {
  const test::TemporaryDirectory folder;
  const std::string file = folder.write("libmpi_abi.so.1", "no library").string();
  for (const std::string& named : {file, std::string("libm.so.6")}) {
    const spawn::Result result = start(1, {"sums"}, {{"SEGFUSE_MPI", named}});
    EXPECT_EQ(result.exit_code, 4) << told(result);
    EXPECT_THAT(result.err,
                HasSubstr("SEGFUSE_MPI names '" + named + "', which is not a library with MPI's"));
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Ranks,
                         ::testing::Values(Mpi{"OpenMpi", "Open MPI v"}, Mpi{"Mpich", "MPICH 5."}),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(WithoutALauncher, TheSentenceSaysWhatToDo) {
  const Changes none = {{"OMPI_COMM_WORLD_SIZE", {}}, {"PMI_SIZE", {}}, {"PMIX_RANK", {}}};
  const spawn::Result result = run({}, {"sums"}, none);
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, AllOf(HasSubstr("no launcher of an MPI started this process"),
                                HasSubstr("start it by mpirun")));
}

/// The libraries that SEGFUSE_MPI may name.
std::vector<std::string> libraries() {
  std::vector<std::string> files;
  const fs::path folder = fs::path(own_program()).parent_path();
  for (const fs::path& file : {folder / "../lib/libsegfuse_mpi.so", kWheel / "lib/libmpi_abi.so.1"})
    if (fs::exists(file)) files.push_back(file.string());
  return files;
}

/// The environment of a launcher that did not start this process: MPI is alone in its world.
TEST(AnotherLaunchers, LibraryIsNoticed) {
  if (libraries().empty()) GTEST_SKIP() << "no MPI is installed";
  for (const std::string& named : libraries()) {
    const bool is_abi = named.find("libmpi_abi") != std::string::npos;
    const char* const size = is_abi ? "OMPI_COMM_WORLD_SIZE" : "PMI_SIZE";
    const spawn::Result result = run({}, {"sums"}, {{"SEGFUSE_MPI", named}, {size, "3"}});
    EXPECT_EQ(result.exit_code, 4) << told(result);
    EXPECT_THAT(result.err, AllOf(HasSubstr(" started 3 ranks (" + std::string(size) + ")"),
                                  HasSubstr(named + ") sees 1: it is another MPI")));
  }
}

TEST(WithoutALibrary, TheSentenceSaysWhatWasTried) {
  const Changes alone = {{"OMPI_COMM_WORLD_SIZE", {}},
                         {"PMIX_RANK", {}},
                         {"PMI_SIZE", "2"},
                         {"LD_LIBRARY_PATH", {}},
                         {"PATH", "/usr/bin:/bin"}};
  const spawn::Result result = run({}, {"sums"}, alone);
  if (result.err.find("sees 1") != std::string::npos)
    GTEST_SKIP() << "the system has a libmpi_abi.so.1";
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, AllOf(HasSubstr("MPICH started this process (PMI_SIZE is set)"),
                                HasSubstr("(tried: "), HasSubstr("libsegfuse_mpi.so"),
                                HasSubstr("libmpi_abi.so.1: cannot open"),
                                HasSubstr("in SEGFUSE_MPI, or install libopenmpi-dev")));
}

}  // namespace
}  // namespace segfuse

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() > 1 && arguments[0] == "rank")
    return segfuse::test::run_as_rank(std::span(arguments).subspan(1));
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
