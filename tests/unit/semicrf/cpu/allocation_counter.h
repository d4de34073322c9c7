#pragma once
// How often this program has called operator new.

#include <atomic>
#include <cstdint>

namespace segfuse::semicrf::testing {
extern std::atomic<std::int64_t> allocations;
}
