// Which NCCL is opened, and what is said where there is none.

#include "comm/nccl/library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/nccl/nccl_exchange.h"
#include "support/nccl/nccl_ranks.h"

namespace segfuse::comm {
namespace {

using testing::HasSubstr;

class Library : public testing::Test {
 protected:
  void SetUp() override { test::fake().reset(); }
  void TearDown() override {
    test::fake().reset();
    ::unsetenv("SEGFUSE_NCCL");
  }
};

std::string reason_of(const std::string& file) {
  std::string reason;
  EXPECT_FALSE(open_nccl(file, reason));
  return reason;
}

TEST_F(Library, OfAnOldVersionIsNotUsed) {
  test::fake().set_version(21803);
  EXPECT_THAT(reason_of(SEGFUSE_FAKE_NCCL),
              HasSubstr("libnccl.so.2 is NCCL 2.18.3, and segfuse needs 2.20.0 or later"));
  test::fake().set_version(2708);
  EXPECT_THAT(reason_of(SEGFUSE_FAKE_NCCL), HasSubstr("is NCCL 2.7.8, and"));
  test::fake().set_version(22000);
  std::string reason;
  const auto opened = open_nccl(SEGFUSE_FAKE_NCCL, reason);
  ASSERT_TRUE(opened) << reason;
  EXPECT_EQ(opened->version, "2.20.0");
  EXPECT_EQ(opened->where, SEGFUSE_FAKE_NCCL);
}

TEST_F(Library, ThatIsNoNcclIsNotUsed) {
  EXPECT_THAT(reason_of("/nowhere/libnccl.so.2"), HasSubstr("/nowhere/libnccl.so.2"));
  EXPECT_THAT(reason_of("libm.so.6"), HasSubstr("libm.so.6 has no function ncclGetVersion"));
}

TEST_F(Library, NeedsNoFunctionThatOnlyExplains) {
  std::string reason;
  const auto bare = open_nccl(SEGFUSE_BARE_NCCL, reason);
  ASSERT_TRUE(bare) << reason;
  EXPECT_EQ(bare->last_error, nullptr);
  EXPECT_NE(test::fake_api().last_error, nullptr);
  EXPECT_EQ(bare->error_text(static_cast<NcclResult>(2)), std::string("unhandled system error"));
}

TEST_F(Library, TurnsMulticastOffUnlessItIsWanted) {
  ::unsetenv("NCCL_NVLS_ENABLE");
  std::string reason;
  EXPECT_TRUE(open_nccl(SEGFUSE_FAKE_NCCL, reason));
  EXPECT_STREQ(std::getenv("NCCL_NVLS_ENABLE"), "0");
  ::setenv("NCCL_NVLS_ENABLE", "1", 1);
  EXPECT_TRUE(open_nccl(SEGFUSE_FAKE_NCCL, reason));
  EXPECT_STREQ(std::getenv("NCCL_NVLS_ENABLE"), "1");
  ::setenv("NCCL_NVLS_ENABLE", "0", 1);
}

/// In a process of its own: the first that opens is kept.
void look_for_nccl() {
  try {
    const NcclApi& api = nccl();
    std::fprintf(stderr, "opened %s %s\n", api.where.c_str(), api.version.c_str());
  } catch (const CommError& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  std::exit(0);
}

using LibraryDeathTest = Library;

TEST_F(LibraryDeathTest, IsTheOneThatTheEnvironmentNames) {
  ::setenv("SEGFUSE_NCCL", SEGFUSE_FAKE_NCCL, 1);
  EXPECT_EXIT(look_for_nccl(), testing::ExitedWithCode(0),
              "opened .*fake_nccl/libnccl.so.2 2.28.9");
}

TEST_F(LibraryDeathTest, IsTheLoadersOtherwise) {
  // The loader has it under its name since the fake was opened.
  static_cast<void>(test::fake_api());
  EXPECT_EXIT(look_for_nccl(), testing::ExitedWithCode(0), "opened libnccl.so.2 2.28.9");
}

TEST_F(LibraryDeathTest, ThatIsMissingIsToldWithAllThatWasTried) {
  ::setenv("SEGFUSE_NCCL", "/nowhere/libnccl.so", 1);
  EXPECT_EXIT(look_for_nccl(), testing::ExitedWithCode(0),
              "no NCCL of 2.20.0 or later can be used .tried: /nowhere/libnccl.so: .*pip install "
              "nvidia-nccl-cu13.*libnccl.so.2 in SEGFUSE_NCCL");
  test::fake().set_version(21904);
  ::setenv("CUDA_HOME", "/opt/nowhere", 1);
  ::unsetenv("SEGFUSE_NCCL");
  EXPECT_EXIT(look_for_nccl(), testing::ExitedWithCode(0),
              "tried: libnccl.so.2 is NCCL 2.19.4, and segfuse needs 2.20.0 or later; "
              "/opt/nowhere/lib64/libnccl.so.2: .*; /usr/local/cuda/lib64/libnccl.so.2");
  ::unsetenv("CUDA_HOME");
}

}  // namespace
}  // namespace segfuse::comm
