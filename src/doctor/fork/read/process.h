#pragma once
// A live process, read through /proc. Nothing here stops it or changes anything in it.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory/headroom.h"

namespace segfuse::doctor {

/// Memory of another address space.
class MemoryReader {
 public:
  virtual ~MemoryReader() = default;
  /// Copies from `address` on; returns how many bytes could be read, from the front.
  virtual std::size_t read(std::uint64_t address, std::span<std::byte> into) const = 0;
};

/// Holds the process's folder open, so that a later process of the same number is never taken for
/// it. Everything throws UsageError, with the reason, when the process cannot be read any more.
class Process final : public MemoryReader {
 public:
  /// UsageError: no such process, a zombie, a kernel thread, not ours to read.
  explicit Process(int pid);
  ~Process() override;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  int pid() const { return pid_; }
  /// A file of the process's folder, like "smaps".
  std::string read_text(const std::string& name) const;
  /// The same; nothing if it is not there or may not be read.
  [[nodiscard]] std::optional<std::string> try_read(const std::string& name) const;
  [[nodiscard]] std::optional<std::string> link(const std::string& name) const;
  std::vector<std::string> list(const std::string& name) const;

  bool memory_is_readable() const { return memory_ >= 0; }
  std::size_t read(std::uint64_t address, std::span<std::byte> into) const override;

 private:
  [[noreturn]] void refuse(const std::string& name, int error) const;
  int pid_;
  int folder_ = -1;
  int memory_ = -1;
};

/// Eight bytes at a time out of blocks of 64 KiB.
class MemoryWindow {
 public:
  explicit MemoryWindow(const MemoryReader& reader) : reader_(&reader) {}
  /// False where there is no memory.
  bool word(std::uint64_t address, std::uint64_t& value);

 private:
  const MemoryReader* reader_;
  std::vector<std::byte> block_;
  std::uint64_t begin_ = 1;
  std::size_t filled_ = 0;
};

}  // namespace segfuse::doctor
