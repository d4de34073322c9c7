#include "doctor/kernel/occupancy.h"

#include <algorithm>
#include <array>

namespace segfuse::doctor {

namespace {

/// Of a multiprocessor; from the table of compute capabilities in NVIDIA's programming guide.
struct Multiprocessor {
  const char* architecture;
  std::uint64_t warps;
  std::uint64_t blocks;
  std::uint64_t shared;        ///< bytes
  std::uint64_t block_shared;  ///< most that one block can have
};
constexpr std::array<Multiprocessor, 4> kMultiprocessors = {
    {{"sm_80", 64, 32, 164 << 10, 163 << 10},
     {"sm_90", 64, 32, 228 << 10, 227 << 10},
     {"sm_100", 64, 32, 228 << 10, 227 << 10},
     {"sm_103", 64, 32, 228 << 10, 227 << 10}}};
constexpr std::uint64_t kRegisters = 65536;
constexpr std::uint64_t kQuarters = 4;        // each with a quarter of the registers
constexpr std::uint64_t kRegisterUnit = 256;  // a warp's registers are a multiple of this
constexpr std::uint64_t kSharedUnit = 128;
constexpr std::uint64_t kSharedOfSystem = 1024;  // for each block

constexpr std::uint64_t rounded(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

std::optional<KernelOccupancy> occupancy_of(const std::string& architecture,
                                            std::uint64_t registers, std::uint64_t shared_bytes,
                                            std::uint64_t block) {
  const auto found = std::find_if(kMultiprocessors.begin(), kMultiprocessors.end(),
                                  [&](const auto& m) { return architecture == m.architecture; });
  if (found == kMultiprocessors.end() || block == 0 || block > 1024 || registers > 255 ||
      shared_bytes > found->block_shared)
    return std::nullopt;
  const std::uint64_t warps = (block + 31) / 32;
  const std::uint64_t of_warp = rounded(std::max<std::uint64_t>(registers, 1) * 32, kRegisterUnit);
  const std::uint64_t by_registers = kRegisters / kQuarters / of_warp * kQuarters / warps;
  const std::uint64_t by_shared =
      found->shared / (rounded(shared_bytes, kSharedUnit) + kSharedOfSystem);
  KernelOccupancy occupancy{architecture, block, found->warps / warps, 0, "threads"};
  const auto limit = [&](std::uint64_t blocks, const char* name) {
    if (blocks >= occupancy.blocks) return;
    occupancy.blocks = blocks;
    occupancy.limit = name;
  };
  limit(found->blocks, "blocks");
  limit(by_registers, "registers");
  limit(by_shared, "shared memory");
  occupancy.share =
      static_cast<double>(occupancy.blocks * warps) / static_cast<double>(found->warps);
  return occupancy;
}

}  // namespace segfuse::doctor
