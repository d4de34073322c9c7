// Who registers memory: programs run under the preloaded library, and what it says.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "doctor/fork/act/trace.h"
#include "doctor/fork/act/trace_listener.h"
#include "doctor/fork/act/trace_message.h"
#include "segfuse/error.h"
#include "segfuse/spawn.h"

namespace segfuse {
namespace {

using namespace doctor;
using ::testing::HasSubstr;

class ForkTraceTest : public ::testing::Test {
 protected:
  void SetUp() override { setenv("SEGFUSE_FORKTRACE", SEGFUSE_FORKTRACE_LIBRARY, 1); }
  void TearDown() override { unsetenv("SEGFUSE_FORKTRACE"); }
};

/// The place whose caller has this name; the test fails without it.
const ForkSite& site_by(const std::vector<ForkSite>& sites, const std::string& function) {
  static const ForkSite none;
  for (const ForkSite& site : sites)
    if (!site.stack.empty() && site.stack[site.caller].function.starts_with(function)) return site;
  ADD_FAILURE() << function << " was not named";
  return none;
}

std::vector<std::string> registering(std::vector<std::string> how) {
  how.insert(how.begin(), {SEGFUSE_FORK_VICTIM, "register"});
  return how;
}

/// T18, with the real library: two registrations in one page, the second of which makes no madvise.
class ForkTraceWays : public ForkTraceTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Ways, ForkTraceWays, ::testing::Values("dlsym", "dlvsym"),
                         [](const auto& suite) { return std::string(suite.param); });

TEST_P(ForkTraceWays, CallSitesAreNamedThroughTheRealLibrary) {
  if (dlopen("libibverbs.so.1", RTLD_NOW) == nullptr)
    GTEST_SKIP() << "libibverbs.so.1 is not installed";
  const ForkTrace trace = trace_command(registering({"real", GetParam()}));
  SCOPED_TRACE(fork_trace_text(trace));
  EXPECT_EQ(trace.outcome, "exit status 3");
  EXPECT_TRUE(trace.at_risk());
  EXPECT_EQ(trace.processes, 1U);
  ASSERT_EQ(trace.sites.size(), 6U);
  for (const char* name : {"setup_flush_buffer", "setup_second_flag"}) {
    const ForkSite& site = site_by(trace.sites, name);
    EXPECT_EQ(site.call, "ibv_dontfork_range");
    EXPECT_EQ(site.calls, 1U);
    EXPECT_EQ(site.bytes, 4U);
    EXPECT_EQ(site.live, 1U) << name;
    EXPECT_EQ(site.risk, ForkRisk::kLosesData);
    ASSERT_TRUE(site.worst);
    EXPECT_EQ(site.worst->kind, "heap chunk");
    EXPECT_GT(site.worst->live_neighbours.value_or(0), 20U);
  }
  EXPECT_EQ(site_by(trace.sites, "setup_flush_buffer").worst->begin,
            site_by(trace.sites, "setup_second_flag").worst->begin);
  EXPECT_EQ(site_by(trace.sites, "use_for_a_moment").live, 0U);
  const ForkSite& by_hand = site_by(trace.sites, "keep_by_hand");
  EXPECT_EQ(by_hand.call, "madvise");
  EXPECT_EQ(by_hand.worst.value_or(ForkRegion{}).kind, ".bss");
  // Unmapped, and its addresses taken by others: neither still there nor to blame.
  const ForkSite& unmapped = site_by(trace.sites, "map_and_unmap");
  EXPECT_EQ(unmapped.live, 0U);
  EXPECT_EQ(unmapped.risk, ForkRisk::kBenign);
  ASSERT_EQ(trace.forks.size(), 1U);
  EXPECT_THAT(site_by(trace.forks, "start_a_child").forecast, HasSubstr("fork() now: "));
  EXPECT_THAT(fork_trace_text(trace), HasSubstr("6 places that register memory, 4 of them a risk"));
  EXPECT_THAT(fork_trace_json(trace), HasSubstr("\"function\": \"setup_second_flag+0x"));
}

/// Registrations with an adapter's domain are told once, by their outermost call.
TEST_P(ForkTraceWays, RegistrationsAndReleasesAreCounted) {
  const ForkTrace trace = trace_command(registering({SEGFUSE_FAKE_VERBS, GetParam()}));
  SCOPED_TRACE(fork_trace_text(trace));
  EXPECT_EQ(trace.outcome, "exit status 3");
  ASSERT_EQ(trace.sites.size(), 2U);
  for (const ForkSite& site : trace.sites) {
    EXPECT_EQ(site.call, "ibv_reg_mr");
    EXPECT_EQ(site.calls, 1U);
    EXPECT_EQ(site.worst.value_or(ForkRegion{}).kind, "heap chunk");
    EXPECT_TRUE(site.stack[site.caller].function.starts_with("register_with_a_domain"));
  }
  EXPECT_EQ(trace.sites[0].live + trace.sites[1].live, 1U);
}

TEST_F(ForkTraceTest, SeveralProcessesAreHeardAndOthersPreloadsStay) {
  setenv("LD_PRELOAD", "libm.so.6", 1);
  const std::string one = std::string(SEGFUSE_FORK_VICTIM) + " register " + SEGFUSE_FAKE_VERBS;
  const ForkTrace trace =
      trace_command({"sh", "-c", one + " dlsym & " + one + " dlvsym; wait; echo $LD_PRELOAD >&2"});
  unsetenv("LD_PRELOAD");
  EXPECT_EQ(trace.outcome, "exit status 0");
  std::uint64_t calls = 0;
  for (const ForkSite& site : trace.sites) calls += site.calls;
  EXPECT_EQ(calls, 4U) << fork_trace_text(trace);
  EXPECT_GE(trace.processes, 2U);
}

/// Nobody hangs, and nothing is lost, while threads register and others fork.
TEST_F(ForkTraceTest, AStormOfRegistrationsAndForksIsCounted) {
  const ForkTrace trace = trace_command({SEGFUSE_FORK_VICTIM, "storm"});
  EXPECT_EQ(trace.outcome, "exit status 3");
  std::uint64_t calls = 0;
  std::uint64_t live = 0;
  for (const ForkSite& site : trace.sites) {
    calls += site.calls;
    live += site.live;
  }
  EXPECT_EQ(calls, 4U * 200 + 2U * 20) << fork_trace_text(trace);
  EXPECT_EQ(live, 2U * 20) << "the children's, who end without a word";
  EXPECT_EQ(trace.processes, 1U + 2U * 20);
}

TEST_F(ForkTraceTest, AProgramThatIsKilledIsReported) {
  const ForkTrace trace = trace_command({"sh", "-c", "kill -9 $$"});
  EXPECT_THAT(trace.outcome, HasSubstr("killed by signal 9"));
  EXPECT_FALSE(trace.at_risk());
}

TEST_F(ForkTraceTest, AProgramThatRegistersNothingIsClean) {
  const ForkTrace trace = trace_command({"/bin/true"});
  EXPECT_EQ(trace.outcome, "exit status 0");
  EXPECT_TRUE(trace.sites.empty());
  EXPECT_FALSE(trace.at_risk());
  EXPECT_THAT(fork_trace_text(trace), HasSubstr("0 places that register memory"));
}

/// The program's own descriptors are never written to.
TEST_F(ForkTraceTest, AProgramThatClosesEverythingGoesOn) {
  const ForkTrace trace = trace_command(registering({SEGFUSE_FAKE_VERBS, "dlvsym", "close"}));
  EXPECT_EQ(trace.outcome, "exit status 3");
}

TEST_F(ForkTraceTest, WhatCannotBeStartedIsAnError) {
  EXPECT_THROW(trace_command({}), UsageError);
  EXPECT_THROW(trace_command({"/nothing/here"}), UsageError);
  EXPECT_THROW(trace_command({"/etc/passwd"}), UsageError);
  setenv("SEGFUSE_FORKTRACE", "/nothing/here.so", 1);
  EXPECT_THROW(trace_command({"/bin/true"}), DeviceError);
}

/// Without a doctor it writes to a file; and without either it is silent.
TEST_F(ForkTraceTest, MessagesGoToAFileWhereOneIsNamed) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("segfuse-trace-" + std::to_string(getpid()));
  for (const std::string& where : {path.string(), std::string("@nobody-listens"), std::string()}) {
    spawn::Request request{.arguments = registering({SEGFUSE_FAKE_VERBS, "dlvsym"})};
    request.environment = spawn::Environment::patch(
        {{"LD_PRELOAD", getenv("SEGFUSE_FORKTRACE")}, {"SEGFUSE_FORK_TRACE", where}});
    request.timeout = std::chrono::seconds(60);
    EXPECT_EQ(spawn::run(request).exit_code, 3) << where;
  }
  std::ifstream file(path);
  std::string message;
  std::vector<std::string> calls;
  for (std::string line; std::getline(file, line);) {
    message += line + "\n";
    if (line != "end ") continue;
    const auto parsed = parse_trace_message(message);
    ASSERT_TRUE(parsed) << message;
    calls.push_back(parsed->call);
    message.clear();
  }
  EXPECT_EQ(message, "");
  EXPECT_THAT(calls,
              ::testing::ElementsAre("ibv_reg_mr", "ibv_reg_mr", "ibv_dereg_mr", "fork", "exit"));
  std::filesystem::remove(path);
}

