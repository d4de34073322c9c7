#pragma once
// What the kernel holds in place for devices (pins), as far as it tells.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/fork/read/process.h"

namespace segfuse::doctor {

struct Pin {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string who;  ///< "io_uring, descriptor 7"
};

/// The buffers that a file of fdinfo lists under "UserBufs:", if it is an io_uring's.
std::vector<Pin> parse_registered_buffers(std::string_view text, const std::string& who);

/// All of a process, by address; overlapping ones are joined.
std::vector<Pin> find_pins(const Process& process);

}  // namespace segfuse::doctor
