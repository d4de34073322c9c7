// A meeting among strangers: whatever they send, the ranks meet, and one line counts them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mutex>

#include "base/console/log.h"
#include "base/rng.h"
#include "support/meet/group.h"

namespace segfuse::comm::meet {
namespace {

using test::Group;
using test::ManualClock;
using test::PuppetRank;
using ::testing::HasSubstr;
using namespace std::string_view_literals;

/// What is logged while it lives.
class LogLines {
 public:
  LogLines() {
    former_ = set_log_sink([this](LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    });
  }
  ~LogLines() { set_log_sink(std::move(former_)); }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
  LogSink former_;
};

Descriptor connect_to(int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Address address = resolve("127.0.0.1", port).at(0);
  const auto* const bytes = reinterpret_cast<const sockaddr*>(&address.bytes);
  if (::connect(socket.get(), bytes, address.size) != 0) return Descriptor();
  return socket;
}
void send_text(const Descriptor& socket, std::string_view text) {
  (void)::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
}
/// All of it; false when the other side has closed.
bool send_all(const Connection& connection, std::string_view text) {
  const SteadyClock clock;
  while (!text.empty()) {
    const ssize_t count = ::send(connection.descriptor(), text.data(), text.size(), MSG_NOSIGNAL);
    if (count < 0 && errno != EAGAIN) return false;
    if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
    if (count < 0)
      wait_for(connection.descriptor(), POLLOUT, clock.now() + std::chrono::seconds(60), clock, {});
  }
  return true;
}
/// Until the other side has closed.
void drain(const Descriptor& socket) {
  char buffer[4096];
  while (::recv(socket.get(), buffer, sizeof buffer, 0) > 0) continue;
}

/// The ranks come after the strangers, and have to get in and work together.
void expect_meeting(Group& group, std::int64_t count) {
  for (std::int64_t rank = 1; rank < count; ++rank)
    group.start(rank, [](Meeting& meeting) { meeting.all_gather("x"); });
  group.join();
  for (std::int64_t rank = 0; rank < count; ++rank) EXPECT_EQ(group.outcome(rank).error, "");
}

TEST(Strangers, RandomBytesAndOtherProtocolsAreTurnedAway) {
  LogLines log;
  Group group(3);
  group.start(0, [](Meeting& meeting) { meeting.all_gather("x"); });
  Rng rng(1, 0);
  for (int i = 0; i < 50; ++i) {
    const Descriptor stranger = connect_to(group.port());
    std::string bytes;
    for (std::uint64_t left = 4 + rng.below(2000); left > 0; --left)
      bytes += static_cast<char>(rng.bits());
    bytes[3] = '\x01';  // a length beyond every bound
    send_text(stranger, bytes);
    drain(stranger);
  }
  for (const std::string_view text :
       {"GET / HTTP/1.1\r\n\r\n"sv, "\x00\x00\x01\x00hello and more"sv}) {
    const Descriptor stranger = connect_to(group.port());
    send_text(stranger, text);
    drain(stranger);
  }
  expect_meeting(group, 3);
  ASSERT_EQ(log.lines().size(), 1U);
  EXPECT_THAT(log.lines()[0],
              HasSubstr("refused 52 connections: 0 with a wrong key, 52 malformed"));
}

TEST(Strangers, AWrongKeyIsCounted) {
  LogLines log;
  Group group(2);
  group.start(0, [](Meeting& meeting) { meeting.all_gather("x"); });
  for (int i = 0; i < 3; ++i)
    EXPECT_FALSE(PuppetRank(group.port(), 1, 2, key_of("another")).connection);
  expect_meeting(group, 2);
  ASSERT_EQ(log.lines().size(), 1U);
  EXPECT_THAT(log.lines()[0], HasSubstr("refused 3 connections: 3 with a wrong key"));
}

TEST(Strangers, SlowOnesAreTurnedAwayByTheClock) {
  LogLines log;
  ManualClock clock;
  Group group(2, &clock);
  group.start(0, [](Meeting& meeting) { meeting.all_gather("x"); });
  const Descriptor silent = connect_to(group.port());
  const Descriptor slow = connect_to(group.port());
  send_text(slow, "I");
  // Proves the key and says no more.
  PuppetRank mute(group.port(), 1, 2);
  ASSERT_TRUE(mute.connection);
  for (int i = 0; i < 5; ++i) {
    clock.advance(std::chrono::seconds(1));
    while (group.look().rows[0].silent != 0) continue;  // rank 0 itself is heard
    if (i < 2) send_text(slow, "x");
  }
  drain(silent);
  drain(slow);
  EXPECT_FALSE(mute.next());
  expect_meeting(group, 2);
  ASSERT_EQ(log.lines().size(), 1U);
  EXPECT_THAT(log.lines()[0], HasSubstr("3 slow"));
}

TEST(Strangers, AThousandConnectionsDoNotKeepTheRanksOut) {
  LogLines log;
  Group group(4);
  group.start(0, [](Meeting& meeting) { meeting.all_gather("x"); });
  allow_descriptors(4096);
  std::vector<Descriptor> crowd;
  for (int i = 0; i < 1000; ++i) crowd.push_back(connect_to(group.port()));
  expect_meeting(group, 4);
  ASSERT_GE(log.lines().size(), 1U);
  EXPECT_THAT(log.lines()[0], HasSubstr("because there was no room"));
}

TEST(Strangers, AfterTheRanksHaveMetTheyAreTurnedAwayToo) {
  LogLines log;
  Group group(2);
  std::atomic<bool> over = false;
  group.start_all([&](Meeting& meeting) {
    meeting.all_gather("x");
    while (!over) ::usleep(1000);
    meeting.all_gather("y");
  });
  while (group.look().rows.at(1).here == false) continue;
  for (int i = 0; i < 200; ++i) {
    const Descriptor stranger = connect_to(group.port());
    send_text(stranger, "\xff\xff\xff\xff");
    drain(stranger);
  }
  over = true;
  group.join();
  EXPECT_EQ(group.outcome(0).error, "");
  EXPECT_EQ(group.outcome(1).error, "");
  // In one line or in several, as they came before or after something else was said.
  int turned_away = 0;
  for (const std::string& line : log.lines())
    if (const auto at = line.find("refused "); at != std::string::npos)
      turned_away += std::stoi(line.substr(at + 8));
  EXPECT_EQ(turned_away, 200);
}

TEST(Strangers, OneWhoHasTheKeyAndLooksWithoutEndDoesNotFillTheMemory) {
  Group group(2);
  group.start(0, [](Meeting& meeting) { meeting.all_gather("x"); });
  const SteadyClock clock;
  Visit looker = visit(resolve("127.0.0.1", group.port()).at(0), test::kKey, {Role::kLook, 0, 0},
                       clock.now() + std::chrono::seconds(60), clock, {});
  ASSERT_TRUE(looker.connection);
  const std::string block(1 << 16, 'x');
  rusage before{};
  ::getrusage(RUSAGE_SELF, &before);
  // 128 MiB; rank 0 takes them at its pace.
  for (int i = 0; i < 2048; ++i)
    if (!send_all(*looker.connection, block)) break;
  expect_meeting(group, 2);
  rusage after{};
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10) << "KiB";
}

}  // namespace
}  // namespace segfuse::comm::meet
