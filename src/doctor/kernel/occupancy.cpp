#include "doctor/kernel/occupancy.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "base/text.h"

namespace segfuse::doctor {

namespace {

/// Of a multiprocessor; from the tables of compute capabilities in NVIDIA's programming guide.
struct Multiprocessor {
  int architecture;
  std::uint64_t warps;
  std::uint64_t blocks;
  std::uint64_t shared;        ///< KiB
  std::uint64_t block_shared;  ///< KiB, most that one block can have
};
constexpr std::array<Multiprocessor, 13> kMultiprocessors = {{{70, 64, 32, 96, 96},
                                                              {72, 64, 32, 96, 96},
                                                              {75, 32, 16, 64, 64},
                                                              {80, 64, 32, 164, 163},
                                                              {86, 48, 16, 100, 99},
                                                              {87, 48, 16, 164, 163},
                                                              {89, 48, 24, 100, 99},
                                                              {90, 64, 32, 228, 227},
                                                              {100, 64, 32, 228, 227},
                                                              {103, 64, 32, 228, 227},
                                                              {110, 48, 24, 228, 227},
                                                              {120, 48, 24, 100, 99},
                                                              {121, 48, 24, 100, 99}}};
constexpr std::uint64_t kRegisters = 65536;
constexpr std::uint64_t kQuarters = 4;        // each with a quarter of the registers
constexpr std::uint64_t kRegisterUnit = 256;  // a warp's registers are a multiple of this

/// Shared memory is handed out in such pieces, and some of it is the system's for each block.
constexpr std::uint64_t shared_unit(int architecture) { return architecture < 80 ? 256 : 128; }
constexpr std::uint64_t shared_of_system(int architecture) { return architecture < 80 ? 0 : 1024; }

/// 90 of "sm_90", "sm_90a" and "sm_100f"; 0 of anything else.
int number_of(std::string_view architecture) {
  if (!architecture.starts_with("sm_")) return 0;
  architecture.remove_prefix(3);
  if (!architecture.empty() && (architecture.back() == 'a' || architecture.back() == 'f'))
    architecture.remove_suffix(1);
  return static_cast<int>(parse_int(architecture).value_or(0));
}

constexpr std::uint64_t rounded(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

std::string known_architectures() {
  std::string names;
  for (const Multiprocessor& one : kMultiprocessors)
    names += fmt::format("{}sm_{}", names.empty() ? "" : ", ", one.architecture);
  return names;
}

std::optional<KernelOccupancy> occupancy_of(const std::string& architecture,
                                            std::uint64_t registers, std::uint64_t shared_bytes,
                                            std::uint64_t block) {
  const int number = number_of(architecture);
  const auto found = std::find_if(kMultiprocessors.begin(), kMultiprocessors.end(),
                                  [&](const auto& m) { return number == m.architecture; });
  if (found == kMultiprocessors.end() || block == 0 || block > 1024 || registers > 255 ||
      shared_bytes > found->block_shared << 10)
    return std::nullopt;
  const std::uint64_t warps = (block + 31) / 32;
  const std::uint64_t of_warp = rounded(std::max<std::uint64_t>(registers, 1) * 32, kRegisterUnit);
  const std::uint64_t by_registers = kRegisters / kQuarters / of_warp * kQuarters / warps;
  const std::uint64_t shared =
      rounded(shared_bytes, shared_unit(number)) + shared_of_system(number);
  const std::uint64_t by_shared = shared == 0 ? found->blocks : (found->shared << 10) / shared;
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
