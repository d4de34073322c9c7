#pragma once
// A job whose ranks are started again finds its own checkpoint in its folder, or that of a run
// which it replaces. Which files were there before the job is handed to the ranks.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>

namespace segfuse::learn {

class FormerRun {
 public:
  /// Looks at a run's folder and at those of its comparison.
  explicit FormerRun(const std::filesystem::path& out);

  /// The environment variable that tells ranks of a new start, and its value there; in the first
  /// start it is empty.
  static constexpr const char* kVariable = "SEGFUSE_STARTED_AGAIN";
  std::string text() const;
  /// Of this process; nothing where it is no rank that was started again.
  static std::optional<FormerRun> of_environment();

  /// Whether the file was there, with this content, before the job.
  bool holds(const std::filesystem::path& file) const;
  /// Whether the file lies in the run's folder, or in one of its comparison.
  bool has_folder_of(const std::filesystem::path& file) const;
  /// Where a job goes on that left its folder so: its newest checkpoint. `resume`: those of the
  /// former run are its own. Nothing: from the beginning.
  static std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& out,
                                                                const FormerRun& former,
                                                                bool resume);

 private:
  FormerRun() = default;

  std::filesystem::path out_;
  std::set<std::string> files_;  ///< by what tells one from another: place, size, time
};

/// Whether this process is a rank that was started again, and its job has written the file.
bool written_before_restart(const std::filesystem::path& file);

}  // namespace segfuse::learn
