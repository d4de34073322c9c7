#pragma once
// Pins memory for as long as the process lives, by the kernel's own path for devices.

#include <linux/io_uring.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace segfuse::test {

/// 0, or the errno of what failed. One registration of at most 1 GiB.
inline int pin_with_io_uring(void* memory, std::size_t bytes) {
  const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
  setrlimit(RLIMIT_MEMLOCK, &unlimited);
  io_uring_params parameters;
  std::memset(&parameters, 0, sizeof parameters);
  const long ring = syscall(__NR_io_uring_setup, 4, &parameters);
  if (ring < 0) return errno;
  const iovec range{memory, bytes};
  if (syscall(__NR_io_uring_register, ring, IORING_REGISTER_BUFFERS, &range, 1) < 0) return errno;
  return 0;
}

}  // namespace segfuse::test
