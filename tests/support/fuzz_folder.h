#pragma once
// Where targets that read files by their names have them.

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace segfuse::fuzz {

/// A directory of this process, removed at its end. It is in memory if the system has a place for
/// that: on a disk, ext4 flushes a file that is written anew, and that took minutes.
class Folder {
 public:
  Folder() {
    const std::filesystem::path memory = "/dev/shm";
    const std::string name = "fuzz-" + std::to_string(getpid());
    path_ = memory / name;
    std::error_code failed;
    if (access(memory.c_str(), W_OK) != 0 || !std::filesystem::create_directory(path_, failed)) {
      path_ = std::filesystem::temp_directory_path() / name;
      std::filesystem::create_directories(path_);
    }
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// Writes a file of that name and returns its path.
  std::filesystem::path write(const char* name, const std::uint8_t* data, std::size_t size) const {
    std::filesystem::path path = path_ / name;
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    return path;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace segfuse::fuzz
