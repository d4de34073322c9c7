#pragma once
// Cotangents of slices of one value, which lie beside each other in it.

#include <vector>

#include "ir/builder.h"

namespace segfuse::compiler {

/// Whether `val` is another value with zeros around it along one axis: what a slice hands back.
bool is_padded(const ir::Fusion& fusion, ir::ValId val);

/// The sum of such values, all of one shape. Those that lie beside each other become one concat
/// without zeros, so that slices that make a whole cost one pass over it.
ir::ValId sum_of_padded(ir::Builder& builder, const std::vector<ir::ValId>& all);

}  // namespace segfuse::compiler
