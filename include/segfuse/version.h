#pragma once

#include <string>

namespace segfuse {

/// Library version, as "0.1.0".
std::string version();

}  // namespace segfuse
