// The kernel doctor and Triton's cache: entries as Triton 3.6 writes them, and damaged ones.

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/os/file.h"
#include "segfuse/doctor/kernel.h"
#include "segfuse/error.h"
#include "support/source_dir.h"

namespace segfuse {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

const fs::path kGolden = fs::path(SEGFUSE_SOURCE_DIR) / "tests/golden/kernels/triton";

class TritonCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override {
    fs::remove_all(folder_);
    for (const char* name : {"TRITON_CACHE_DIR", "TRITON_HOME", "TORCHINDUCTOR_CACHE_DIR"})
      unsetenv(name);
  }
  /// A copy of the entry of that kernel.
  fs::path add(const std::string& kernel, const std::string& name) {
    for (const auto& entry : fs::directory_iterator(kGolden))
      if (fs::exists(entry.path() / (kernel + ".cubin"))) {
        fs::create_directories((folder_ / name).parent_path());
        fs::copy(entry.path(), folder_ / name, fs::copy_options::recursive);
      }
    return folder_ / name;
  }
  static void write(const fs::path& file, const std::string& text) {
    std::ofstream(file, std::ios::binary) << text;
  }
  static std::vector<std::string> rows_of(const KernelReport& report) {
    std::vector<std::string> rows;
    for (const KernelInfo& kernel : report.kernels)
      rows.push_back(fmt::format("{} {} {} registers {} shared block {}", kernel.name,
                                 kernel.architecture, kernel.registers.value_or(0),
                                 kernel.shared_bytes,
                                 kernel.occupancy.empty() ? 0 : kernel.occupancy[0].block));
    return rows;
  }

  fs::path folder_ = fs::temp_directory_path() / fmt::format("segfuse_triton_{}", getpid());
};

TEST_F(TritonCacheTest, KernelsAreListedByName) {
  add("row_sum", "HASH1");
  add("add", "HASH2");
  const KernelReport report = examine_triton_cache(folder_);
  // ptxas -v says the same; shared memory and threads are those of the launch.
  EXPECT_THAT(rows_of(report), ElementsAre("add sm_90 30 registers 0 shared block 128",
                                           "row_sum sm_80 20 registers 16 shared block 128"));
  EXPECT_EQ(report.source, "Triton's cache with 2 entries");
  EXPECT_EQ(report.kernels[0].entry, "HASH2");
  EXPECT_EQ(report.kernels[1].barriers, 1u);
  EXPECT_THAT(kernel_report_text(report), HasSubstr("add (HASH2) "));
  EXPECT_THAT(kernel_report_text(report), HasSubstr("row_sum (HASH1): 1 x "));
  EXPECT_THAT(kernel_report_json(report), HasSubstr("\"entry\": \"HASH1\""));
  EXPECT_THAT(report.notes, ElementsAre());
  EXPECT_THAT(rows_of(examine_triton_cache(folder_, {.architecture = "sm_80", .block = 64})),
              ElementsAre("row_sum sm_80 20 registers 16 shared block 64"));
}

TEST_F(TritonCacheTest, UsualFoldersAreFound) {
  add("add", "home/.triton/cache/HASH");
  add("row_sum", "inductor/triton/0/HASH");
  setenv("TRITON_HOME", (folder_ / "home").c_str(), 1);
  setenv("TORCHINDUCTOR_CACHE_DIR", (folder_ / "inductor").c_str(), 1);
  EXPECT_EQ(examine_triton_cache({}).kernels.size(), 2u);
  setenv("TRITON_CACHE_DIR", (folder_ / "inductor/triton/0").c_str(), 1);
  setenv("TORCHINDUCTOR_CACHE_DIR", (folder_ / "none").c_str(), 1);
  EXPECT_EQ(examine_triton_cache({}).kernels.size(), 1u);
  setenv("TRITON_CACHE_DIR", (folder_ / "nothing").c_str(), 1);
  try {
    examine_triton_cache({});
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("nothing' and no '"));
    EXPECT_THAT(error.what(), HasSubstr("run the program with Triton first"));
  }
}

TEST_F(TritonCacheTest, WhatIsDamagedIsLeftOut) {
  add("add", "GOOD");
  const std::string cubin = read_file(add("add", "CUT") / "add.cubin");
  write(folder_ / "CUT/add.cubin", cubin.substr(0, cubin.size() / 2));
  write(add("add", "WARPS") / "add.json", R"({"num_warps": 4096, "shared": 0})");
  write(add("add", "TEXT") / "add.json", "{\"num_warps\": ");
  write(add("row_sum", "PTX") / "row_sum.ptx", "no PTX");
  const KernelReport report = examine_triton_cache(folder_);
  EXPECT_THAT(rows_of(report), ElementsAre("add sm_90 30 registers 0 shared block 128"));
  ASSERT_EQ(report.notes.size(), 4u);
  for (const char* name : {"CUT/add.cubin", "WARPS/add.json", "TEXT/add.json", "PTX/row_sum.ptx"})
    EXPECT_THAT(report.notes, ::testing::Contains(HasSubstr(name)));
  for (const std::string& note : report.notes) {
    EXPECT_THAT(note, HasSubstr("An entry is left out: "));
    EXPECT_EQ(note.find('\n'), std::string::npos);
  }
}

TEST_F(TritonCacheTest, OnlyWholeFilesBelowTheFolderAreRead) {
  const fs::path outside = folder_ / "outside";
  add("add", "outside/HASH");
  add("add", "cache/a/b/HASH");
  add("add", "cache/a/b/c/TOO_DEEP");
  add("add", "cache/tmp.pid_7_x");
  fs::create_directory_symlink(outside / "HASH", folder_ / "cache/LINK");
  fs::create_directories(folder_ / "cache/FILE");
  fs::create_symlink(outside / "HASH/add.cubin", folder_ / "cache/FILE/add.cubin");
  EXPECT_EQ(examine_triton_cache(folder_ / "cache").kernels.size(), 1u);
}

TEST_F(TritonCacheTest, LaunchesThatAreMissingLeaveTheBlockOpen) {
  const fs::path entry = add("add", "HASH");
  fs::remove(entry / "add.json");
  fs::remove(entry / "add.ptx");
  const KernelReport report = examine_triton_cache(folder_);
  ASSERT_EQ(report.kernels.size(), 1u);
  EXPECT_FALSE(report.kernels[0].has_text);
  fs::remove(entry / "add.cubin");
  EXPECT_THAT(examine_triton_cache(folder_).notes,
              ElementsAre(HasSubstr("There is no kernel in this file.")));
}

}  // namespace
}  // namespace segfuse
