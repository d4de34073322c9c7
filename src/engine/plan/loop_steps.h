#pragma once
// The order of a scan's steps, and where its carries are in each: for the plans of all targets.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace segfuse::engine {

/// Carries alternate between two buffers; the first step reads what the scan was given, and the
/// last one writes its results.
template <class Place>
struct LoopSteps {
  std::int64_t length = 0;
  bool reverse = false;
  std::vector<Place> first;                   ///< by carry
  std::vector<std::array<Place, 2>> between;  ///< by carry
  std::vector<Place> last;                    ///< by carry

  /// The element of sequences and stacked results that belongs to step i.
  std::size_t element(std::int64_t i) const {
    return static_cast<std::size_t>(reverse ? length - 1 - i : i);
  }
  const Place& read(std::size_t carry, std::int64_t i) const {
    return i == 0 ? first[carry] : between[carry][static_cast<std::size_t>(1 - i % 2)];
  }
  const Place& written(std::size_t carry, std::int64_t i) const {
    return i + 1 == length ? last[carry] : between[carry][static_cast<std::size_t>(i % 2)];
  }
};

}  // namespace segfuse::engine
