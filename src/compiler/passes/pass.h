#pragma once
// The table of passes and the loop that runs it.

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/fusion.h"

namespace segfuse::compiler {

struct Pass {
  std::string_view name;
  std::string_view before;  ///< what it needs
  std::string_view after;   ///< what holds when it has run
  bool (*run)(ir::Fusion&);
};

/// All passes in the order in which they run.
std::span<const Pass> all_passes();

/// The pass of that name. UsageError names those that exist.
const Pass& find_pass(std::string_view name);

#ifdef NDEBUG
inline constexpr bool kVerifyPasses = false;
#else
inline constexpr bool kVerifyPasses = true;
#endif

struct PassOptions {
  /// verify() after each pass; an InternalError then names the pass.
  bool verify = kVerifyPasses;
  /// Called after each run of a pass.
  std::function<void(const Pass&, const ir::Fusion&)> after = {};
};

/// All runs of one pass together.
struct PassTime {
  const Pass* pass = nullptr;
  double seconds = 0;
  int runs = 0;
  int changes = 0;         ///< runs that changed something
  std::size_t before = 0;  ///< expressions before the first run
  std::size_t after = 0;   ///< expressions after the last
};

/// Runs the table again and again until no pass changes anything. Entries in the order of the
/// table.
std::vector<PassTime> run_passes(ir::Fusion& fusion, const PassOptions& options = {});

}  // namespace segfuse::compiler
