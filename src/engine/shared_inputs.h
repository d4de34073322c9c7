#pragma once
// Inputs that share memory with one that a program overwrites: they have to be copied before it
// runs.

#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace segfuse::engine {

/// From the first byte to behind the last; both null for no bytes.
using InputBytes = std::pair<const std::byte*, const std::byte*>;

/// By input: it shares memory with another one that the program overwrites. Where both are
/// overwritten, `refuse` is called with their places, and throws.
std::vector<bool> shared_with_overwritten(
    std::span<const InputBytes> memory, const std::vector<bool>& overwritten,
    const std::function<void(std::size_t, std::size_t)>& refuse);

}  // namespace segfuse::engine
