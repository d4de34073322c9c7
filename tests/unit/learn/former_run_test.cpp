// Which checkpoint of a folder belongs to the job that is started again.

#include "learn/train/files/former_run.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/os/file.h"
#include "support/files.h"

namespace segfuse::learn {
namespace {

namespace fs = std::filesystem;

class FormerRuns : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"linear_chain", "softmax"}) fs::create_directory(out_ / name);
  }
  void TearDown() override { ::unsetenv(FormerRun::kVariable); }

  test::TemporaryDirectory temporary_;
  const fs::path out_ = temporary_.path();
  const fs::path first_ = out_ / "checkpoint.safetensors";
  const fs::path last_ = out_ / "softmax/checkpoint.safetensors";
};

TEST_F(FormerRuns, AFileThatWasReplacedIsTheJobs) {
  write_file_atomically(first_, "then");
  const FormerRun former(out_);
  EXPECT_TRUE(former.holds(first_));
  EXPECT_FALSE(former.holds(last_));
  write_file_atomically(first_, "now!");  // of the same length
  write_file_atomically(last_, "new");
  EXPECT_FALSE(former.holds(first_));
  EXPECT_FALSE(former.holds(last_));
}

TEST_F(FormerRuns, RanksAreToldByAVariable) {
  EXPECT_FALSE(FormerRun::of_environment());
  ::setenv(FormerRun::kVariable, "", 1);
  EXPECT_FALSE(FormerRun::of_environment());
  write_file_atomically(out_ / "model.safetensors", "then");
  EXPECT_FALSE(written_before_restart(out_ / "model.safetensors"));
  const FormerRun former(out_);
  ::setenv(FormerRun::kVariable, former.text().c_str(), 1);
  ASSERT_TRUE(FormerRun::of_environment());
  EXPECT_FALSE(written_before_restart(out_ / "model.safetensors"));
  EXPECT_FALSE(written_before_restart(first_)) << "nobody has written it";
  write_file_atomically(first_, "now");
  EXPECT_TRUE(written_before_restart(first_));
  // Where nothing was there before, all is the job's.
  const std::filesystem::path other = out_ / "with spaces";
  std::filesystem::create_directories(other);
  ::setenv(FormerRun::kVariable, FormerRun(other / "").text().c_str(), 1);
  ASSERT_TRUE(FormerRun::of_environment());
  write_file_atomically(other / "model.safetensors", "now");
  EXPECT_TRUE(written_before_restart(other / "model.safetensors"));
  EXPECT_FALSE(written_before_restart(out_ / "model.safetensors")) << "another run's";
}

TEST_F(FormerRuns, AJobGoesOnWithTheLastHeadThatHasACheckpointOfIts) {
  const auto newest = [&](const FormerRun& former, bool resume) {
    return FormerRun::newest_checkpoint(out_, former, resume);
  };
  const FormerRun none(out_);
  EXPECT_FALSE(newest(none, false));
  EXPECT_FALSE(newest(none, true));
  write_file_atomically(first_, "one");
  write_file_atomically(last_, "two");
  EXPECT_EQ(newest(none, false), last_);
  const FormerRun both(out_);
  EXPECT_FALSE(newest(both, false));
  EXPECT_EQ(newest(both, true), last_);
  write_file_atomically(first_, "new");
  EXPECT_EQ(newest(both, false), first_);
}

}  // namespace
}  // namespace segfuse::learn
