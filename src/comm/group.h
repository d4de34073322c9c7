#pragma once
// Ranks that work on one training, and how they hand each other bytes in host memory. An engine
// (threads/, mpi/) implements what is protected here. None of it adds numbers: who adds what, and
// in which order, is tree.h's business and the same for all engines.
//
// Every call but poll() and abort() is one of all ranks: all make the same calls in the same order,
// and each returns when this rank's part is done. A call that fails ends with a CommError that says
// what went wrong first, on whichever rank that was; no later call of the group succeeds.
//
// A group may go on without a rank that is lost (tcp/ with MeetingOptions::min_ranks). Then a call
// ends with RanksChanged, and nothing is known of what other ranks did in it. So what belongs
// together is a unit, which all that are left do again: see together().
//
// Another process may come in place of that rank while the others work. Until they take it in
// (take_in()) it is outside: what it calls is done for this rank alone, as if no other had a word.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/ranks_changed.h"
#include "segfuse/error.h"

namespace segfuse::comm {

/// Bytes for one other rank. The memory is the caller's and is not changed during the call.
struct Outgoing {
  int to = 0;
  std::span<const std::byte> bytes;
};

/// Where bytes of one other rank go: exactly as many as it sends.
struct Incoming {
  int from = 0;
  std::span<std::byte> bytes;
};

/// One rank's end of a group. Calls come from one thread, the one that opened the group; only
/// poll() and abort() may come from any.
class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// size() at the start, whatever became of the ranks.
  int first_size() const noexcept { return first_size_; }
  /// How often ranks were lost or taken in; rank() and size() change with it, but rank 0 stays
  /// rank 0.
  std::int64_t generation() const noexcept { return generation_; }
  /// Whether a loss may be no end.
  bool goes_on() const noexcept { return goes_on_; }
  /// Whether this rank came while the others were at work, and is none of them yet. rank() and
  /// size() are those of the start.
  bool is_outside() const noexcept { return outside_; }
  /// For logs: "threads", "Open MPI 4.1.4".
  const std::string& engine() const noexcept { return engine_; }

  /// The texts of all ranks by rank; together less than 2 GiB.
  std::vector<std::string> gather(std::string_view mine);
  /// The bytes of `root` go to all; their number is the same on all ranks.
  void broadcast(std::span<std::byte> bytes, int root);
  /// Returns when all ranks have called it.
  void barrier();
  /// Sends and receives at once. The k-th span that a rank sends to another fills the k-th span
  /// that the other receives from it; their sizes are equal. None goes to the rank itself.
  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in);
  /// The last call: returns when all ranks have made it. A group that goes without it is aborted,
  /// so that a rank which ended by an exception leaves nobody waiting.
  void finish();

  /// The end of a unit: returns when all ranks have come to it. RanksChanged where one did not;
  /// then regroup() says whether the unit is done all the same.
  void commit();
  /// After RanksChanged: those that are left are the group from now on. True where this rank was in
  /// commit() and another one has left it: then all had come to it, and the unit is done.
  bool regroup();

  /// Rank 0, where the group goes on: what a rank that comes later has to know, 32 KiB at most.
  void leave_note(const std::string& name, const std::string& text);
  /// A rank that is outside waits until rank 0 has left that note.
  std::string note(const std::string& name);
  /// On rank 0: whether a rank that is outside waits in take_in(). False on others.
  bool somebody_waits();
  /// The beginning of a unit, of all ranks and of one that is outside, which waits there: those
  /// that wait are ranks from now on. newcomers() says who that was.
  void take_in();
  /// The ranks that were taken in by this unit, the same on all.
  const std::vector<int>& newcomers() const noexcept { return newcomers_; }

  /// Throws what a call would throw if the work of all ranks was ended, and returns at once if not:
  /// for ranks that wait for each other by something else than this group.
  void poll();

  /// Ends the work of all ranks: their calls, pending and later ones, end with a CommError that
  /// carries the first reason. Where ranks are processes of a launcher, the launcher ends them with
  /// `code` (mpi/).
  void abort(std::string_view reason, ExitCode code = ExitCode::kDevice);

 protected:
  Group(int rank, int size, std::string engine);

  virtual std::vector<std::string> do_gather(std::string_view mine) = 0;
  virtual void do_broadcast(std::span<std::byte> bytes, int root) = 0;
  virtual void do_barrier() = 0;
  virtual void do_exchange(std::span<const Outgoing> out, std::span<const Incoming> in) = 0;
  virtual void do_finish() = 0;
  virtual void do_commit() {}  ///< of groups that cannot go on without a rank
  virtual bool do_regroup();
  virtual void do_leave_note(const std::string& /*name*/, const std::string& /*text*/) {}
  virtual std::string do_note(const std::string& name);
  virtual bool do_somebody_waits() { return false; }
  virtual void do_take_in() {}
  virtual void do_poll() = 0;
  virtual void do_abort(std::string_view reason, ExitCode code) = 0;

  /// Sets the number of this rank after regroup().
  void set_place(int rank, int size, std::int64_t generation);
  void set_goes_on() { goes_on_ = true; }
  void set_outside(bool outside) { outside_ = outside; }
  void set_newcomers(std::vector<int> ranks) { newcomers_ = std::move(ranks); }

 private:
  friend void together(Group& group, const std::function<void()>& work);

  int rank_;
  int size_;
  const int first_size_;
  std::int64_t generation_ = 0;
  bool goes_on_ = false;
  bool in_unit_ = false;
  bool outside_ = false;
  std::vector<int> newcomers_;
  std::string engine_;
};

/// A unit: work() of all ranks, again by those that are left where one is lost meanwhile, until all
/// have done it. So work() can be done again, and what it leaves behind does not depend on how
/// often it was. A unit in a unit is a part of that one. No more than work() where the group cannot
/// go on without a rank.
void together(Group& group, const std::function<void()>& work);

/// Runs work() as this rank and finishes the group. What work() throws aborts the group, with its
/// exit code where it is an Error, and is thrown on.
void run_rank(Group& group, const std::function<void()>& work);

}  // namespace segfuse::comm
