#pragma once
// Logical time. Every piece of work that is enqueued on a stream is one tick of that stream.

#include <compare>
#include <cstddef>
#include <cstdint>

namespace segfuse::runtime {

using Tick = std::uint64_t;

/// Streams that may exist at one time in a process, over all devices.
inline constexpr int kMaxStreams = 64;

/// A stream by number. Numbers are dense and used again after a stream is destroyed; the generation
/// tells its users apart.
struct StreamId {
  std::uint32_t index = kMaxStreams;
  std::uint32_t generation = 0;

  bool valid() const { return index < kMaxStreams; }
  auto operator<=>(const StreamId&) const = default;
};

/// The work on a stream up to a tick: stream index in the upper 16 bits, tick in the lower 48.
class StreamTick {
 public:
  StreamTick() = default;
  StreamTick(std::uint32_t stream, Tick tick)
      : packed_(static_cast<std::uint64_t>(stream) << kTickBits | tick) {}
  std::uint32_t stream() const { return static_cast<std::uint32_t>(packed_ >> kTickBits); }
  Tick tick() const { return packed_ & ((Tick{1} << kTickBits) - 1); }
  /// Ticks begin with 1: nothing has happened at 0.
  bool happened() const { return tick() != 0; }
  auto operator<=>(const StreamTick&) const = default;

 private:
  static constexpr int kTickBits = 48;
  std::uint64_t packed_ = 0;
};

}  // namespace segfuse::runtime
