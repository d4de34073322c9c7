#pragma once
// Pieces of the compiler's page.

#include <string>
#include <string_view>
#include <vector>

#include "engine/compiled/emission.h"

namespace segfuse::engine {

/// "1.5 MiB"
std::string html_bytes(std::int64_t bytes);
std::string_view page_style();

/// What a group reads and writes.
struct Traffic {
  std::int64_t needed = 0;   ///< inputs of the program read for the first time, its outputs
  std::int64_t between = 0;  ///< everything else: what a smaller number of groups could save
  std::int64_t total() const { return needed + between; }
};
/// By group; what is needed adds up to the report's lower bound.
std::vector<Traffic> traffic_of(const compiler::SegmentedFusion& segmented);

/// The groups between inputs and outputs; a click leads to "#group-N". Programs of very many groups
/// get a sentence instead.
std::string graph_svg(const Emission& emission);

}  // namespace segfuse::engine
