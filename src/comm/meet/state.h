#pragma once
// The activity of a rank, as reported by its heartbeats.

#include <cstdint>
#include <string>
#include <string_view>

namespace segfuse::comm::meet {

enum class Phase : std::uint8_t {
  kStarting,
  kReadingData,
  kForward,
  kBackward,
  kExchange,
  kUpdate,
  kScoring,
  kSaving
};
inline constexpr int kPhases = 8;
/// "reading data".
std::string_view name_of(Phase phase) noexcept;

/// The most bytes of State::doing.
inline constexpr std::size_t kLongestDoing = 200;

struct State {
  std::int64_t generation = 0;  ///< of the group of ranks
  std::int64_t step = 0;
  std::int64_t shard = -1;   ///< -1: none
  std::int64_t bucket = -1;  ///< -1: none
  Phase phase = Phase::kStarting;
  double seconds = 0;            ///< in this place
  std::int64_t free_bytes = -1;  ///< memory of the machine or device; -1: not known
  std::string doing{};           ///< more of it, "recording 'x.flac'"; 200 bytes at most

  /// Whether nothing has moved but time and memory.
  bool same_place(const State& other) const noexcept;
};

/// "step 1201, backward", "step 1201, exchange of bucket 2".
std::string place_of(const State& state);
/// "reading data (recording 'x.flac')", "in the exchange of bucket 2".
std::string work_of(const State& state);

}  // namespace segfuse::comm::meet
