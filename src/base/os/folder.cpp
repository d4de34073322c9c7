#include "base/os/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/random.h>

#include <cerrno>
#include <memory>
#include <new>
#include <set>
#include <string_view>
#include <utility>

#include "base/mutex.h"

namespace segfuse {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = ".segfuse-";
constexpr std::string_view kSuffix = ".partial";

[[noreturn]] void folder_failed(const fs::path& path, std::string_view action) {
  throw FileError(path, action, errno);
}

bool is_partial(std::string_view name) {
  if (name.size() != kPrefix.size() + 16 + kSuffix.size() || !name.starts_with(kPrefix) ||
      !name.ends_with(kSuffix))
    return false;
  return name.substr(kPrefix.size(), 16).find_first_not_of("0123456789abcdef") ==
         std::string_view::npos;
}

std::string partial_name() {
  std::string name(kPrefix);
  for (const char c : random_bytes(8)) name += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return name += kSuffix;
}

std::string path_of(const Descriptor& file) { return fmt::format("/proc/self/fd/{}", file.get()); }

bool lock_at_once(int descriptor) {
  while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0)
    if (errno != EINTR) return false;
  return true;
}

/// A new file in the folder: without a name where the file system has such files, else under a
/// name that nobody can guess. It is locked as long as it has such a name, so that a process
/// that clears up knows that its writer lives.
class NewFile {
 public:
  NewFile(int folder, const fs::path& shown) : folder_(folder) {
    if (open_unnamed() || open_named()) return;
    folder_failed(shown, "create");
  }
  ~NewFile() {
    if (!name_.empty()) ::unlinkat(folder_, name_.c_str(), 0);
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  int descriptor() const noexcept { return file_.get(); }

  /// Gives it the name `target` if nothing has that name. False: see errno.
  bool publish_new(const std::string& target) {
    return name_.empty() ? link_as(target)
                         : ::linkat(folder_, name_.c_str(), folder_, target.c_str(), 0) == 0;
  }

  /// Gives it the name `target`, in place of whatever has it. False: see errno.
  bool publish(const std::string& target) {
    if (name_.empty()) {
      // The first file of this name needs no other one on its way.
      if (link_as(target)) return true;
      if (errno != EEXIST) return false;
      lock_at_once(file_.get());
      std::string name = partial_name();
      if (!link_as(name)) return false;
      name_ = std::move(name);
    }
    if (::renameat(folder_, name_.c_str(), folder_, target.c_str()) != 0) return false;
    name_.clear();
    return true;
  }

 private:
  bool open_unnamed() {
    file_ = Descriptor(::openat(folder_, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666));
    // Without /proc it could not be given its name.
    return file_.get() >= 0 && ::access(path_of(file_).c_str(), F_OK) == 0;
  }

  bool open_named() {
    for (int attempt = 0; attempt < 100; ++attempt) {
      std::string name = partial_name();
      constexpr int kNew = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
      file_ = Descriptor(::openat(folder_, name.c_str(), kNew, 0666));
      if (file_.get() < 0 && errno == EEXIST) continue;
      if (file_.get() < 0) return false;
      name_ = std::move(name);
      struct stat status{};
      // Somebody who clears up may have been quicker than our lock.
      if (!lock_at_once(file_.get()) && errno == EWOULDBLOCK) continue;
      if (::fstat(file_.get(), &status) == 0 && status.st_nlink > 0) return true;
    }
    return false;
  }

  bool link_as(const std::string& name) {
    return ::linkat(AT_FDCWD, path_of(file_).c_str(), folder_, name.c_str(), AT_SYMLINK_FOLLOW) ==
           0;
  }

  int folder_;
  Descriptor file_;
  std::string name_;  ///< empty: it has none
};

/// True for the first call of this process for a folder.
bool first_time(const fs::path& folder) {
  static Mutex mutex;
  static auto& seen = *new std::set<fs::path>();
  const MutexLock lock(mutex);
  return seen.insert(folder).second;
}

}  // namespace

Folder::Folder(fs::path path)
    : path_(std::move(path)),
      descriptor_(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_.get() < 0) folder_failed(path_, "open");
}

struct stat Folder::status() const {
  struct stat status{};
  if (::fstat(descriptor_.get(), &status) != 0) folder_failed(path_, "open");
  return status;
}

