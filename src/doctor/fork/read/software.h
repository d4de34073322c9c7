#pragma once
// Versions of what takes part in registering memory, and the variables that steer it.

#include <string>
#include <utility>
#include <vector>

#include "doctor/fork/read/process.h"
#include "doctor/fork/read/smaps.h"
#include "segfuse/doctor/fork.h"

namespace segfuse::doctor {

/// rdma-core's release out of "libibverbs.so.1.14.44.0": 44; 0 if the name does not tell.
int rdma_core_release(const std::string& path);

struct Kernel {
  int major = 0;
  int minor = 0;
  bool copies_pinned() const { return major > 5 || (major == 5 && minor >= 12); }
};
/// "6.1.0-18-amd64"
Kernel parse_kernel(const std::string& release);

struct Software {
  Kernel kernel;
  int rdma_core = 0;  ///< 0: not mapped, or not known
  bool glibc = false;
  std::string other_allocator;  ///< "libjemalloc.so.2"; empty: none is known to be there
};

/// Fills versions, environment and what these alone say into `report`.
Software find_software(const Process& process, const std::vector<Vma>& vmas, ForkReport& report);

}  // namespace segfuse::doctor
