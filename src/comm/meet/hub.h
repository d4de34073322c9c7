#pragma once
// Rank 0's side of the meeting: a thread that lets ranks in, passes on what they say, watches them,
// and tells all of them the first thing that goes wrong.

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "comm/meet/roster.h"
#include "comm/meet/wire/connection.h"
#include "comm/meet/wire/handshake.h"

namespace segfuse::comm::meet {

struct HubOptions {
  std::int64_t count = 1;
  std::string key;
  Timings timings;
  const Clock* clock = nullptr;
  Descriptor listening;
  std::string where;           ///< "node1:29500", for sentences
  std::int64_t min_ranks = 0;  ///< MeetingOptions::min_ranks
};

class Hub {
 public:
  /// Starts the thread.
  explicit Hub(HubOptions options);
  /// Messages to all are still sent, for two seconds at most.
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

 private:
  enum class Stage { kStranger, kRank, kLook, kGone };
  struct Peer {
    explicit Peer(Descriptor socket) : connection(std::move(socket)) {}
    Connection connection;
    Stage stage = Stage::kStranger;
    std::string nonce;
    Time since{};  ///< it connected
    std::int64_t rank = -1;
    bool last_words = false;  ///< it goes when all is sent
    bool said_here = false;
  };
  /// Why somebody was turned away.
  enum class Away { kWrongKey, kMalformed, kSlow, kCrowd, kOther };

  void run();
  bool turn();
  Time next_time() const;
  void accept_all(Time now);
  void make_room();
  void read(Peer& peer, Time now);
  void greet(Peer& peer, const std::string& bytes, Time now);
  Verdict judge_visitor(const Answer& answer, const Peer& peer) const;
  void hear(Peer& peer, const Message& message, Time now);
  void meet(Peer& peer, const Here& here, Time now);
  void gather(Peer& peer, const Text& text);
  void gone(Peer& peer, Time now, std::string_view why);
  void turn_away(Peer& peer, Away why);
  void watch(Time now);
  void watch_strangers(Time now);
  void beat(Time now);
  void fail(Failure failure);
  void lose(Failure failure, Time now);
  bool can_go_on(const Failure& loss) const;
  void tell_all(const Message& message);
  void flush_all(Time now);
  void say_goodbye();
  void report_strangers();

  const HubOptions options_;
  Roster roster_;
  std::vector<std::unique_ptr<Peer>> peers_;
  Time begin_;
  Time last_turn_;
  Time next_beat_;
  bool accepting_ = true;  ///< not while the process has no descriptor left for another
  bool agreed_ = false;
  bool over_ = false;  ///< everybody's work is done
  std::optional<Failure> failure_;
  std::optional<Failure> hint_;
  Time hint_since_{};
  std::int64_t generation_ = 0;  ///< how often ranks were lost
  std::uint64_t round_ = 0;
  std::vector<std::optional<std::string>> texts_;
  std::array<std::int64_t, 5> away_{};
  Descriptor wake_;
  Mutex mutex_;
  bool stop_ SEGFUSE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace segfuse::comm::meet
