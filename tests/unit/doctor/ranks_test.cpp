// segfuse doctor ranks: a running job as its user sees it.

#include "segfuse/doctor/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/json/json.h"
#include "comm/meet/job.h"
#include "comm/meet/wire/socket.h"
#include "segfuse/error.h"
#include "support/files.h"

namespace segfuse {
namespace {

namespace fs = std::filesystem;
namespace meet = comm::meet;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DoctorRanks : public ::testing::Test {
 protected:
  test::TemporaryDirectory folder_;
  const fs::path dir_ = folder_.path();
};

RanksReport example() {
  RanksReport report;
  report.where = "a:29500";
  report.ranks = {{.rank = 0,
                   .here = true,
                   .host = "a",
                   .pid = 811,
                   .step = 1201,
                   .work = "in the exchange of bucket 2",
                   .seconds = 3.25,
                   .silent = 0.5},
                  {.rank = 1,
                   .here = true,
                   .awaited = true,
                   .host = "node-b",
                   .pid = 812,
                   .step = 1201,
                   .work = "reading data (recording 'x.flac')",
                   .seconds = 63,
                   .silent = 2.5,
                   .free_bytes = std::int64_t{3} << 29},
                  {.rank = 2}};
  return report;
}

TEST_F(DoctorRanks, TheTableNamesWhoIsAwaited) {
  EXPECT_EQ(
      ranks_report_text(example()),
      "3 ranks meet at a:29500\n"
      "awaited by others: 1\n"
      " rank  host        pid      step      for       free  is\n"
      "    0  a           811      1201    3.2 s             in the exchange of bucket 2\n"
      "    1  node-b      812      1201     63 s    1.5 GiB  reading data (recording 'x.flac'); "
      "others wait for it; silent for 2.5 s\n"
      "    2  has not come yet\n");
  RanksReport failed = example();
  failed.failure = "rank 1 was lost";
  EXPECT_THAT(ranks_report_text(failed), HasSubstr("failed: rank 1 was lost\n"));
  RanksReport gone_on = example();
  gone_on.generation = 1;
  gone_on.ranks[1].lost = true;
  gone_on.ranks[1].awaited = false;
  EXPECT_THAT(ranks_report_text(gone_on),
              AllOf(HasSubstr("3 ranks meet at a:29500\ngeneration 1: 2 of them are left\n"),
                    HasSubstr("(recording 'x.flac'); lost, the others go on\n")));
}

TEST_F(DoctorRanks, TheSameAsJson) {
  const Json json = parse_json(ranks_report_json(example()), "x");
  EXPECT_TRUE(json["failure"].is_null());
  EXPECT_EQ(json["ranks"].size(), 3U);
  EXPECT_EQ(json["ranks"][1]["is"], "reading data (recording 'x.flac')");
  EXPECT_EQ(json["ranks"][1]["awaited"], true);
  EXPECT_EQ(json["ranks"][1]["lost"], false);
  EXPECT_EQ(json["generation"], 0);
  EXPECT_TRUE(json["ranks"][0]["free_bytes"].is_null());
  EXPECT_EQ(json["ranks"][2]["here"], false);
}

TEST_F(DoctorRanks, ARunningJobIsFoundByItsFolderItsFileAndItsPort) {
  meet::MeetingOptions options;
  options.host = "127.0.0.1";
  options.listening = meet::listen_at("127.0.0.1", 0);
  ::setenv(meet::kKeyVariable, "a secret of some length", 1);
  options.key = meet::key_of_environment("").bytes;
  meet::Meeting meeting(std::move(options));
  meeting.publish(dir_);
  for (const std::string& target : {dir_.string(), (dir_ / "ranks.json").string(),
                                    fmt::format("127.0.0.1:{}", meeting.port())}) {
    const RanksReport report = examine_ranks(target);
    ASSERT_EQ(report.ranks.size(), 1U);
    EXPECT_TRUE(report.ranks[0].here);
    EXPECT_EQ(report.ranks[0].pid, ::getpid());
  }
  ::setenv(meet::kKeyVariable, "another secret of some length", 1);
  EXPECT_THROW(examine_ranks(fmt::format("127.0.0.1:{}", meeting.port())), CommError);
  ::unsetenv(meet::kKeyVariable);
  EXPECT_THROW(examine_ranks(fmt::format("127.0.0.1:{}", meeting.port())), UsageError);
  meeting.leave();
}

TEST_F(DoctorRanks, WhatIsNoJobIsSaid) {
  EXPECT_THROW(examine_ranks(dir_.string()), DataError);
  for (const char* target : {"nowhere", "host:", "host:x", "host:70000", ":29500"})
    EXPECT_THROW(examine_ranks(target), UsageError) << target;
  const fs::path file = dir_ / "ranks.json";
  for (const char* text :
       {"", "[]", R"({"host":"127.0.0.1","port":1,"key":"00","ranks":1,"pid":1})",
        R"({"host":"127.0.0.1","port":0,"key":"","ranks":1,"pid":1})"}) {
    std::ofstream(file) << text;
    EXPECT_THROW(examine_ranks(dir_.string()), DataError) << text;
  }
  // A run that was killed leaves its file.
  meet::write_place(dir_, {"127.0.0.1", 1, meet::key_of("x"), 2, 1});
  try {
    examine_ranks(dir_.string());
    ADD_FAILURE() << "somebody answered";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("the ranks at 127.0.0.1:1 cannot be asked: nobody listens"));
  }
}

}  // namespace
}  // namespace segfuse
