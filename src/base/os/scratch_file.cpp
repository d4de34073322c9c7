#include "base/os/scratch_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
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

void ScratchFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done =
        ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) throw FileError(folder_, "write a scratch file in", errno);
    offset += static_cast<std::uint64_t>(done);
    size_ = std::max(size_, offset);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

std::shared_ptr<std::byte> ScratchFile::map(std::uint64_t offset, std::size_t bytes) const {
  void* const address =
      ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file_.get(), static_cast<off_t>(offset));
  if (address == MAP_FAILED) throw FileError(folder_, "map a scratch file in", errno);
  return {static_cast<std::byte*>(address), [bytes](std::byte* at) { ::munmap(at, bytes); }};
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
