#pragma once
// In which order groups run, and how much memory that takes.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace segfuse::compiler {

/// One value that lives between groups. A view counts as a copy would.
struct Lifetime {
  std::uint32_t writer = 0;
  std::vector<std::uint32_t> readers;  ///< ascending, each once
  std::int64_t bytes = 0;
  bool stays = false;  ///< an output of the Fusion: never freed
};

struct RunOrder {
  std::vector<std::uint32_t> order;
  std::int64_t peak_bytes = 0;  ///< most bytes alive at once between groups and inside them
};

/// An order of groups 0..count-1, which stand in a possible order, that keeps the peak low: of the
/// groups that can run the one that grows memory least, ties to the lower number; or the order
/// given, if its peak is not higher. A group's results are alive together with all it reads.
/// `before` are further pairs (first, second) that must stay in order.
RunOrder find_run_order(std::size_t count, std::span<const Lifetime> values,
                        std::span<const std::pair<std::uint32_t, std::uint32_t>> before);

/// The peak of one order.
std::int64_t peak_bytes(std::span<const std::uint32_t> order, std::span<const Lifetime> values);

}  // namespace segfuse::compiler
