#include "segfuse/version.h"

namespace segfuse {

// The one source file that src/CMakeLists.txt gives the project's version.
std::string version() { return SEGFUSE_VERSION; }

}  // namespace segfuse
