#pragma once
// Ranks that work together: they find each other, prove a key, agree on what they are about to do,
// and from then on each knows when another has left, and which one left first.
//
// Control only: no gradients go this way. One thread a rank, and one more on rank 0, through which
// everything passes. After the proof of the key messages are neither signed nor encrypted.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/os/descriptor.h"
#include "base/os/ranks.h"
#include "comm/meet/clock.h"
#include "comm/meet/state.h"
#include "comm/meet/wire/message.h"
#include "segfuse/error.h"

namespace segfuse::comm::meet {

class Board;

struct MeetingOptions {
  std::int64_t rank = 0;
  std::int64_t count = 1;
  std::string host;  ///< of rank 0, and its port
  int port = 0;
  std::string key;  ///< 32 bytes, see job.h
  Values values;    ///< on which all have to agree
  Timings timings;
  /// Null: the system's. Has to outlive the meeting.
  const Clock* clock = nullptr;
  Descriptor listening;          ///< rank 0: a socket that was inherited; none: host and port
  Descriptor launcher;           ///< a pipe that ends with the launcher; none: there is none
  std::shared_ptr<Board> board;  ///< where this rank tells the launcher what it does; may be null
  /// Asked while the others are awaited; true ends that with Interrupted.
  std::function<bool()> stop;
  /// Called once for the first thing that goes wrong, by the meeting's thread, which has to come
  /// back.
  std::function<void(const Failure&)> failed;
  /// When a failure has been known for so long and this object still exists, the process ends
  /// itself: whatever it does cannot be ended otherwise.
  std::optional<Duration> last_resort;
  /// While so many ranks are left, rank 0 among them, they go on without one that is lost: each
  /// learns it by RanksChanged and calls renew(). A process that comes in place of that one may
  /// join them, see is_late(). 0: a loss ends all.
  std::int64_t min_ranks = 0;
};

/// Host, port, key and what else the environment says of ranks that a launcher started. Throws
/// UsageError for what is missing. Says so in the log, on rank 0, when the key is weak.
MeetingOptions options_of(const Ranks& ranks);

class Meeting {
 public:
  /// Returns when all ranks have come and agree, or when a newcomer agrees with the others. Throws
  /// UsageError, the same on all ranks, where their values differ; CommError where somebody does
  /// not come or goes; Interrupted.
  explicit Meeting(MeetingOptions options);
  /// Without leave() the others learn that this rank ended early.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  std::int64_t rank() const noexcept;
  std::int64_t count() const noexcept;
  /// Rank 0's port.
  int port() const noexcept;
  const MeetingOptions& options() const noexcept;

  /// Rank 0 writes into the folder where it can be asked (job.h), until the first failure or the
  /// end of this; the others do nothing.
  void publish(const std::filesystem::path& folder);

  /// Sets what this rank does now; costs a microsecond. `seconds` is filled in.
  void report(State state);
  /// The first thing that went wrong anywhere.
  std::optional<Failure> failure() const;
  /// Throws it: UsageError, EndedByRank or CommError; RanksChanged for a change of the ranks that
  /// is not known yet.
  void check() const;

  /// The ranks that this one works with, in order; all of them until renew() was called.
  std::vector<std::int64_t> ranks() const;
  /// How many changes of the ranks this one knows of.
  std::int64_t generation() const;
  /// From now on this rank is one of those that are left.
  void renew();
  /// Everybody's work is done.
  bool is_over() const;

  /// Whether this rank is a newcomer: it came in place of one that was lost. Until enter() it
  /// is none of those that work.
  bool is_late() const noexcept;
  /// Rank 0: what newcomers have to know, 32 KiB at most.
  void leave_note(const std::string& name, const std::string& text);
  /// A newcomer: waits until rank 0 has left that note. Throws as check() does, and where the work
  /// of the others is done.
  std::string note(const std::string& name);
  /// Rank 0: whether a newcomer waits in enter().
  bool somebody_waits() const noexcept;
  /// Rank 0: those that wait in enter() are ranks from now on. All learn it by RanksChanged, also
  /// where nobody waits any more.
  void admit();
  /// Throws RanksChanged when the ranks have changed.
  void await_change();
  /// A newcomer: says that it can work, and is one of the ranks when this returns. Throws as note.
  void enter();

  /// One text of each of ranks(), 32 KiB at most, in their order; all ranks call it equally often,
  /// from one thread each. Throws as check() does.
  std::vector<std::string> all_gather(const std::string& text);
  /// The work is done; returns when everybody's is. Throws as check() does.
  void leave();

  /// This rank cannot go on, and why. Returns when the others know. `said`: it will end
  /// with that code and say so itself.
  void fail(std::string_view sentence, ExitCode said = ExitCode::kOk) noexcept;
  /// Before it: what ends this rank lies in itself, and its launcher does not start it again.
  void note_own_fault() noexcept;
  /// What a library said of a failed exchange: waits for the cause, which is often a rank that has
  /// just left, and throws it as check() does. Where none shows up, the hint is the cause; unless
  /// this rank or the one that it did not reach, `about`, was just taken in, which is given up
  /// then.
  [[noreturn]] void throw_cause(std::string_view hint, std::int64_t about = -1);

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace segfuse::comm::meet
