#pragma once
// Ranks of one meeting as threads of a test.

#include <poll.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/meet/job.h"
#include "comm/meet/meeting.h"
#include "comm/meet/wire/socket.h"
#include "comm/meet/wire/visit.h"
#include "segfuse/error.h"
#include "support/meet/clock.h"

namespace segfuse::test {

namespace meet = comm::meet;

inline const std::string kKey = meet::key_of("the key of this test");

/// What became of a rank.
struct Outcome {
  bool usage = false;
  std::string error;  ///< empty: it left in peace
};

class Group {
 public:
  using Change = std::function<void(meet::MeetingOptions&)>;

  /// The ranks share `clock`; null: the system's.
  explicit Group(std::int64_t count, const meet::Clock* clock = nullptr)
      : count_(count),
        clock_(clock),
        listening_(meet::listen_at("127.0.0.1", 0)),
        port_(meet::port_of(listening_.get())),
        outcomes_(static_cast<std::size_t>(count)) {}
  ~Group() { join(); }

  int port() const { return port_; }
  meet::MeetingOptions options(std::int64_t rank) {
    meet::MeetingOptions options;
    options.rank = rank;
    options.count = count_;
    options.host = "127.0.0.1";
    options.port = port_;
    options.key = kKey;
    options.clock = clock_;
    options.values = {{"version", "1"}, {"data", "abc"}};
    if (rank == 0) options.listening = std::move(listening_);
    if (change) change(options);
    return options;
  }
  /// Starts a rank; without `work` it only comes and leaves.
  void start(std::int64_t rank, std::function<void(meet::Meeting&)> work = {}) {
    threads_.emplace_back(
        [this, rank, work,
         options = std::make_shared<meet::MeetingOptions>(this->options(rank))]() mutable {
          Outcome& outcome = outcomes_[static_cast<std::size_t>(rank)];
          try {
            meet::Meeting meeting(std::move(*options));
            if (work) work(meeting);
            meeting.leave();
          } catch (const Error& error) {
            outcome = {dynamic_cast<const UsageError*>(&error) != nullptr, error.what()};
          }
          ++ended_;
        });
  }
  void start_all(const std::function<void(meet::Meeting&)>& work = {}) {
    for (std::int64_t rank = 0; rank < count_; ++rank) start(rank, work);
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  int ended() const { return ended_; }
  const Outcome& outcome(std::int64_t rank) { return outcomes_[static_cast<std::size_t>(rank)]; }

  meet::Rows look() const {
    const meet::SteadyClock clock;
    meet::Timings timings;
    timings.slow = std::chrono::seconds(60);
    return meet::look({"127.0.0.1", port_, kKey, count_, 1}, clock, timings);
  }

  Change change;  ///< of each rank's options

 private:
  std::int64_t count_;
  const meet::Clock* clock_;
  Descriptor listening_;
  int port_;
  std::vector<Outcome> outcomes_;
  std::vector<std::thread> threads_;
  std::atomic<int> ended_ = 0;
};

/// A rank that does only what it is told.
class PuppetRank {
 public:
  PuppetRank(int port, std::int64_t rank, std::int64_t count, const std::string& key = kKey) {
    const meet::SteadyClock clock;
    meet::Visit met = meet::visit(
        meet::resolve("127.0.0.1", port).at(0), key,
        {meet::Role::kRank, static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(count)},
        clock.now() + std::chrono::seconds(60), clock, {});
    connection = std::move(met.connection);
    why = met.why;
  }
  void send(const meet::Message& message) {
    connection->send(meet::encode(message));
    while (!connection->all_sent()) connection->flush();
  }
  void here() { send(meet::Here{"puppet", 7, {{"version", "1"}, {"data", "abc"}}}); }
  /// The next message that is no heartbeat; nothing when the connection is closed.
  std::optional<meet::Message> next() {
    const meet::SteadyClock clock;
    for (bool open = true;;) {
      while (auto bytes = connection->next(meet::kLongestMessage)) {
        meet::Message message = meet::decode(*bytes);
        if (!std::holds_alternative<meet::Beat>(message)) return message;
      }
      meet::wait_for(connection->descriptor(), POLLIN, clock.now() + std::chrono::seconds(60),
                     clock, {});
      if (!open) return {};
      open = connection->receive();
    }
  }

  std::optional<meet::Connection> connection;
  std::string why;
};

}  // namespace segfuse::test
