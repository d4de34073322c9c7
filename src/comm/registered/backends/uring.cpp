#include "comm/registered/backends/uring.h"

#include <fmt/core.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/mutex.h"
#include "comm/registered/child.h"
#include "segfuse/error.h"

namespace segfuse::comm {
namespace {

constexpr std::size_t kLargest = std::size_t{1} << 30;  ///< the kernel's limit for one buffer
constexpr unsigned kSlots = 1024;
constexpr unsigned kEntries = 8;

int setup(io_uring_params& parameters) {
  return static_cast<int>(syscall(SYS_io_uring_setup, kEntries, &parameters));
}
int enter(int ring, unsigned submit, unsigned wait) {
  return static_cast<int>(
      syscall(SYS_io_uring_enter, ring, submit, wait, IORING_ENTER_GETEVENTS, nullptr, 0));
}
int change(int ring, unsigned what, const void* argument, std::size_t count) {
  return static_cast<int>(
      syscall(SYS_io_uring_register, ring, what, argument, static_cast<unsigned>(count)));
}

unsigned& word(void* base, unsigned offset) {
  return *reinterpret_cast<unsigned*>(static_cast<char*>(base) + offset);
}

}  // namespace

/// The kernel's object and our view of its queues. Pins keep it.
struct UringBackend::Ring {
  Ring() {
    file = setup(parameters);
    if (file < 0)
      throw DeviceError(
          fmt::format("io_uring: the kernel refuses: {}; it is older than 5.19, or a sandbox or "
                      "kernel.io_uring_disabled forbids it",
                      std::strerror(errno)));
    io_uring_rsrc_register table{};
    table.nr = kSlots;
    table.flags = IORING_RSRC_REGISTER_SPARSE;
    try {
      if (change(file, IORING_REGISTER_BUFFERS2, &table, sizeof table) != 0)
        throw DeviceError(fmt::format(
            "io_uring: no table of buffers: {}; Linux 5.19 or later has it", std::strerror(errno)));
      map_queues();
    } catch (...) {
      close();
      throw;
    }
    for (unsigned slot = kSlots; slot-- > 0;) idle.push_back(slot);
  }
  ~Ring() {
    if (!in_forked_child()) close();
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  void map_queues() {
    if ((parameters.features & IORING_FEAT_SINGLE_MMAP) == 0)
      throw DeviceError("io_uring: the kernel is too old; Linux 5.19 or later is needed");
    queue_bytes = std::max<std::size_t>(
        parameters.sq_off.array + parameters.sq_entries * sizeof(unsigned),
        parameters.cq_off.cqes + parameters.cq_entries * sizeof(io_uring_cqe));
    queue = map(queue_bytes, IORING_OFF_SQ_RING);
    entries = static_cast<io_uring_sqe*>(
        map(parameters.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
  }
  void* map(std::size_t bytes, off_t what) const {
    void* memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, what);
    if (memory == MAP_FAILED)
      throw DeviceError(
          fmt::format("io_uring: its queues cannot be mapped: {}", std::strerror(errno)));
    return memory;
  }
  void close() noexcept {
    if (queue != nullptr) munmap(queue, queue_bytes);
    if (entries != nullptr) munmap(entries, parameters.sq_entries * sizeof(io_uring_sqe));
    ::close(file);
  }

  /// Puts a buffer into a slot, or with null takes it out. The errno, or 0.
  int set(unsigned slot, void* address, std::size_t bytes) const noexcept {
    iovec vector{address, bytes};
    io_uring_rsrc_update2 update{};
    update.offset = slot;
    update.data = reinterpret_cast<std::uintptr_t>(&vector);
    update.nr = 1;
    const int done = change(file, IORING_REGISTER_BUFFERS_UPDATE, &update, sizeof update);
    return done == 1 ? 0 : done < 0 ? errno : EINVAL;
  }

  /// One operation from its submission to its end; what the kernel answered.
  int run(const io_uring_sqe& operation) {
    const MutexLock lock(mutex);
    unsigned& tail = word(queue, parameters.sq_off.tail);
    const unsigned mask = word(queue, parameters.sq_off.ring_mask);
    const unsigned index = tail & mask;
    entries[index] = operation;
    (&word(queue, parameters.sq_off.array))[index] = index;
    std::atomic_ref(tail).store(tail + 1, std::memory_order_release);
    std::atomic_ref<unsigned> head(word(queue, parameters.cq_off.head));
    const std::atomic_ref<unsigned> end(word(queue, parameters.cq_off.tail));
    for (unsigned submit = 1; end.load(std::memory_order_acquire) == head.load();) {
      const int done = enter(file, submit, 1);
      if (done < 0 && errno != EINTR) return -errno;
      if (done > 0) submit = 0;
    }
    const auto* completions = reinterpret_cast<const io_uring_cqe*>(
        static_cast<const char*>(queue) + parameters.cq_off.cqes);
    const unsigned at = head.load() & word(queue, parameters.cq_off.ring_mask);
    const int result = completions[at].res;
    head.store(head.load() + 1, std::memory_order_release);
    return result;
  }

  io_uring_params parameters{};
  int file = -1;
  void* queue = nullptr;
  std::size_t queue_bytes = 0;
  io_uring_sqe* entries = nullptr;
  Mutex mutex;
  std::vector<unsigned> idle SEGFUSE_GUARDED_BY(mutex);  ///< slots
};

namespace {

class UringPin final : public Pin {
 public:
  UringPin(std::shared_ptr<UringBackend::Ring> ring, std::span<std::byte> pages)
      : ring_(std::move(ring)), pages_(pages) {
    slots_.reserve((pages.size() + kLargest - 1) / kLargest);
    for (std::size_t at = 0; at < pages.size(); at += kLargest) {
      const int failure = add(pages.subspan(at, std::min(kLargest, pages.size() - at)));
      if (failure == 0) continue;
      drop();
      throw DeviceError(fmt::format(
          "io_uring: {} bytes cannot be pinned: {}; see the limit on locked memory (ulimit -l) and "
          "that of the control group",
          pages.size(),
          failure == ENOSPC ? "all places for buffers are taken" : std::strerror(failure)));
    }
  }
  ~UringPin() override {
    if (!in_forked_child()) drop();
  }
  std::uint64_t key() const override { return slots_[0]; }
  /// The slot of an address, and how far its piece goes.
  unsigned slot_of(std::size_t offset) const { return slots_[offset / kLargest]; }
  std::size_t left_in_piece(std::size_t offset) const { return kLargest - offset % kLargest; }
  const UringBackend::Ring* ring() const { return ring_.get(); }
  std::span<std::byte> pages() const { return pages_; }

 private:
  int add(std::span<std::byte> piece) {
    const MutexLock lock(ring_->mutex);
    if (ring_->idle.empty()) return ENOSPC;
    const unsigned slot = ring_->idle.back();
    if (const int failure = ring_->set(slot, piece.data(), piece.size()); failure != 0)
      return failure;
    ring_->idle.pop_back();
    slots_.push_back(slot);
    return 0;
  }
  void drop() noexcept {
    const MutexLock lock(ring_->mutex);
    for (const unsigned slot : slots_) {
      ring_->set(slot, nullptr, 0);
      ring_->idle.push_back(slot);  // it had the room when the slot was taken from it
    }
  }

  std::shared_ptr<UringBackend::Ring> ring_;
  std::span<std::byte> pages_;
  std::vector<unsigned> slots_;
};

}  // namespace

UringBackend::UringBackend() {
  refuse_in_child("UringBackend");
  ring_ = std::make_shared<Ring>();
}
UringBackend::~UringBackend() = default;

std::unique_ptr<Pin> UringBackend::pin(std::span<std::byte> pages) {
  return std::make_unique<UringPin>(ring_, pages);
}

namespace {

/// Where a range of a registration begins in its pin.
std::size_t start_of(const Registration& registration, std::size_t offset, std::size_t bytes) {
  refuse_in_child("UringBackend");
  if (offset > registration.bytes() || bytes > registration.bytes() - offset)
    throw UsageError(fmt::format("io_uring: {} bytes at offset {} of a registration of {}", bytes,
                                 offset, registration.bytes()));
  return static_cast<std::size_t>(registration.address() - registration.slab().data()) + offset;
}

}  // namespace

std::size_t UringBackend::read(int file, std::uint64_t place, const Registration& registration,
                               std::size_t offset, std::size_t bytes) {
  const std::size_t start = start_of(registration, offset, bytes);
  return transfer(false, file, place, registration.pin(), start, bytes);
}

std::size_t UringBackend::write(int file, std::uint64_t place, const Registration& registration,
                                std::size_t offset, std::size_t bytes) {
  const std::size_t start = start_of(registration, offset, bytes);
  return transfer(true, file, place, registration.pin(), start, bytes);
}

std::size_t UringBackend::read(int file, std::uint64_t place, const Pin& pin, std::size_t offset,
                               std::size_t bytes) {
  return transfer(false, file, place, pin, offset, bytes);
}

std::size_t UringBackend::write(int file, std::uint64_t place, const Pin& pin, std::size_t offset,
                                std::size_t bytes) {
  return transfer(true, file, place, pin, offset, bytes);
}

std::size_t UringBackend::transfer(bool write, int file, std::uint64_t place, const Pin& by,
                                   std::size_t start, std::size_t bytes) {
  refuse_in_child("UringBackend");
  const auto* pin = dynamic_cast<const UringPin*>(&by);
  if (pin == nullptr || pin->ring() != ring_.get())
    throw UsageError("io_uring: the memory is registered with another back end");
  const std::span<std::byte> pages = pin->pages();
  if (start > pages.size() || bytes > pages.size() - start)
    throw UsageError(
        fmt::format("io_uring: {} bytes at offset {} of a pin of {}", bytes, start, pages.size()));
  std::size_t moved = 0;
  while (moved < bytes) {
    const std::size_t at = start + moved;
    io_uring_sqe operation{};
    operation.opcode = write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED;
    operation.fd = file;
    operation.off = place + moved;
    operation.addr = reinterpret_cast<std::uintptr_t>(pages.data() + at);
    operation.len = static_cast<unsigned>(std::min(bytes - moved, pin->left_in_piece(at)));
    operation.buf_index = static_cast<std::uint16_t>(pin->slot_of(at));
    const int result = ring_->run(operation);
    if (result == -EINTR || result == -EAGAIN) continue;
    if (result < 0)
      throw DeviceError(fmt::format("io_uring: {} failed: {}", write ? "writing" : "reading",
                                    std::strerror(-result)));
    if (result == 0) break;
    moved += static_cast<std::size_t>(result);
  }
  return moved;
}

std::shared_ptr<Backend> make_uring_backend() { return std::make_shared<UringBackend>(); }

}  // namespace segfuse::comm
