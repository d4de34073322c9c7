#pragma once
// What this build and this machine can do.

#include <string>
#include <vector>

namespace segfuse {

struct Capability {
  std::string name;  ///< "BLAS", "CUDA", ...
  bool available = false;
  std::string detail;  ///< version and settings, or why it is missing
};

/// Library version, as "0.1.0".
std::string version();
/// Every optional part, present or not, in a fixed order.
std::vector<Capability> capabilities();

}  // namespace segfuse
