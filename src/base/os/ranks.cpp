#include "base/os/ranks.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace segfuse {

std::optional<Ranks> ranks_of_environment() {
  // torchrun; srun; Open MPI; MPICH, Intel MPI and Cray's; MVAPICH.
  for (const char* const name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE",
                                 "PMI_SIZE", "MV2_COMM_WORLD_SIZE"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr) continue;
    const std::string_view text = value;
    std::int64_t count = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (error == std::errc{} && end == text.data() + text.size() && count > 1)
      return Ranks{count, name};
  }
  return {};
}

}  // namespace segfuse
