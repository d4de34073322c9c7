#pragma once
// The doctor's tools for PyTorch programs.

#include <string>
#include <vector>

#include "commands.h"

namespace segfuse::cli {

struct WatchedRun {
  std::string tool;                  ///< "numerics", "determinism", "streams"
  std::vector<std::string> command;  ///< the program and its arguments
  std::string options = "{}";        ///< of the tool, a JSON object
  std::string vary = "";             ///< of determinism: what the second run has different
};

/// Runs the command (determinism: twice) so that each of its Python processes watches itself, and
/// gives the processes' reports as one text or JSON. The first picture of a race comes back.
std::string run_watched(const WatchedRun& run, Common& common);

}  // namespace segfuse::cli
