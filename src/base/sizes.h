#pragma once

#include <cstddef>
#include <cstdint>

namespace segfuse {

/// A size or an index of 64 signed bits as the containers of the standard library want it.
inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// a / b rounded up, of a >= 0 and b > 0.
constexpr std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The smallest multiple of `unit` that is not below `size`.
inline std::size_t round_up(std::size_t size, std::size_t unit) {
  return (size + unit - 1) / unit * unit;
}

}  // namespace segfuse
