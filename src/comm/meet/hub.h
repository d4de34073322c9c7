#pragma once
// Rank 0's side of the meeting: a thread that lets ranks in, passes on what they say, watches them,
// and tells all of them the first thing that goes wrong. Who comes in place of a rank that was
// lost is a newcomer (newcomers.cpp): it waits, and nobody waits for it, until rank 0 takes it in.

#include <array>
#include <atomic>
#include <map>
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

  /// Whether a newcomer has knocked. From any thread.
  bool somebody_waits() const noexcept { return somebody_waits_; }

 private:
  enum class Stage { kStranger, kNewcomer, kRank, kLook, kGone };
  struct Peer {
    explicit Peer(Descriptor socket) : connection(std::move(socket)) {}
    Connection connection;
    Stage stage = Stage::kStranger;
    std::string nonce;
    Time since{};  ///< it connected
    std::int64_t rank = -1;
    bool last_words = false;  ///< it goes when all is sent
    bool said_here = false;
    Here here{};            ///< of a newcomer, as the next three
    Time heard{};           ///< when it was last
    bool knocked = false;   ///< it can begin to work
    bool arriving = false;  ///< it was taken in and has begun no step yet
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
  void hear_trouble(Peer& peer, const Trouble& trouble, Time now);
  void gone(Peer& peer, Time now, std::string_view why);
  void hear_newcomer(Peer& peer, const Message& message, Time now);
  void meet_newcomer(Peer& peer, const Here& here, Time now);
  void refuse_newcomer(Peer& peer, Failure why, Time now);
  void lose_newcomer(Peer& peer, std::string_view why);
  void watch_newcomers(Time now);
  bool arrives(const Peer& peer) const;
  void judge_hint(Time now);
  void admit(std::int64_t generation, Time now);
  void keep_note(const Note& note);
  void tell_newcomers(const Message& message);
  void turn_away(Peer& peer, Away why);
  void watch(Time now);
  void watch_strangers(Time now);
  void beat(Time now);
  void fail(Failure failure);
  void lose(Failure failure, Time now);
  bool can_go_on(const Failure& loss) const;
  void begin_generation(Failure loss, Time now);
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
  std::int64_t hint_about_ = -1;  ///< Trouble::about
  Time hint_since_{};
  std::int64_t generation_ = 0;  ///< how often the ranks changed
  std::uint64_t round_ = 0;
  std::vector<std::optional<std::string>> texts_;
  std::map<std::string, std::string> notes_;  ///< for newcomers
  std::atomic<bool> somebody_waits_ = false;
  std::array<std::int64_t, 5> away_{};
  Descriptor wake_;
  Mutex mutex_;
  bool stop_ SEGFUSE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace segfuse::comm::meet
