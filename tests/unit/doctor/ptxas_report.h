#pragma once
// What `ptxas -v` prints, as the oracle of the kernel doctor.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "doctor/kernel/ptx.h"
#include "segfuse/doctor/kernel.h"

namespace segfuse::test {

/// NVRTC 13 takes a text that it has compiled before from a cache, without a report.
inline const int kCacheDisabled = ::setenv("CUDA_CACHE_DISABLE", "1", 1);

/// Of one kernel.
struct Said {
  std::uint64_t registers = 0, stack = 0, stores = 0, loads = 0, shared = 0, barriers = 0;
};

/// "..., 2048 bytes smem": the number before `unit`; 0 without it.
inline std::uint64_t number_before(const std::string& line, const std::string& unit) {
  const std::size_t end = line.find(" " + unit);
  if (end == std::string::npos) return 0;
  const std::size_t begin = line.find_last_not_of("0123456789", end - 1) + 1;
  return std::stoull("0" + line.substr(begin, end - begin));
}

inline std::map<std::string, Said> parse_report(const std::string& report) {
  std::map<std::string, Said> kernels;
  std::istringstream lines(report);
  std::string kernel;
  bool frame = false;
  for (std::string line; std::getline(lines, line);) {
    const std::string mark = "Compiling entry function '";
    if (const std::size_t at = line.find(mark); at != std::string::npos) {
      const std::size_t begin = at + mark.size();
      kernel = line.substr(begin, line.find('\'', begin) - begin);
      frame = true;
    } else if (frame && line.find("bytes stack frame") != std::string::npos) {
      Said& said = kernels[kernel];
      said.stack = number_before(line, "bytes stack frame");
      said.stores = number_before(line, "bytes spill stores");
      said.loads = number_before(line, "bytes spill loads");
      frame = false;
    } else if (line.find("Used ") != std::string::npos) {
      Said& said = kernels[kernel];
      said.registers = number_before(line, "registers");
      said.barriers = number_before(line, "barriers");
      said.shared = number_before(line, "bytes smem");
    }
  }
  return kernels;
}

inline void expect_agreement(const std::vector<KernelInfo>& kernels, const std::string& report) {
  const std::map<std::string, Said> said = parse_report(report);
  EXPECT_EQ(kernels.size(), said.size());
  for (const KernelInfo& kernel : kernels) {
    SCOPED_TRACE(kernel.name + " for " + kernel.architecture);
    const auto found = said.find(kernel.name);
    ASSERT_NE(found, said.end());
    EXPECT_EQ(kernel.registers, found->second.registers);
    EXPECT_EQ(kernel.stack_bytes, found->second.stack);
    EXPECT_EQ(kernel.spill_store_bytes, found->second.stores);
    EXPECT_EQ(kernel.spill_load_bytes, found->second.loads);
    EXPECT_EQ(kernel.shared_bytes, found->second.shared);
    EXPECT_EQ(kernel.barriers, found->second.barriers);
  }
}

/// Sums of floating-point numbers in the order in which threads come: nothing of ours has them but
/// gold_counts, which adds equal numbers, so that the order does not show (docs/decisions/020-*).
inline void expect_no_float_atomics(const std::string& ptx, const std::string& name) {
  if (ptx.empty()) return;  // this NVRTC keeps none
  for (const KernelInfo& kernel : doctor::read_ptx(ptx, name)) {
    if (kernel.name == "gold_counts") continue;
    for (const KernelAtomic& atomic : kernel.atomics)
      for (const char* type : {".f16", ".f32", ".f64", ".bf16"})
        EXPECT_EQ(atomic.instruction.find(type), std::string::npos)
            << kernel.name << ": " << atomic.instruction;
  }
}

}  // namespace segfuse::test
