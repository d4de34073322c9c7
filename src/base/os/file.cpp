#include "base/os/file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <new>
#include <system_error>
#include <utility>

#include "base/memory/headroom.h"
#include "base/os/descriptor.h"
#include "base/os/folder.h"

namespace segfuse {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBufferBytes = std::size_t{1} << 16;

std::string advice(int error_number) {
  switch (error_number) {
    case ENOSPC: return "; free some space on that disk and run again";
    case EDQUOT: return "; the disk quota is used up";
    case EROFS: return "; that file system is read-only";
    case EFBIG: return "; the file size limit is reached (see ulimit -f)";
    default: return "";
  }
}

[[noreturn]] void fail(const fs::path& path, std::string_view action) {
  throw FileError(path, action, errno);
}

enum class Pipes { kRefuse, kAccept };

/// A regular file, or a pipe, opened for reading, and its size.
Descriptor open_for_reading(const fs::path& path, std::size_t& size, Pipes pipes) {
  // Not blocking: opening a pipe without a writer would wait forever.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) fail(path, "open");
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) fail(path, "read");
  if (S_ISDIR(status.st_mode)) throw FileError(path, "read", EISDIR);
  if (!S_ISREG(status.st_mode) && !(pipes == Pipes::kAccept && S_ISFIFO(status.st_mode)))
    throw FileError(path, "read (not a regular file)", EINVAL);
  size = static_cast<std::size_t>(status.st_size);
  return file;
}

enum class Writer {
  kWrites,
  kGone,  ///< it has closed the pipe
  kNone   ///< nobody opens it
};

/// Waits until a pipe has something to read or its writer has closed it. Nothing was read so far
/// and nobody writes: somebody may be about to open it, but not for long.
Writer wait_for_writer(int descriptor) {
  constexpr int kMilliseconds = 5000;
  pollfd question{descriptor, POLLIN, 0};
  int answer = ::poll(&question, 1, kMilliseconds);
  while (answer < 0 && errno == EINTR) answer = ::poll(&question, 1, kMilliseconds);
  if (answer <= 0) return Writer::kNone;
  return (question.revents & POLLIN) != 0 ? Writer::kWrites : Writer::kGone;
}

/// What to do after a read that gave no bytes, of a pipe that does not block.
bool try_again(const fs::path& path, int descriptor, ssize_t count, bool empty) {
  if (count < 0 && errno == EINTR) return true;
  if (count < 0 && errno == EAGAIN) {  // there is a writer
    pollfd question{descriptor, POLLIN, 0};
    return ::poll(&question, 1, -1) >= 0 || errno == EINTR;
  }
  if (count < 0) fail(path, "read");
  struct stat status{};
  const bool pipe = ::fstat(descriptor, &status) == 0 && S_ISFIFO(status.st_mode);
  if (!empty || !pipe) return false;
  const Writer writer = wait_for_writer(descriptor);
  if (writer == Writer::kNone)
    throw DataError(
        fmt::format("cannot read '{}': it is a pipe, and no process writes to it", path.string()));
  return writer == Writer::kWrites;
}

/// Where to write: a link is followed that this user, or root, made; that of anybody else could
/// lead to any file of ours.
fs::path target_of(const fs::path& path) {
  if (!path.has_filename())
    throw UsageError(fmt::format("cannot write '{}': not a file name", path.string()));
  struct stat link{};
  const bool is_link = ::lstat(path.c_str(), &link) == 0 && S_ISLNK(link.st_mode);
  if (is_link && link.st_uid != ::geteuid() && link.st_uid != 0)
    throw DataError(fmt::format(
        "cannot write '{}': it is a link that another user made; write to the file that it names",
        path.string()));
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status))
    throw UsageError(
        fmt::format("cannot write '{}': it exists and is not a regular file", path.string()));
  if (!is_link) return path;
  // A link that points nowhere is followed as well, to where its file would be.
  const fs::path real = fs::weakly_canonical(path, error);
  return error ? path : real;
}

fs::path directory_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

Folder folder_of(const fs::path& target, const fs::path& shown) {
  try {
    return Folder(directory_of(target));
  } catch (const FileError& error) {
    throw FileError(shown, "write", error.error_number());
  }
}

}  // namespace

ExitCode exit_code_of(int error_number) {
  constexpr int kOfMachine[] = {ENOSPC, EDQUOT, EROFS, EFBIG, EIO, EMFILE, ENFILE, ENOMEM};
  return std::ranges::find(kOfMachine, error_number) != std::end(kOfMachine) ? ExitCode::kDevice
                                                                             : ExitCode::kData;
}

FileError::FileError(const fs::path& path, std::string_view action, int error_number)
    : DataError(exit_code_of(error_number),
                fmt::format("cannot {} '{}': {}{}", action, path.string(),
                            std::generic_category().message(error_number), advice(error_number))),
      error_number_(error_number) {}

