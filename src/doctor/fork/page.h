#pragma once

#include <cstdint>

namespace segfuse::doctor {

inline constexpr std::uint64_t kPage = 4096;  ///< bytes; of x86-64 and of most aarch64 kernels

inline std::uint64_t page_begin(std::uint64_t address) { return address & ~(kPage - 1); }

}  // namespace segfuse::doctor
