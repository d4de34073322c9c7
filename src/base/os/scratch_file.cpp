#include "base/os/scratch_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/os/folder.h"

namespace segfuse {

ScratchFile::ScratchFile(std::filesystem::path folder) : folder_(std::move(folder)) {
  file_ = Descriptor(::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file_.get() >= 0) return;
  // A file system that knows no files without names.
  std::string name = (folder_ / ".segfuse-XXXXXX").string();
  file_ = Descriptor(::mkostemp(name.data(), O_CLOEXEC));
  if (file_.get() < 0) throw FileError(folder_, "hold a scratch file in", errno);
  ::unlink(name.c_str());
}

void ScratchFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done =
        ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(size_));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) throw FileError(folder_, "write a scratch file in", errno);
    size_ += static_cast<std::uint64_t>(done);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

void ScratchFile::append_file(const std::filesystem::path& path) {
  read_in_parts(path, [&](std::span<const std::byte> part) { append(part); });
}

void ScratchFile::read(std::uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t done =
        ::pread(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) throw FileError(folder_, "read a scratch file in", errno);
    offset += static_cast<std::uint64_t>(done);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

std::filesystem::path ScratchFile::path() const {
  return std::filesystem::path("/proc/self/fd") / std::to_string(file_.get());
}

}  // namespace segfuse
