#pragma once
// A file without a name for data that does not fit into memory.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "base/os/descriptor.h"

namespace segfuse {

/// Bytes that are appended and read again. The file goes with the object, or with the process.
class ScratchFile {
 public:
  /// In that folder. Throws FileError.
  explicit ScratchFile(std::filesystem::path folder);

  /// Throws FileError (a full disk: ENOSPC).
  void append(std::span<const std::byte> bytes) { write(size_, bytes); }
  /// The same at some place: what lies before it and was never written is zero.
  void write(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Appends the content that read_file() would return, without holding it in memory.
  void append_file(const std::filesystem::path& path);
  /// Bytes [offset, offset + bytes.size()), which have been appended. Throws FileError.
  void read(std::uint64_t offset, std::span<std::byte> bytes) const;
  /// Bytes [offset, offset + bytes) as memory to read from; those behind size() once they are
  /// written. It outlives the object. `offset` is a multiple of kMapUnit. Throws FileError.
  std::shared_ptr<std::byte> map(std::uint64_t offset, std::size_t bytes) const;
  static constexpr std::uint64_t kMapUnit = std::uint64_t{1} << 16;  ///< of every page size
  std::uint64_t size() const noexcept { return size_; }
  /// Where this process can open it once more, to read.
  std::filesystem::path path() const;

 private:
  std::filesystem::path folder_;
  Descriptor file_;
  std::uint64_t size_ = 0;
};

}  // namespace segfuse