TEST(ForkTraceMessageTest, WholeMessagesAloneAreRead) {
  const std::string good =
      "call ibv_reg_mr\nkind keep\npid 7\naddress 0x7f00\nbytes 4\nerror 0\nmadvised 1\n"
      "frame 0x10 ibv_reg_mr+0x1 /lib/libibverbs.so.1\nframe 0x20 ? /a folder/x.so\n"
      "frame 0x30 ? ?\nend \n";
  const auto message = parse_trace_message(good);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->kind, TraceKind::kKeep);
  EXPECT_EQ(message->address, 0x7f00U);
  ASSERT_EQ(message->stack.size(), 3U);
  EXPECT_EQ(message->stack[1].library, "/a folder/x.so");
  EXPECT_EQ(message->stack[1].function, "");
  EXPECT_EQ(caller_in(message->stack), 1U);
  EXPECT_EQ(caller_in({}), 0U);
  for (std::size_t size = 0; size + 6 < good.size(); ++size)
    EXPECT_FALSE(parse_trace_message(good.substr(0, size))) << size;
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return parse_trace_message(text).has_value();
  };
  EXPECT_TRUE(with("pid 7", "pid 8"));
  EXPECT_TRUE(with("pid 7", "unknown 8"));
  EXPECT_FALSE(with("kind keep", "kind whatever"));
  EXPECT_FALSE(with("0x7f00", "0xzz"));
  EXPECT_FALSE(with("0x7f00", "0xffffffffffffffff"));
  EXPECT_FALSE(with("bytes 4", "bytes -4"));
  EXPECT_FALSE(with("error 0", "error 5000"));
  EXPECT_FALSE(with("frame 0x20 ?", "frame"));
  EXPECT_FALSE(with("end \n", "end \nend \n"));
  EXPECT_FALSE(with("call ibv_reg_mr\n", ""));
}

