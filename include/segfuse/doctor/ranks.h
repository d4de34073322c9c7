#pragma once
// segfuse doctor ranks: where the ranks of a running job are, and for whom they wait.

#include <cstdint>
#include <string>
#include <vector>

namespace segfuse {

struct RankReport {
  std::int64_t rank = 0;
  bool here = false;  ///< false: it has not come to the meeting, and nothing else is known
  bool done = false;  ///< its work is over
  bool awaited = false;
  bool lost = false;  ///< the others go on without it; what follows is the last of it
  std::string host{};
  std::int64_t pid = 0;
  std::int64_t step = 0;
  std::string work{};            ///< "reading data (recording 'x.flac')"
  double seconds = 0;            ///< it has been doing that
  double silent = 0;             ///< seconds since its last heartbeat
  std::int64_t free_bytes = -1;  ///< -1: not known
};

struct RanksReport {
  std::string where{};          ///< "node1:29500"
  std::string failure{};        ///< what ends the job; empty: nothing
  std::int64_t generation = 0;  ///< how many ranks were lost
  std::vector<RankReport> ranks{};
};

/// Queries rank 0. `target` is the folder of a run, the file ranks.json in it, or HOST:PORT; for
/// the latter the key is in the environment variable SEGFUSE_JOB_KEY. Throws UsageError for a
/// target that is neither or a key that is missing, DataError for a file that cannot be read,
/// CommError when there is no answer.
RanksReport examine_ranks(const std::string& target);

std::string ranks_report_text(const RanksReport& report);
std::string ranks_report_json(const RanksReport& report);

}  // namespace segfuse
