#pragma once
// io_uring: the kernel pins the memory for as long as it is registered, by the same path as RDMA
// does, and reads and writes files through the pins.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "segfuse/registered.h"

namespace segfuse::comm {

class UringBackend final : public Backend {
 public:
  /// Throws DeviceError with the reason when the kernel has no io_uring for us.
  UringBackend();
  ~UringBackend() override;

  std::string_view name() const override { return "io_uring"; }
  std::unique_ptr<Pin> pin(std::span<std::byte> pages) override;
  bool counted() const override { return true; }

  /// Reads from `file`, at `place`, into the registered bytes from `offset` on; or writes them.
  /// Through the pin: the memory need not be mapped any more. Returns the bytes moved, fewer only
  /// at the end of the file. The registration is of this back end. Throws DeviceError.
  std::size_t read(int file, std::uint64_t place, const Registration& registration,
                   std::size_t offset, std::size_t bytes);
  std::size_t write(int file, std::uint64_t place, const Registration& registration,
                    std::size_t offset, std::size_t bytes);

  /// The same by a pin of this back end; `offset` is from where the pin begins.
  std::size_t read(int file, std::uint64_t place, const Pin& pin, std::size_t offset,
                   std::size_t bytes);
  std::size_t write(int file, std::uint64_t place, const Pin& pin, std::size_t offset,
                    std::size_t bytes);

  struct Ring;

 private:
  std::size_t transfer(bool write, int file, std::uint64_t place, const Pin& by, std::size_t start,
                       std::size_t bytes);
  std::shared_ptr<Ring> ring_;
};

}  // namespace segfuse::comm
