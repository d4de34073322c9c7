#include "comm/launch/launch.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <system_error>
#include <thread>

#include "base/mutex.h"
#include "base/os/ranks.h"
#include "comm/launch/oom.h"
#include "comm/launch/signals.h"
#include "comm/meet/board.h"
#include "comm/meet/job.h"
#include "comm/meet/roster.h"
#include "comm/meet/wire/socket.h"
#include "segfuse/error.h"
#include "segfuse/spawn.h"

namespace segfuse::comm::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kHost = "127.0.0.1";
/// Between asking a rank to end and ending it.
constexpr std::chrono::milliseconds kLastGrace{1000};

void print_line(std::int64_t rank, bool error, std::string_view line) {
  const std::string text = fmt::format("rank {} | {}\n", rank, line);
  std::FILE* const stream = error ? stderr : stdout;
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

class Launch {
 public:
  /// Of the signals those count that `since` has not seen.
  Launch(const LaunchRequest& request, const PassedSignals::Cursor& since)
      : request_(request),
        board_(request.count),
        listening_(meet::listen_at(kHost, 0)),
        secret_(meet::new_secret()),
        kills_before_(oom_kills()),
        ranks_(static_cast<std::size_t>(request.count)) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw CommError(
          fmt::format("a pipe for the ranks: {}", std::generic_category().message(errno)));
    their_end_ = Descriptor(ends[0]);
    our_end_ = Descriptor(ends[1]);
    port_ = meet::port_of(listening_.get());
    to_prepare_ = request.count;
    for (Rank& rank : ranks_) rank.cursor = since;
  }

  LaunchResult run() {
    std::vector<std::thread> threads;
    try {
      for (std::int64_t rank = 0; rank < request_.count; ++rank)
        threads.emplace_back([this, rank] { run_rank(rank); });
    } catch (const std::system_error&) {
      note_failure(static_cast<std::int64_t>(threads.size()));
    }
    for (std::thread& thread : threads) thread.join();
    return result(static_cast<std::int64_t>(threads.size()));
  }

 private:
  /// A process in whose place another one was started.
  struct Former {
    spawn::Result result;
    std::string sentence;
  };
  struct Rank {
    spawn::Result result;
    int pid = -1;
    bool ended_by_us = false;
    Clock::time_point ended;
    PassedSignals::Cursor cursor{};
    bool lost = false;               ///< it ended, and the others may go on without it
    std::optional<Former> former{};  ///< none: it is the first process of this rank
  };
  Rank& at(std::int64_t rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  spawn::Request request_of(std::int64_t rank) {
    spawn::Request out{.arguments = request_.arguments, .environment = environment_of(rank)};
    out.passed = {{their_end_.get(), meet::kLauncherDescriptor},
                  {board_.descriptor(), meet::kBoardDescriptor}};
    if (rank == 0) out.passed.push_back({listening_.get(), meet::kListeningDescriptor});
    if (rank == 0 && request_.first_speaks) {
      out.out = spawn::Inherit{};
      out.err = spawn::Inherit{};
    } else {
      out.out = spawn::Lines{[this, rank](std::string_view line) { tell(rank, false, line); }};
      out.err = spawn::Lines{[this, rank](std::string_view line) { tell(rank, true, line); }};
    }
    out.end_group = true;
    out.grace = kLastGrace;
    out.stop = [this, rank] { return at(rank).ended_by_us = at(rank).ended_by_us || is_over(); };
    if (request_.pass_signals)
      out.signal = [this, rank] { return PassedSignals::next(at(rank).cursor); };
    out.started = [this, rank](int pid) {
      at(rank).pid = pid;
      started(rank, pid);
    };
    return out;
  }

  spawn::Environment environment_of(std::int64_t rank) const {
    spawn::Environment environment;
    for (const std::string& name : launcher_variables()) environment.change[name] = std::nullopt;
    if (request_.variables)
      for (const auto& [name, value] : request_.variables(rank)) environment.change[name] = value;
    const std::string count = std::to_string(request_.count);
    environment.change["RANK"] = std::to_string(rank);
    environment.change["WORLD_SIZE"] = count;
    environment.change["LOCAL_RANK"] = std::to_string(rank);
    environment.change["LOCAL_WORLD_SIZE"] = count;
    environment.change["MASTER_ADDR"] = kHost;
    environment.change["MASTER_PORT"] = std::to_string(port_);
    environment.change[meet::kKeyVariable] = secret_;
    environment.change[meet::kLauncherVariable] = std::to_string(::getpid());
    return environment;
  }

  void run_rank(std::int64_t rank) {
    while (run_process(rank)) continue;
  }

  /// Whether another process is to run in its place.
  bool run_process(std::int64_t rank) {
    spawn::Result result;
    try {
      const spawn::Request request = request_of(rank);
      result = spawn::run(request);
    } catch (const std::exception& error) {  // of a callback; the child is dead then
      result.failed = spawn::Stage::kWait;
      result.detail = error.what();
    }
    at(rank).ended = Clock::now();
    if (at(rank).pid < 0) started(rank, -1);
    at(rank).result = std::move(result);
    if (!at(rank).result.ok()) return note_failure(rank);
    note_end(rank);
    return false;
  }

  void started(std::int64_t rank, int pid) {
    const MutexLock lock(mutex_);
    // Only rank 0 shall have it: when that goes, nobody waits at a port that does not answer.
    if (!at(rank).former && --to_prepare_ == 0) listening_ = Descriptor();
    if (pid >= 0 && request_.started) request_.started(rank, pid);
  }

  void tell(std::int64_t rank, bool error, std::string_view line) {
    const MutexLock lock(mutex_);
    request_.line ? request_.line(rank, error, line) : print_line(rank, error, line);
  }

  /// No rank ends well before the work of all is done.
  void note_end(std::int64_t rank) {
    const MutexLock lock(mutex_);
    done_ = true;
    if (is_last(rank)) end_soon();
  }

  /// Its end is the job's: others may be left behind, and one that is stopped has no other end.
  bool is_last(std::int64_t rank) const { return rank == 0 && request_.min_ranks > 0; }

  void end_soon() SEGFUSE_REQUIRES(mutex_) {
    if (!limit_) limit_ = Clock::now() + request_.grace;
  }

  /// Whether that process came in place of another one and is none of the ranks yet: the others do
  /// not need it, so it neither ends them nor tells how they end.
  bool is_to_join(std::int64_t rank) const SEGFUSE_REQUIRES(mutex_) {
    if (!ranks_[static_cast<std::size_t>(rank)].former) return false;
    const auto entry = board_.read(rank);
    return !entry || (entry->state.generation == 0 && entry->state.step == 0);
  }

  /// Whether the others may go on without that rank: not where it had not begun, or has learnt that
  /// all end.
  bool is_spared(std::int64_t rank) SEGFUSE_REQUIRES(mutex_) {
    if (request_.min_ranks == 0 || rank == 0 || rank >= std::ssize(ranks_)) return false;
    at(rank).lost = true;
    if (is_to_join(rank)) return true;
    const auto entry = board_.read(rank);
    return entry && entry->cause == meet::Board::kNone &&
           request_.count - std::ranges::count(ranks_, true, &Rank::lost) >= request_.min_ranks;
  }

  /// Whether so many are left that the others do go on.
  bool are_enough() const SEGFUSE_REQUIRES(mutex_) {
    std::int64_t count = 0;
    for (std::int64_t rank = 0; rank < request_.count; ++rank)
      if (!ranks_[static_cast<std::size_t>(rank)].lost && !is_to_join(rank)) ++count;
    return count >= request_.min_ranks;
  }

  /// Starts another process in place of that rank, where one may help and is wanted.
  bool is_replaced(std::int64_t rank) SEGFUSE_REQUIRES(mutex_) {
    const auto entry = board_.read(rank);
    const bool learnt_of_end = entry && entry->cause != meet::Board::kNone;
    if (!request_.replace || done_ || learnt_of_end || !may_be_mended(at(rank), entry))
      return false;
    // The new process gets the signals that come from here on.
    const PassedSignals::Cursor seen = PassedSignals::now();
    if (request_.pass_signals && PassedSignals::end_was_asked()) return false;
    std::string sentence = sentence_of(rank, at(rank));
    if (!request_.replace(rank, sentence)) return false;
    board_.forget(rank);
    Rank next;
    next.cursor = seen;
    next.former = {std::move(at(rank).result), std::move(sentence)};
    at(rank) = std::move(next);
    return true;
  }

  /// Of one that is not replaced: not where all end, by a wish or because their work is done.
  bool is_loss(std::int64_t rank) SEGFUSE_REQUIRES(mutex_) {
    if (request_.pass_signals && PassedSignals::end_was_asked()) return false;
    if (is_to_join(rank)) {
      const auto entry = board_.read(rank);
      return !done_ && (!entry || entry->cause == meet::Board::kNone || entry->cause == rank);
    }
    // Where a rank is asked to end, all do so after the same step.
    return at(rank).result.exit_code != static_cast<int>(ExitCode::kInterrupted);
  }

  void tell_loss(std::int64_t rank) SEGFUSE_REQUIRES(mutex_) {
    if (request_.lost && is_loss(rank)) request_.lost(rank, sentence_of(rank, at(rank)));
  }

  /// Whether another process is to run in its place.
  bool note_failure(std::int64_t rank) {
    const MutexLock lock(mutex_);
    const bool ends = first_ >= 0 || limit_;
    if (is_last(rank)) end_soon();
    if (ends) {
      // The others may have worked on without it, and ended well before its end was noticed here.
      if (done_ && first_ < 0 && was_killed(at(rank)) && is_spared(rank)) tell_loss(rank);
      return false;
    }
    if (is_spared(rank)) {
      if (!are_enough()) return false;  // all end, and rank 0 says so
      if (is_replaced(rank)) return true;
      tell_loss(rank);
      return false;
    }
    first_ = rank;
    // After Ctrl-C ranks end one after another, each when its work is saved.
    const bool interrupted = rank < static_cast<std::int64_t>(ranks_.size()) &&
                             request_.pass_signals && PassedSignals::end_was_asked() &&
                             at(rank).result.exit_code == static_cast<int>(ExitCode::kInterrupted);
    if (!interrupted) end_soon();
    return false;
  }

  bool is_over() {
    const MutexLock lock(mutex_);
    return limit_ && Clock::now() >= *limit_;
  }

  /// The rank of which the first one to end learnt that it had failed; else that one.
  std::int64_t culprit() const SEGFUSE_REQUIRES(mutex_) {
    const auto entry = board_.read(first_);
    if (!entry || entry->cause < 0 || entry->cause >= request_.count) return first_;
    if (former_of(entry->cause) != nullptr) return entry->cause;
    const spawn::Result& blamed = ranks_[static_cast<std::size_t>(entry->cause)].result;
    return blamed.ok() ? first_ : entry->cause;
  }

  /// The process that the others mean by that rank where the one in its place has not joined; else
  /// null.
  const Former* former_of(std::int64_t rank) const SEGFUSE_REQUIRES(mutex_) {
    const Rank& now = ranks_[static_cast<std::size_t>(rank)];
    return is_to_join(rank) ? &*now.former : nullptr;
  }

  LaunchResult result(std::int64_t begun) {
    if (begun < request_.count)
      return {static_cast<int>(ExitCode::kDevice), begun, false,
              fmt::format("rank {} could not be started: this process may have no more threads",
                          begun)};
    const MutexLock lock(mutex_);
    if (first_ < 0) return {};
    const std::int64_t rank = culprit();
    const Rank& blamed = at(rank);
    const Former* const former = former_of(rank);
    const spawn::Result& end = former != nullptr ? former->result : blamed.result;
    LaunchResult out;
    out.rank = rank;
    out.by_itself = end.exit_code && *end.exit_code != 0;
    out.exit_code = out.by_itself ? *end.exit_code
                                  : static_cast<int>(was_interrupted(end) ? ExitCode::kInterrupted
                                                                          : ExitCode::kDevice);
    out.sentence = former != nullptr ? former->sentence : sentence_of(rank, blamed);
    // An error of a device may follow from the loss of another rank.
    out.may_be_mended = former != nullptr || may_be_mended(blamed, board_.read(rank)) ||
                        (!end.signal && std::ranges::any_of(ranks_, was_killed));
    return out;
  }

  static bool was_killed(const Rank& rank) {
    return !rank.ended_by_us && rank.result.signal && is_uninvited(*rank.result.signal);
  }

  /// Not what asks a program to end.
  static bool is_uninvited(int signal) {
    return signal != SIGINT && signal != SIGTERM && signal != SIGHUP;
  }

  /// Whether new ranks may come further than that one.
  static bool may_be_mended(const Rank& blamed, const std::optional<meet::Board::Entry>& entry) {
    if (blamed.ended_by_us) return true;
    if (blamed.result.signal) return is_uninvited(*blamed.result.signal);
    return blamed.result.exit_code == static_cast<int>(ExitCode::kDevice) &&
           !(entry && entry->own_fault);
  }

  /// By a signal that we passed on, before it had asked not to be.
  static bool was_interrupted(const spawn::Result& result) {
    return result.signal && PassedSignals::end_was_asked() &&
           std::ranges::find(PassedSignals::kSignals, *result.signal) !=
               PassedSignals::kSignals.end();
  }

  std::string sentence_of(std::int64_t rank, const Rank& blamed) const {
    const std::string name = request_.count == 1 ? "the process" : fmt::format("rank {}", rank);
    if (blamed.pid < 0) return fmt::format("{} {}", name, blamed.result.outcome());
    std::string how;
    if (blamed.result.exit_code)
      how = fmt::format("ended with {}", blamed.result.outcome());
    else if (blamed.ended_by_us)
      how = fmt::format("did not end within {} s after the failure and was killed",
                        std::chrono::duration<double>(request_.grace).count());
    else
      how = fmt::format("was {}", blamed.result.outcome());
    std::string text = fmt::format("{} (pid {}) {}", name, blamed.pid, how);
    if (const auto entry = board_.read(rank))
      text += fmt::format(" in {}, {} after its last report", meet::place_of(entry->state),
                          meet::text_of(blamed.ended - entry->written));
    const auto kills = oom_kills();
    if (blamed.result.signal && kills && kills_before_ && *kills > *kills_before_)
      text += fmt::format("; meanwhile the kernel killed {} here because memory ran out",
                          *kills - *kills_before_ == 1
                              ? "a process"
                              : fmt::format("{} processes", *kills - *kills_before_));
    return text;
  }

  const LaunchRequest& request_;
  meet::Board board_;
  Descriptor listening_;
  int port_ = 0;
  Descriptor their_end_;
  Descriptor our_end_;  ///< never written to: its end says to the ranks that we have ended
  const std::string secret_;
  std::optional<std::int64_t> kills_before_;
  std::vector<Rank> ranks_;
  Mutex mutex_;
  std::int64_t to_prepare_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  std::int64_t first_ SEGFUSE_GUARDED_BY(mutex_) = -1;
  bool done_ SEGFUSE_GUARDED_BY(mutex_) = false;  ///< the work of all ranks
  std::optional<Clock::time_point> limit_ SEGFUSE_GUARDED_BY(mutex_);
};

}  // namespace

LaunchResult launch(const LaunchRequest& request) {
  if (request.arguments.empty()) throw UsageError("no command was given for the ranks");
  if (request.count < 1)
    throw UsageError(fmt::format("{} ranks; expected 1 or more", request.count));
  std::optional<PassedSignals> signals;
  if (request.pass_signals) signals.emplace();
  PassedSignals::Cursor since{};
  for (;;) {
    LaunchResult result = Launch(request, since).run();
    if (!result.may_be_mended || !request.again) return result;
    // What comes later goes to the new ranks; what came before was the former ones'.
    since = PassedSignals::now();
    if (signals && PassedSignals::end_was_asked()) {
      result.exit_code = static_cast<int>(ExitCode::kInterrupted);
      result.interrupted = true;
      return result;
    }
    if (!request.again(result)) return result;
  }
}

}  // namespace segfuse::comm::launch