Descriptor Folder::open(const std::string& name) const {
  // Not blocking: opening a pipe without a writer would wait forever.
  Descriptor file(
      ::openat(descriptor_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status{};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) folder_failed(path_ / name, "open");
  if (!S_ISREG(status.st_mode)) throw FileError(path_ / name, "read (not a regular file)", EINVAL);
  return file;
}

std::vector<std::string> Folder::names() const {
  // A descriptor of its own, since the position in the folder belongs to it.
  Descriptor again(::openat(descriptor_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(again.get()), ::closedir);
  if (listing == nullptr && errno == ENOMEM) throw std::bad_alloc();
  if (listing == nullptr) folder_failed(path_, "list");
  again.release();
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(listing.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return names;
}

bool Folder::remove(const std::string& name) const noexcept {
  return ::unlinkat(descriptor_.get(), name.c_str(), 0) == 0;
}

void Folder::replace(const std::string& name, const fs::path& shown,
                     const std::function<void(FileWriter&)>& writer, Sync sync,
                     std::optional<mode_t> mode) const {
  remove_leftovers();
  NewFile file(descriptor_.get(), shown);
  FileWriter out(file.descriptor(), shown);
  writer(out);
  out.flush();
  struct stat former{};
  if (!mode && ::fstatat(descriptor_.get(), name.c_str(), &former, AT_SYMLINK_NOFOLLOW) == 0 &&
      S_ISREG(former.st_mode))
    mode = former.st_mode & 07777U;
  if (mode && ::fchmod(file.descriptor(), *mode) != 0) folder_failed(shown, "set the mode of");
  if (sync == Sync::kYes && ::fsync(file.descriptor()) != 0) folder_failed(shown, "sync");
  if (!file.publish(name)) folder_failed(shown, "rename the new file onto");
  // Some file systems cannot sync a directory and say EINVAL; the rename is then as safe as it
  // gets.
  if (sync == Sync::kYes && ::fsync(descriptor_.get()) != 0 && errno != EINVAL)
    folder_failed(path_, "sync");
}

bool Folder::create_secret(const std::string& name, std::string_view content) const {
  NewFile file(descriptor_.get(), path_ / name);
  if (::fchmod(file.descriptor(), 0600) != 0) folder_failed(path_ / name, "set the mode of");
  FileWriter out(file.descriptor(), path_ / name);
  out.write(content);
  out.flush();
  if (::fsync(file.descriptor()) != 0) folder_failed(path_ / name, "sync");
  if (file.publish_new(name)) return true;
  if (errno != EEXIST) folder_failed(path_ / name, "create");
  return false;
}

void Folder::append_line(const std::string& name, std::string_view line) const {
  constexpr int kAppend = O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const Descriptor file(::openat(descriptor_.get(), name.c_str(), kAppend, 0666));
  struct stat status{};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) folder_failed(path_ / name, "open");
  if (!S_ISREG(status.st_mode)) throw FileError(path_ / name, "write (not a regular file)", EINVAL);
  // A full disk may have cut the line before.
  char last = '\n';
  if (status.st_size > 0 && ::pread(file.get(), &last, 1, status.st_size - 1) < 0)
    folder_failed(path_ / name, "read");
  const std::string text = fmt::format("{}{}\n", last == '\n' ? "" : "\n", line);
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    folder_failed(path_ / name, "write");
  if (::fsync(file.get()) != 0) folder_failed(path_ / name, "sync");
}

/// What writers left that were killed between giving a file its first name and its last, or whose
/// file system has no files without a name. Once for each folder: a folder may be large.
void Folder::remove_leftovers() const {
  if (!first_time(path_)) return;
  for (const std::string& name : names()) {
    if (!is_partial(name)) continue;
    const Descriptor file(
        ::openat(descriptor_.get(), name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status{};
    if (file.get() >= 0 && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) &&
        status.st_uid == ::geteuid() && lock_at_once(file.get()))
      remove(name);
  }
}

bool only_ours(const struct stat& status) noexcept {
  return status.st_uid == ::geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  for (std::size_t filled = 0; filled < count;) {
    const ssize_t got = ::getrandom(bytes.data() + filled, count - filled, 0);
    if (got < 0 && errno != EINTR)
      throw InternalError(fmt::format("no random numbers: errno {}", errno));
    if (got > 0) filled += static_cast<std::size_t>(got);
  }
  return bytes;
}

}  // namespace segfuse