/// Anybody may connect and say anything; the listener answers, counts and goes on.
TEST(ForkTraceListenerTest, NonsenseIsHandedOnAndHangingUpIsNoticed) {
  std::vector<std::string> heard;
  int ended = 0;
  {
    TraceListener listener(
        [&](const TraceSender& sender, std::string_view text) {
          EXPECT_EQ(sender.pid, getpid());
          heard.emplace_back(text);
        },
        [&](const TraceSender&) { ++ended; });
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, listener.name().c_str() + 1, listener.name().size() - 1);
    const auto size = offsetof(sockaddr_un, sun_path) + listener.name().size();
    for (int i = 0; i < 3; ++i) {
      const int one = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
      ASSERT_EQ(connect(one, reinterpret_cast<sockaddr*>(&address), static_cast<socklen_t>(size)),
                0);
      const std::string text(i == 1 ? 40000 : 3, 'x');  // the second is cut
      ASSERT_EQ(send(one, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
      char answer = 1;
      EXPECT_EQ(recv(one, &answer, 1, 0), 1);
      if (i < 2) close(one);  // the third stays until the listener goes
      EXPECT_FALSE(parse_trace_message(heard.back()));
    }
  }
  EXPECT_EQ(heard.size(), 3U);
  EXPECT_LT(heard[1].size(), 40000U);
  EXPECT_EQ(ended, 3);
}

}  // namespace
}  // namespace segfuse
