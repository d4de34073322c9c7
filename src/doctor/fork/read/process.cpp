#include "doctor/fork/read/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "segfuse/error.h"

namespace segfuse::doctor {

namespace {

constexpr std::size_t kMaxText = std::size_t{1} << 30;

/// The whole of an open file; false with errno set.
bool read_all(int descriptor, std::string& text) {
  text.clear();
  std::size_t filled = 0;
  while (true) {
    if (text.size() - filled < (1U << 16))
      text.resize(std::max<std::size_t>(text.size() * 2, 1U << 17));
    const ssize_t count = ::read(descriptor, text.data() + filled, text.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    filled += static_cast<std::size_t>(count);
    if (count == 0 || filled > kMaxText) break;
  }
  text.resize(filled);
  return true;
}

bool read_at(int folder, const std::string& path, std::string& text) {
  const int descriptor = ::openat(folder, path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool read = read_all(descriptor, text);
  const int error = errno;
  ::close(descriptor);
  errno = error;
  return read;
}

}  // namespace

Process::Process(int pid) : pid_(pid) {
  if (pid <= 0) throw UsageError(fmt::format("{} is not a process id; expected 1 or more", pid));
  const std::string path = "/proc/" + std::to_string(pid);
  folder_ = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_ < 0) {
    if (errno == ENOENT)
      throw UsageError(fmt::format(
          "there is no process {}; it may have ended, or run in another container", pid));
    refuse(".", errno);
  }
  memory_ = ::openat(folder_, "mem", O_RDONLY | O_CLOEXEC);
  const std::string status = read_text("status");
  if (status.find("\nState:\tZ") != std::string::npos)
    throw UsageError(
        fmt::format("process {} is a zombie: it has ended and has no memory any more", pid));
  if (status.find("\nVmSize:") == std::string::npos)
    throw UsageError(fmt::format(
        "process {} has no memory of its own: it is a kernel thread, or just ending", pid));
}

Process::~Process() {
  if (memory_ >= 0) ::close(memory_);
  if (folder_ >= 0) ::close(folder_);
}

void Process::refuse(const std::string& name, int error) const {
  if (error == ESRCH || error == ENOENT)
    throw UsageError(fmt::format("process {} ended while it was being read", pid_));
  const std::string why = std::generic_category().message(error);
  if (error == EACCES || error == EPERM)
    throw UsageError(fmt::format(
        "/proc/{}/{} may not be read: {}; run this as the process's owner or as root, with "
        "CAP_SYS_PTRACE in a container",
        pid_, name, why));
  throw UsageError(fmt::format("/proc/{}/{} cannot be read: {}", pid_, name, why));
}

std::string Process::read_text(const std::string& name) const {
  std::string text;
  if (!read_at(folder_, name, text)) refuse(name, errno);
  return text;
}

std::optional<std::string> Process::try_read(const std::string& name) const {
  std::string text;
  if (!read_at(folder_, name, text)) return std::nullopt;
  return text;
}

std::optional<std::string> Process::link(const std::string& name) const {
  char target[4096];
  const ssize_t length = ::readlinkat(folder_, name.c_str(), target, sizeof target);
  if (length < 0) return std::nullopt;
  return std::string(target, static_cast<std::size_t>(length));
}

std::vector<std::string> Process::list(const std::string& name) const {
  std::vector<std::string> names;
  const int descriptor = ::openat(folder_, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return names;
  DIR* directory = ::fdopendir(descriptor);
  if (directory == nullptr) {
    ::close(descriptor);
    return names;
  }
  while (const dirent* entry = ::readdir(directory))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  ::closedir(directory);
  return names;
}

std::size_t Process::read(std::uint64_t address, std::span<std::byte> into) const {
  if (memory_ < 0 || address > (std::uint64_t{1} << 62)) return 0;
  std::size_t filled = 0;
  while (filled < into.size()) {
    const ssize_t count = ::pread(memory_, into.data() + filled, into.size() - filled,
                                  static_cast<off_t>(address + filled));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    filled += static_cast<std::size_t>(count);
  }
  return filled;
}

bool MemoryWindow::word(std::uint64_t address, std::uint64_t& value) {
  constexpr std::uint64_t kBlock = 1U << 16;
  if (address + sizeof value < address) return false;
  if (address < begin_ || address + sizeof value > begin_ + filled_) {
    // From the page on: a block must not fail for what lies before it.
    begin_ = address & ~std::uint64_t{4095};
    block_.resize(kBlock);
    filled_ = reader_->read(begin_, block_);
    if (address + sizeof value > begin_ + filled_) return false;
  }
  std::memcpy(&value, block_.data() + (address - begin_), sizeof value);
  return true;
}

}  // namespace segfuse::doctor
