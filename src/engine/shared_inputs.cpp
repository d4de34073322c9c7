#include "engine/shared_inputs.h"

#include <algorithm>

namespace segfuse::engine {

std::vector<bool> shared_with_overwritten(
    std::span<const InputBytes> memory, const std::vector<bool>& overwritten,
    const std::function<void(std::size_t, std::size_t)>& refuse) {
  std::vector<bool> shared(memory.size());
  if (std::ranges::find(overwritten, true) == overwritten.end()) return shared;
  const auto overlap = [](const InputBytes& a, const InputBytes& b) {
    return a.first < b.second && b.first < a.second;
  };
  std::vector<InputBytes> sorted(memory.begin(), memory.end());
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted, overlap) == sorted.end()) return shared;
  for (std::size_t written = 0; written < memory.size(); ++written)
    for (std::size_t i = 0; overwritten[written] && i < memory.size(); ++i) {
      if (i == written || !overlap(memory[i], memory[written])) continue;
      if (overwritten[i]) refuse(written, i);
      shared[i] = true;
    }
  return shared;
}

}  // namespace segfuse::engine
