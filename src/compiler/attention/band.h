#pragma once
// Masks that positions alone decide.

#include <optional>

#include "ir/fusion.h"

namespace segfuse::compiler {

/// Holds at (m, n) if n <= m + ahead. If `beyond`, it holds everywhere else.
struct Band {
  ir::Extent ahead;
  bool beyond = false;
};

/// The band of a mask: bool, or a number that is asked whether it is 0. Its last two axes are m and
/// n; it is the same along all others.
std::optional<Band> band_of(const ir::Fusion& fusion, ir::ValId mask);

}  // namespace segfuse::compiler
