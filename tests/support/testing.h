#pragma once
// Sources that are compiled together see each other's headers, and several of these have a
// namespace `testing`. Whichever of them the name means, GoogleTest is found in it.

#include <gtest/gtest.h>

namespace segfuse::testing {
using namespace ::testing;
}

namespace segfuse::semicrf::testing {
using namespace segfuse::testing;
}

namespace segfuse::engine::testing {
using namespace segfuse::testing;
}
