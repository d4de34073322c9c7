#include "learn/train/files/former_run.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <vector>

#include "learn/train/commands/config.h"
#include "learn/train/files/run_folder.h"

namespace segfuse::learn {
namespace {

namespace fs = std::filesystem;

/// A run's folder, then those of its comparison in the order of their trainings.
std::vector<fs::path> folders_of(const fs::path& out) {
  std::vector<fs::path> folders{out};
  for (const HeadKind head : {HeadKind::kSemiMarkov, HeadKind::kLinearChain, HeadKind::kSoftmax})
    folders.push_back(out / name_of(head));
  return folders;
}

/// A file that replaces another one is a new one while that is still there.
std::string mark_of(const fs::path& file) {
  struct stat status{};
  if (::lstat(file.c_str(), &status) != 0) return "";
  return fmt::format("{}:{}:{}:{}.{}", status.st_dev, status.st_ino, status.st_size,
                     status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
}

}  // namespace

FormerRun::FormerRun(const fs::path& out)
    : out_((fs::absolute(out) / "").lexically_normal().parent_path()) {
  for (const fs::path& folder : folders_of(out))
    for (const fs::path& file : {checkpoint_in(folder), model_in(folder)})
      files_.insert(mark_of(file));
  files_.erase("");
}

std::string FormerRun::text() const {
  std::string text = "files";
  for (const std::string& mark : files_) text += " " + mark;
  return text + "\n" + out_.string();
}

std::optional<FormerRun> FormerRun::of_environment() {
  const char* const text = std::getenv(kVariable);
  if (text == nullptr || *text == '\0') return {};
  FormerRun former;
  const std::string_view both(text);
  const std::size_t end = std::min(both.find('\n'), both.size());
  std::istringstream words{std::string(both.substr(0, end))};
  for (std::string mark; words >> mark;) former.files_.insert(mark);
  former.out_ = both.substr(std::min(end + 1, both.size()));
  return former;
}

bool FormerRun::has_folder_of(const fs::path& file) const {
  const fs::path folder = fs::absolute(file).lexically_normal().parent_path();
  return std::ranges::count(folders_of(out_), folder) > 0;
}

bool FormerRun::holds(const fs::path& file) const { return files_.contains(mark_of(file)); }

std::optional<fs::path> FormerRun::newest_checkpoint(const fs::path& out, const FormerRun& former,
                                                     bool resume) {
  std::optional<fs::path> newest;
  std::error_code unknown;
  for (const fs::path& folder : folders_of(out)) {
    const fs::path file = checkpoint_in(folder);
    if (fs::exists(file, unknown) && (resume || !former.holds(file))) newest = file;
  }
  return newest;
}

bool written_before_restart(const fs::path& file) {
  const std::optional<FormerRun> former = FormerRun::of_environment();
  std::error_code unknown;
  return former && former->has_folder_of(file) && fs::exists(file, unknown) && !former->holds(file);
}

}  // namespace segfuse::learn
