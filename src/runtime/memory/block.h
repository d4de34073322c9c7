#pragma once
// A range of device addresses and what is known of it. Blocks tile the reservation of their arena.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <thread>

#include "runtime/frontier.h"
#include "runtime/tick.h"

namespace segfuse::runtime {

class Device;
class Heap;

/// For a few instructions at a time; never held over a device call.
class SpinLock {
 public:
  void lock() noexcept {
    for (int tries = 0; held_.exchange(true, std::memory_order_acquire); ++tries)
      if (tries > 64) std::this_thread::yield();
  }
  void unlock() noexcept { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

enum class BlockState : std::uint8_t {
  kUnmapped,  ///< addresses without memory
  kChanging,  ///< being mapped or unmapped; nobody's
  kFree,      ///< in the arena's indices
  kCached,    ///< free, in the magazine of stream `home`
  kLive,      ///< some Buffer holds it
};

/// Changed under the heap's lock or, between live and cached, a magazine's; looked at by neighbours
/// under the heap's.
class BlockStateCell {
 public:
  BlockStateCell& operator=(BlockState state) noexcept {
    state_.store(state, std::memory_order_relaxed);
    return *this;
  }
  operator BlockState() const noexcept { return state_.load(std::memory_order_relaxed); }

 private:
  std::atomic<BlockState> state_{BlockState::kUnmapped};
};

/// Threads that hold neighbouring blocks must not share a cache line.
struct alignas(128) Block {
  std::byte* address = nullptr;
  std::size_t bytes = 0;
  Block* before = nullptr;  ///< neighbour by address, null at the end of the reservation
  Block* after = nullptr;
  Heap* heap = nullptr;  ///< null: somebody else's memory, and the block is a ForeignBlock
  BlockStateCell state;
  std::uint8_t arena = 0;

  // Live or cached.
  std::uint8_t size_class = 0;  ///< kClasses: too large for one
  std::uint32_t home = 0;       ///< index of the stream it was handed out for
  std::atomic<std::uint32_t> references{0};
  std::size_t requested = 0;
  std::uint64_t serial = 0;  ///< of the hand-out; 0 unless history is kept
  std::string_view label;
  Block* next_cached = nullptr;

  /// Last uses that the present bytes may still have, of former holders as well: what touches
  /// the block next has to be ordered after them. Entries implied by another entry are left out.
  Frontier uses;
  StreamTick write;    ///< the last write since the hand-out
  SpinLock uses_lock;  ///< of uses and write while the block is live
};

/// Memory that somebody else holds. The block goes with its last handle.
struct ForeignBlock : Block {
  Device* device = nullptr;
  std::shared_ptr<void> owner;  ///< what keeps the memory; let go with the block
};

}  // namespace segfuse::runtime
