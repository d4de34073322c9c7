#pragma once
// Files: read whole, mapped read-only, or replaced in one step.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "segfuse/error.h"

namespace segfuse {

/// kDevice where the machine fails (a full disk, no more descriptors), whatever file it is; kData
/// where it is about one file.
ExitCode exit_code_of(int error_number);

/// The operating system refused something to do with a file. The message names the path and the
/// reason; error_number() is the errno (ENOENT, ENOSPC, ...), exit_code() that of this number.
class FileError : public DataError {
 public:
  FileError(const std::filesystem::path& path, std::string_view action, int error_number);
  int error_number() const noexcept { return error_number_; }

 private:
  int error_number_;
};

/// DataError where so many bytes of that file do not fit into what is left of memory: once they are
/// read the process may be killed.
void check_room(std::uint64_t bytes, const std::filesystem::path& path);

/// The content of a regular file, or of a pipe (/dev/stdin) until its writer closes it. Throws
/// FileError; DataError for a pipe that nobody writes to.
std::string read_file(const std::filesystem::path& path);

/// Whether there is something of that name. A link that leads nowhere, or in a circle, is nothing.
/// FileError where the system does not say (a folder that may not be entered).
bool path_exists(const std::filesystem::path& path);
/// Makes a directory and those above it, where they are missing. Throws FileError.
void make_directories(const std::filesystem::path& path);
/// Whether it is a folder, or leads to one.
bool path_is_directory(const std::filesystem::path& path);
/// The entries of a folder, by name.
std::vector<std::filesystem::path> list_directory(const std::filesystem::path& path);

/// A regular file mapped read-only; the bytes live as long as the object. An empty file gives an
/// empty span. Cutting the file short while it is mapped makes reads fault, as the system does.
class FileMap {
 public:
  /// Throws FileError when the file cannot be opened or is not a regular file.
  explicit FileMap(const std::filesystem::path& path);
  ~FileMap();
  FileMap(FileMap&& other) noexcept;
  FileMap& operator=(FileMap&& other) noexcept;
  FileMap(const FileMap&) = delete;
  FileMap& operator=(const FileMap&) = delete;

  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  std::string_view text() const noexcept { return {reinterpret_cast<const char*>(data_), size_}; }
  std::size_t size() const noexcept { return size_; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// kNo: the file waits for no disk. When the machine (not the process) goes down at once it may
/// have any content; for what is checked when it is read and can be made again.
enum class Sync { kYes, kNo };

/// Buffered sequential output to the file that write_file_atomically is building.
class FileWriter {
 public:
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  /// Appends; throws FileError (a full disk: ENOSPC).
  void write(std::string_view text);
  void write(std::span<const std::byte> bytes);
  /// Bytes appended so far.
  std::uint64_t size() const noexcept { return written_ + buffer_.size(); }

 private:
  friend class Folder;
  FileWriter(int descriptor, std::filesystem::path path);
  void flush();
  void write_through(const char* data, std::size_t size);

  int descriptor_;
  std::filesystem::path path_;
  std::string buffer_;
  std::uint64_t written_ = 0;
};

/// Replaces `path` by what `writer` writes, in one step that survives a crash: the content goes to
/// a new file in the same directory, is synced, renamed onto `path`, and the directory is synced.
/// A reader sees the former content or the new one, never a part. When anything throws, `path` is
/// as it was and nothing is left beside it; of writers of one path the last one wins. The new file
/// has no name until it is whole; where the file system knows no such files it is called
/// `.segfuse-RANDOM.partial`, and what killed writers left of these goes with the next write of
/// another process in that directory.
/// A symbolic link of this user's is followed; a path that exists and is not a regular file is
/// refused.
void write_file_atomically(const std::filesystem::path& path,
                           const std::function<void(FileWriter&)>& writer, Sync sync = Sync::kYes);
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

}  // namespace segfuse
