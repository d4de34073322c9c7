#pragma once
// A folder that stays the one that was opened, whatever happens to its name.

#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/os/descriptor.h"
#include "base/os/file.h"

namespace segfuse {

/// Its files are reached by its descriptor and their names (no slashes). None of the functions
/// follows a link that has a file's name.
class Folder {
 public:
  /// Throws FileError.
  explicit Folder(std::filesystem::path path);

  const std::filesystem::path& path() const noexcept { return path_; }
  int descriptor() const noexcept { return descriptor_.get(); }
  /// The status of the folder itself.
  struct stat status() const;

  /// A regular file opened for reading. Throws FileError (ELOOP for a link).
  Descriptor open(const std::string& name) const;
  /// The names of everything in it but "." and "..", in the order of the system.
  std::vector<std::string> names() const;
  /// Whether there was such a file.
  bool remove(const std::string& name) const noexcept;

  /// Adds a line in one step, so that lines of several writers do not mix; its text is on the disk
  /// when this returns. The file is made when it is missing. Throws FileError.
  void append_line(const std::string& name, std::string_view line) const;

  /// Replaces the file by what `writer` writes, in one step that survives a crash, as
  /// write_file_atomically() says. `shown` is the path in messages. Without a mode the new file has
  /// that of the former one, or the usual one.
  void replace(const std::string& name, const std::filesystem::path& shown,
               const std::function<void(FileWriter&)>& writer, Sync sync,
               std::optional<mode_t> mode = std::nullopt) const;
  /// Makes a file that only this user can read, whole at once; false when there is one already.
  bool create_secret(const std::string& name, std::string_view content) const;

 private:
  void remove_leftovers() const;

  std::filesystem::path path_;
  Descriptor descriptor_;
};

/// The rest of an open file. Throws FileError.
std::string read_rest(int descriptor, const std::filesystem::path& shown);
/// The content of read_file(), some bytes at a time.
void read_in_parts(const std::filesystem::path& path,
                   const std::function<void(std::span<const std::byte>)>& take);

/// Whether the file, or folder, belongs to this user and nobody else can write to it.
bool only_ours(const struct stat& status) noexcept;

/// Bytes that nobody can guess.
std::string random_bytes(std::size_t count);

}  // namespace segfuse
