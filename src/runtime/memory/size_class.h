#pragma once
// Sizes that memory is handed out in.

#include <bit>
#include <cstddef>
#include <limits>

namespace segfuse::runtime {

/// Addresses and sizes are multiples of this.
inline constexpr std::size_t kAlignment = 256;
/// Up to here sizes are rounded to classes, and freed blocks wait in magazines.
inline constexpr std::size_t kSmallBytes = std::size_t{1} << 20;
/// Above, to multiples of this: at most one part in sixteen is lost.
inline constexpr std::size_t kLargeStep = std::size_t{64} << 10;
/// Classes: 1 .. 4 times the alignment, then four to each doubling.
inline constexpr std::size_t kClasses = 44;

/// The class of a size of 1 .. kSmallBytes.
constexpr std::size_t size_class(std::size_t bytes) {
  const std::size_t units = (bytes + kAlignment - 1) / kAlignment;
  if (units <= 4) return units - 1;
  // units - 1 in [4, 8) * 2^shift: four classes for each shift.
  const auto shift = static_cast<std::size_t>(std::bit_width(units - 1)) - 3;
  return 4 * shift + ((units - 1) >> shift);
}

/// The size of a class.
constexpr std::size_t class_bytes(std::size_t index) {
  if (index < 4) return (index + 1) * kAlignment;
  const std::size_t shift = index / 4 - 1;
  return (index % 4 + 5) * kAlignment << shift;
}

static_assert(size_class(kSmallBytes) == kClasses - 1 && class_bytes(kClasses - 1) == kSmallBytes);

/// The size handed out for a request; the largest value when there is no such size.
constexpr std::size_t rounded_bytes(std::size_t bytes) {
  if (bytes == 0) return kAlignment;
  if (bytes <= kSmallBytes) return class_bytes(size_class(bytes));
  if (bytes > std::numeric_limits<std::size_t>::max() / 2)
    return std::numeric_limits<std::size_t>::max();
  return (bytes + kLargeStep - 1) / kLargeStep * kLargeStep;
}

}  // namespace segfuse::runtime
