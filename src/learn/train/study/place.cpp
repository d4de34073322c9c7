#include "learn/train/study/place.h"

#include <fmt/core.h>

#include <algorithm>
#include <system_error>

#include "base/os/file.h"
#include "base/os/ranks.h"
#include "learn/train/files/run_folder.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

namespace fs = std::filesystem;

/// Runs of another study would stand beside those of this one, and be taken for some of them.
void refuse_others(const fs::path& out, const StudyPlan& plan) {
  std::error_code error;
  for (auto at = fs::recursive_directory_iterator(out, error);
       !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    if (!at->is_directory(error)) continue;
    const auto is_there = [&](const StudyRun& run) { return out / run.name == at->path(); };
    if (std::ranges::any_of(plan.runs, is_there))
      at.disable_recursion_pending();
    else if (holds_run(at->path()))
      throw UsageError(
          fmt::format("{}: there is a run here that does not belong to this study; remove this "
                      "directory, or name another one with --out",
                      at->path().string()));
  }
}

}  // namespace

void check_place(const TrainOptions& training, const StudyPlan& plan) {
  const std::optional<Ranks> ranks = ranks_of_environment();
  if (ranks && ranks->count > 1)
    throw UsageError("several ranks share one training; start a study as one process");
  const fs::path& out = training.out;
  if (out.empty()) throw UsageError("no output directory was given; pass --out DIR");
  if (holds_run(out))
    throw UsageError(
        fmt::format("{}: this directory has a training; a study needs its own directory; name "
                    "another one with --out",
                    out.string()));
  refuse_others(out, plan);
  if (training.resume || training.overwrite) return;
  bool started = path_exists(out / kStudyFile);
  for (const StudyRun& run : plan.runs) started = started || holds_run(out / run.name);
  if (started)
    throw UsageError(
        fmt::format("{}: this directory has a study; pass --resume to continue it or --overwrite "
                    "to replace it, or name another directory",
                    out.string()));
}

}  // namespace segfuse::learn
