#pragma once
// What a machine must allow for tests with memory that is really pinned.

#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <string>

#include "comm/registered/backends/uring.h"
#include "segfuse/error.h"
#include "support/system/processes.h"

namespace segfuse::test {

/// Why `bytes` cannot be pinned here; empty when they can.
inline std::string why_no_pins(std::size_t bytes) {
  try {
    comm::UringBackend();
  } catch (const DeviceError& error) {
    return error.what();
  }
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (geteuid() != 0 && limit.rlim_cur < bytes)
    return "the limit on locked memory is " + std::to_string(limit.rlim_cur) + " bytes";
  if (field_of("/proc/meminfo", "MemAvailable") < (bytes >> 10) * 3)
    return "less than three times the memory is available";
  return {};
}

}  // namespace segfuse::test

#define SKIP_WITHOUT_PINS(bytes)                                                       \
  if (const std::string reason = ::segfuse::test::why_no_pins(bytes); !reason.empty()) \
  GTEST_SKIP() << reason
