#pragma once
// A rank's side of the meeting: it joins, tells what it does once a second, and listens.

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "comm/meet/hub.h"
#include "comm/meet/meeting.h"
#include "comm/meet/wire/socket.h"

namespace segfuse::comm::meet {

class Member {
 public:
  /// `ways` tells, before each attempt, where rank 0 may be reached.
  Member(const MeetingOptions& options, std::function<std::vector<Address>()> ways);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  /// Until all agree; throws what went wrong.
  void join();
  void report(State state);
  void note_own_fault();
  std::optional<Failure> failure() const;
  bool is_over() const;
  /// What changed the ranks and this one has not taken note of, the last of it; see renew().
  std::optional<Failure> change() const;
  /// This rank is one of the newest generation from now on.
  void renew();
  std::int64_t generation() const;
  std::vector<std::int64_t> ranks() const;

  /// See Meeting.
  bool is_late() const noexcept { return hub_.late; }
  void leave_note(const std::string& name, const std::string& text);
  void admit();

  // Each waits for its end, for a failure or for a change of the ranks.
  std::vector<std::string> gather(const std::string& text);
  void leave();
  void await_change();
  // Of a newcomer: each waits for its end, for a failure or for the end of the others' work.
  std::string note(const std::string& name);
  void enter();
  /// The others' work is done without it, and it ends: a launcher's own in silence.
  [[noreturn]] void throw_too_late() const;
  Failure tell_trouble(Trouble trouble);

 private:
  void connect();
  void ask() const;
  void run();
  void turn();
  void hear(const Message& message);
  void take_texts(Texts texts);
  void take_change(const Changed& changed);
  void judge(Time now);
  void beat(Time now);
  void set_failure(Failure failure);
  void lose_hub(Time now, std::string_view why);
  void send(const Message& message);
  void post(const Message& message) SEGFUSE_REQUIRES(mutex_);
  void write_board() SEGFUSE_REQUIRES(mutex_);
  bool done() const;

  const MeetingOptions& options_;
  const std::function<std::vector<Address>()> ways_;
  std::optional<Connection> connection_;
  Descriptor wake_;
  std::string where_;
  bool joined_ = false;
  Agreed hub_{};  ///< who rank 0 is; does not change once this one has joined
  State hub_state_{};
  Time hub_heard_{};
  Time last_turn_{};
  Time next_beat_{};
  Time failed_at_{};

  mutable Mutex mutex_;
  ConditionVariable changed_;
  State state_ SEGFUSE_GUARDED_BY(mutex_);
  Time since_ SEGFUSE_GUARDED_BY(mutex_){};
  std::vector<Frame> outbox_ SEGFUSE_GUARDED_BY(mutex_);
  std::optional<Failure> failure_ SEGFUSE_GUARDED_BY(mutex_);
  std::vector<std::string> texts_ SEGFUSE_GUARDED_BY(mutex_);
  std::uint64_t round_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  bool over_ SEGFUSE_GUARDED_BY(mutex_) = false;
  std::int64_t generation_ SEGFUSE_GUARDED_BY(mutex_) = 0;     ///< of what this rank does
  std::int64_t newest_ SEGFUSE_GUARDED_BY(mutex_) = 0;         ///< that rank 0 has named
  std::vector<std::int64_t> left_ SEGFUSE_GUARDED_BY(mutex_);  ///< the ranks of the newest
  std::vector<std::int64_t> ranks_ SEGFUSE_GUARDED_BY(mutex_);
  std::optional<Failure> change_ SEGFUSE_GUARDED_BY(mutex_);
  std::map<std::string, std::string> notes_ SEGFUSE_GUARDED_BY(mutex_);
  bool entered_ SEGFUSE_GUARDED_BY(mutex_) = false;      ///< a newcomer that was taken in
  bool own_fault_ SEGFUSE_GUARDED_BY(mutex_) = false;    ///< what ends this rank lies in itself
  bool left_behind_ SEGFUSE_GUARDED_BY(mutex_) = false;  ///< this one is lost for the others
  bool stop_ SEGFUSE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace segfuse::comm::meet
