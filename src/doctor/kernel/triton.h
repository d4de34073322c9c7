#pragma once
// Kernels in Triton's cache: a folder for each, with NAME.cubin, NAME.ptx and NAME.json.

#include <cstdint>
#include <string>
#include <string_view>

namespace segfuse::doctor {

/// What NAME.json says of a launch.
struct TritonLaunch {
  std::uint64_t threads = 0;       ///< of a block
  std::uint64_t shared_bytes = 0;  ///< dynamic shared memory
};

/// DataError "FILE: ..." where it is not what Triton writes.
TritonLaunch read_triton_launch(std::string_view text, const std::string& file);

}  // namespace segfuse::doctor
