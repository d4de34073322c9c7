#pragma once
// The functions and types that printed kernels build on: only those that a text names are put
// before it.

#include <string>
#include <string_view>

namespace segfuse::compiler::cuda {

struct Prelude {
  std::string machine;
  std::string plain;
};

/// The pieces that `code` names, and those that they name, in order.
Prelude prelude_for(std::string_view code);

}  // namespace segfuse::compiler::cuda
