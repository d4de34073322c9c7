#include "learn/train/files/run_folder.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <vector>

#include "base/console/log.h"
#include "base/os/file.h"
#include "base/os/folder.h"
#include "base/text.h"
#include "learn/train/files/former_run.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLock = ".segfuse-training";

/// Makes a folder and those above it; at its end those that it made go again if they are empty.
class MadeFolders {
 public:
  explicit MadeFolders(const fs::path& path) {
    std::error_code error;
    for (fs::path at = (fs::absolute(path).lexically_normal() / "").parent_path();
         !fs::exists(at, error) && at != at.parent_path(); at = at.parent_path())
      made_.push_back(at);
    make_directories(path);
  }
  ~MadeFolders() {
    for (const fs::path& folder : made_)
      if (::rmdir(folder.c_str()) != 0) return;
  }
  MadeFolders(const MadeFolders&) = delete;
  MadeFolders& operator=(const MadeFolders&) = delete;

 private:
  std::vector<fs::path> made_;  // the deepest first
};

[[noreturn]] void refuse(const fs::path& folder, int lock) {
  std::string process;
  try {
    process = trim(read_rest(lock, folder / kLock));
  } catch (const FileError&) {
    // Its number is a help, no more.
  }
  throw UsageError(fmt::format(
      "{}: another training writes to this directory{}; wait until it ends, or name another "
      "directory",
      folder.string(), parse_int(process) ? fmt::format(" (process {})", process) : ""));
}

/// The lock's file, locked. Its holder removes it at its end, so what was opened may have no name
/// any more: then again.
Descriptor lock_of(const Folder& folder) {
  while (true) {
    constexpr int kOpen = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    Descriptor lock(::openat(folder.descriptor(), kLock, kOpen, 0666));
    if (lock.get() < 0) throw FileError(folder.path() / kLock, "open", errno);
    int status = ::flock(lock.get(), LOCK_EX | LOCK_NB);
    while (status != 0 && errno == EINTR) status = ::flock(lock.get(), LOCK_EX | LOCK_NB);
    if (status != 0 && errno == EWOULDBLOCK) refuse(folder.path(), lock.get());
    if (status != 0) {
      log(LogLevel::kWarning,
          "{}: this file system has no locks ({}); make sure that no other training writes there",
          folder.path().string(), std::generic_category().message(errno));
      return lock;
    }
    struct stat ours{}, named{};
    if (::fstat(lock.get(), &ours) == 0 &&
        ::fstatat(folder.descriptor(), kLock, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
        ours.st_ino == named.st_ino && ours.st_dev == named.st_dev)
      return lock;
  }
}

}  // namespace

struct RunFolder::Lock {
  explicit Lock(const fs::path& path) : made(path), folder(path), file(lock_of(folder)) {
    const std::string process = fmt::format("{}\n", ::getpid());
    // Whether it can be written or not: it is only for messages.
    if (::ftruncate(file.get(), 0) == 0)
      static_cast<void>(!::write(file.get(), process.data(), process.size()));
  }
  ~Lock() { folder.remove(kLock); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  MadeFolders made;
  Folder folder;
  Descriptor file;
};

RunFolder::RunFolder(const fs::path& path) : path_(path), lock_(std::make_unique<Lock>(path)) {}
RunFolder::~RunFolder() = default;

bool RunFolder::continues(bool resume) const {
  return resume || written_before_restart(checkpoint());
}

void RunFolder::check_free(bool resume, bool overwrite) const {
  if (overwrite) return;
  std::error_code error;
  const bool started = fs::exists(checkpoint(), error);
  const bool finished = fs::exists(model(), error);
  const std::string folder = path_.string();
  if (resume && finished && !started)
    throw UsageError(
        fmt::format("{}: this directory has a model but no checkpoint to resume from; name another "
                    "directory, or pass --overwrite to replace the model",
                    folder));
  if (resume || (!started && !finished)) return;
  throw UsageError(
      fmt::format("{}: this directory has a {} run; pass --resume to continue it or --overwrite to "
                  "replace it, or name another directory",
                  folder, finished ? "finished" : "started"));
}

void RunFolder::keep_model() const {
  std::error_code error;
  if (!fs::exists(model(), error) || written_before_restart(model())) return;
  const FileMap former(model());
  write_file_atomically(previous_model(), former.text());
}

bool may_continue(bool resume) { return resume || FormerRun::of_environment().has_value(); }

bool holds_run(const fs::path& folder) {
  std::error_code error;
  return fs::exists(checkpoint_in(folder), error) || fs::exists(model_in(folder), error);
}

}  // namespace segfuse::learn