void check_room(std::uint64_t bytes, const fs::path& path) {
  constexpr std::uint64_t kFew = std::uint64_t{1} << 28;  // not worth a look at what is left
  constexpr double kGib = 1 << 30;
  if (bytes < kFew) return;
  const std::optional<Headroom> left = memory_headroom();
  if (!left || bytes <= left->bytes) return;
  throw DataError(fmt::format(
      "cannot read '{}': it has {:.1f} GiB, but only {:.1f} GiB of memory are left of {}",
      path.string(), static_cast<double>(bytes) / kGib, static_cast<double>(left->bytes) / kGib,
      left->of));
}

std::string read_file(const fs::path& path) {
  std::size_t size = 0;
  return read_rest(open_for_reading(path, size, Pipes::kAccept).get(), path);
}

void read_in_parts(const fs::path& path,
                   const std::function<void(std::span<const std::byte>)>& take) {
  std::size_t size = 0;
  const Descriptor file = open_for_reading(path, size, Pipes::kAccept);
  std::vector<std::byte> part(std::size_t{1} << 16);
  for (bool empty = true;;) {
    const ssize_t count = ::read(file.get(), part.data(), part.size());
    if (count <= 0 && !try_again(path, file.get(), count, empty)) return;
    if (count <= 0) continue;
    empty = false;
    take(std::span(part).first(static_cast<std::size_t>(count)));
  }
}

std::string read_rest(int descriptor, const fs::path& shown) {
  struct stat status{};
  if (::fstat(descriptor, &status) != 0) fail(shown, "read");
  check_room(static_cast<std::uint64_t>(status.st_size), shown);
  std::string content(static_cast<std::size_t>(status.st_size) + 1, '\0');
  std::size_t filled = 0;
  // Files under /proc have size 0 and content, and a file may grow while it is read.
  while (true) {
    if (filled == content.size()) content.resize(filled + std::max(filled / 2, std::size_t{4096}));
    const ssize_t count = ::read(descriptor, content.data() + filled, content.size() - filled);
    if (count <= 0 && !try_again(shown, descriptor, count, filled == 0)) break;
    filled += count <= 0 ? 0 : static_cast<std::size_t>(count);
  }
  content.resize(filled);
  return content;
}

FileMap::FileMap(const fs::path& path) {
  std::size_t size = 0;
  const Descriptor file = open_for_reading(path, size, Pipes::kRefuse);
  if (size == 0) return;
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) fail(path, "map");
  data_ = static_cast<const std::byte*>(address);
  size_ = size;
}

FileMap::~FileMap() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

FileMap::FileMap(FileMap&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

FileMap& FileMap::operator=(FileMap&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

FileWriter::FileWriter(int descriptor, fs::path path)
    : descriptor_(descriptor), path_(std::move(path)) {
  buffer_.reserve(kBufferBytes);
}

void FileWriter::write(std::string_view text) {
  if (buffer_.size() + text.size() > kBufferBytes) flush();
  if (text.size() > kBufferBytes) return write_through(text.data(), text.size());
  buffer_ += text;
}

void FileWriter::write(std::span<const std::byte> bytes) {
  write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void FileWriter::flush() {
  write_through(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void FileWriter::write_through(const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t count = ::write(descriptor_, data, size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path_, "write");
    written_ += static_cast<std::uint64_t>(count);
    data += count;
    size -= static_cast<std::size_t>(count);
  }
}

void make_directories(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw FileError(path, "make the directory", error.value());
}

namespace {

/// Links in a circle lead nowhere, like those to files that do not exist: `not_found`.
fs::file_status status_of(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error == std::errc::too_many_symbolic_link_levels)
    return fs::file_status(fs::file_type::not_found);
  if (error && status.type() != fs::file_type::not_found)
    throw FileError(path, "look at", error.value());
  return status;
}

}  // namespace

bool path_exists(const fs::path& path) { return fs::exists(status_of(path)); }

bool path_is_directory(const fs::path& path) { return fs::is_directory(status_of(path)); }

std::vector<fs::path> list_directory(const fs::path& path) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error))
    entries.push_back(at->path());
  if (error == std::errc::not_enough_memory) throw std::bad_alloc();
  if (error) throw FileError(path, "list", error.value());
  std::sort(entries.begin(), entries.end());
  return entries;
}

void write_file_atomically(const fs::path& path, const std::function<void(FileWriter&)>& writer,
                           Sync sync) {
  const fs::path target = target_of(path);
  folder_of(target, path).replace(target.filename().string(), path, writer, sync);
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  write_file_atomically(path, [&](FileWriter& out) { out.write(content); });
}

}  // namespace segfuse
