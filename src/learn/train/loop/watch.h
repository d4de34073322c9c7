#pragma once
// What the ranks of a training do, told to each other once a second: a rank that goes is named by
// the others with the place that it had reached, and `segfuse doctor ranks` shows all of them.

#include <cstdint>
#include <filesystem>
#include <memory>

#include "comm/meet/state.h"

namespace segfuse::comm {
class Group;
}

namespace segfuse::learn {

class RankWatch {
 public:
  /// Ranks find each other by what they say in the group, which outlives this. Rank 0 writes to
  /// `folder` where it can be asked. A rank that stays in one place for `timeout` seconds while
  /// others wait for it is a failure; 0: it may stay for ever. CommError where they do not meet.
  RankWatch(comm::Group& group, const std::filesystem::path& folder, double timeout);
  ~RankWatch();

  void report(comm::meet::Phase phase, std::int64_t step, std::int64_t shard = -1);
  /// The work is done; returns when that of all ranks is.
  void leave();
  /// This rank ends all others, and has said why.
  void end_all() noexcept;

 private:
  struct Meeting;
  std::unique_ptr<Meeting> meeting_;
};

}  // namespace segfuse::learn
