#pragma once
// FNV-1a, 64 bits: a hash that is the same on every machine and in every run.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace segfuse {

inline constexpr std::uint64_t kFnvBasis = 0xCBF29CE484222325U;

/// Hash of the bytes that went into `hash`, followed by these.
inline std::uint64_t fnv1a(std::string_view bytes, std::uint64_t hash = kFnvBasis) {
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return hash;
}

}  // namespace segfuse
