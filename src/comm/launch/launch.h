#pragma once
// Starts the ranks of a job on this machine, watches them, and leaves nothing behind.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace segfuse::comm::launch {

struct LaunchResult;

struct LaunchRequest {
  std::vector<std::string> arguments;  ///< the program of each rank
  std::int64_t count = 1;
  /// More variables of each rank (CUDA_VISIBLE_DEVICES); may be empty.
  std::function<std::map<std::string, std::string>(std::int64_t rank)> variables;
  /// When one rank has failed, the others get so long to end by themselves.
  std::chrono::milliseconds grace{5000};
  /// SIGINT, SIGTERM, SIGHUP and SIGUSR1 go on to the ranks. Where this process was started with
  /// one of them ignored, it stays so.
  bool pass_signals = true;
  /// Rank 0 has this process's own stdout and stderr: it is the one that speaks.
  bool first_speaks = false;
  /// A line of a rank; empty: "rank 3 | line" to stdout or stderr. One call at a time.
  std::function<void(std::int64_t rank, bool error, std::string_view line)> line;
  /// Called when a rank runs.
  std::function<void(std::int64_t rank, int pid)> started;
  /// While so many ranks are left, rank 0 among them, one that ends is no failure: the others may
  /// go on (MeetingOptions::min_ranks), and where they do not they end by themselves, rank 0 too.
  /// Its end is the job's. 0: the first that fails ends all.
  std::int64_t min_ranks = 0;
  /// Called with LaunchResult::sentence of a rank that ended badly while enough were left.
  std::function<void(std::int64_t rank, std::string_view sentence)> lost;
  /// Asked before that, where the rank was lost as in LaunchResult::may_be_mended and nobody wanted
  /// the end; true starts another process in its place, which may join the others. `variables` is
  /// asked again. Empty: never.
  std::function<bool(std::int64_t rank, std::string_view sentence)> replace;
  /// Asked when all have ended and a new start may mend it (LaunchResult::may_be_mended); true
  /// starts them all again, and `variables` is asked again. Not asked once a signal wanted the end.
  /// Empty: never.
  std::function<bool(const LaunchResult& result)> again;
};

struct LaunchResult {
  /// 0 when all ranks ended with it; that of the first that failed; 130 where a signal that was
  /// passed on ended it, 4 for another, or where it could not be started.
  int exit_code = 0;
  std::int64_t rank = -1;  ///< which failed first; -1: none
  bool by_itself = false;  ///< it ended with that code, and has said why
  /// "rank 3 (pid 812) was killed by signal 9 (Killed) in step 1201, backward, 0.2 s after its last
  /// report"; empty when nothing failed.
  std::string sentence;
  /// A rank was ended by a signal that nobody passed on and that is no wish to end, or had to be
  /// killed; or it ended with 4 and did not say that its own device or memory was the cause.
  bool may_be_mended = false;
  /// It was to be asked whether the ranks are started again, and a signal wanted the end.
  bool interrupted = false;
};

/// Returns when every rank has ended. Each gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
/// MASTER_ADDR, MASTER_PORT and a key (comm/meet/job.h), and none of the variables by which another
/// launcher numbered this process. A rank that learns through the meeting that another failed
/// names that one to us, so that an echo is not taken for the cause. One at a time in a process
/// that passes signals. Throws UsageError for a wrong request, CommError where the system refuses.
LaunchResult launch(const LaunchRequest& request);

}  // namespace segfuse::comm::launch
