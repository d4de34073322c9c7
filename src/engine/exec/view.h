#pragma once
// The movement operations that cost nothing: their results are views.

#include <optional>

#include "engine/exec/array.h"
#include "ir/bind.h"
#include "ir/fusion.h"

namespace segfuse::engine {

/// The result of a permute, broadcast, slice, unfold, squeeze or reshape as a view of its operand,
/// which lies as `layout` says. Nothing for a reshape that needs a copy: one without gaps has none.
/// InternalError for other operations.
std::optional<Layout> view_of(const ir::Fusion& fusion, const ir::Sizes& sizes, ir::ExprId id,
                              const Layout& layout);

}  // namespace segfuse::engine
