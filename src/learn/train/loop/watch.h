#pragma once
// What the ranks of a training do, sent to each other once a second: a rank that goes is named by
// the others with the place that it had reached, and `segfuse doctor ranks` shows all of them.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include "comm/meet/state.h"
#include "segfuse/error.h"

namespace segfuse::comm {
class Group;
namespace meet {
class Meeting;
struct MeetingOptions;
}  // namespace meet
}  // namespace segfuse::comm

namespace segfuse::learn {

/// A rank that stays in one place for `timeout` seconds while others wait for it is a failure; 0:
/// it may stay forever. All ranks have to have the same version of segfuse.
void set_limits(comm::meet::MeetingOptions& options, double timeout);

/// A meeting of ranks that find each other by what they say in the group, which outlives it and is
/// aborted by what the meeting notices. CommError where they do not meet.
std::shared_ptr<comm::meet::Meeting> meet_over(comm::Group& group, double timeout);

class RankWatch {
 public:
  explicit RankWatch(std::shared_ptr<comm::meet::Meeting> meeting);
  ~RankWatch();

  void report(comm::meet::Phase phase, std::int64_t step, std::int64_t shard = -1);
  /// Rank 0 writes to `folder` where it can be asked.
  void publish(const std::filesystem::path& folder);
  /// The work is done; returns when that of all ranks is.
  void leave();
  /// This rank ends all others: it says why, and ends with that code. `own_fault`: it would end
  /// again if it were started again.
  void end_all(std::string_view why, ExitCode code, bool own_fault) noexcept;
  /// The exit code where it is for another rank to say what ended all: for the one that failed, or
  /// for the first of the others where one was lost.
  std::optional<ExitCode> code_of_other() const;

 private:
  std::shared_ptr<comm::meet::Meeting> meeting_;
};

}  // namespace segfuse::learn
