#pragma once
// Which stream each step of a plan runs on, what it has to wait for, and where scratch lies.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace segfuse::plan {

struct Placement {
  struct Step {
    int stream = 0;
    /// Steps on other streams that it has to wait for. No entry follows from the others, from the
    /// order of its stream, or from waits of steps before it.
    std::vector<std::uint32_t> waits;
  };
  std::vector<Step> steps;
  int streams = 0;                   ///< that are used
  std::vector<std::size_t> offsets;  ///< of each scratch buffer in the arena; else 0
  std::size_t arena_bytes = 0;
  /// Most bytes of scratch that are in use at one time when steps run one after the other: no arena
  /// can be smaller.
  std::size_t least_bytes = 0;
};

/// Places a verified plan on at most `streams` streams. A step goes on the stream of what it needs
/// where that is the stream's last step, else where the fewest steps are. Scratch buffers share
/// bytes when all uses of the one come before the first of the other by the order that is there
/// anyway, so sharing costs no wait. A function of the arguments alone. `alignment` in bytes.
Placement place(const Plan& plan, int streams, std::size_t alignment = 256);

}  // namespace segfuse::plan
