#pragma once
// One system call, made by a thread of another process. The only part of the doctor that stops
// anything: that one thread, for well under a millisecond.

#include <cstdint>

#include "doctor/fork/read/process.h"

namespace segfuse::doctor {

struct RemoteResult {
  int error = 0;  ///< the errno of the call; 0: it succeeded
  double stopped_seconds = 0;
};

/// madvise(begin, end - begin, advice) over there. UsageError when the process may not be touched
/// (rights, another debugger) or has ended; DeviceError on machines other than x86-64, and when
/// none of its threads can be stopped within two seconds. The thread goes on as if nothing had
/// happened: registers, a call that it was waiting in, and signals that came meanwhile are kept.
RemoteResult remote_madvise(const Process& process, std::uint64_t begin, std::uint64_t end,
                            int advice);

}  // namespace segfuse::doctor
