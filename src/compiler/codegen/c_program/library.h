#pragma once
// Library operations as plain loops in C.

#include <functional>
#include <set>
#include <string>

#include "compiler/codegen/c_program/sizes.h"

namespace segfuse::compiler::cpu {

/// Calls of functions that it collects.
class LibraryLoops {
 public:
  LibraryLoops(const ir::Fusion& fusion, SizeTable& sizes) : fusion_(fusion), sizes_(sizes) {}

  /// A statement that runs the expression; `pointer` gives the memory of a value, as a void *.
  /// UsageError for operations that have no form here.
  std::string call(ir::ExprId id, const std::function<std::string(ir::ValId)>& pointer);
  /// The functions that were called.
  std::string functions() const;

 private:
  using Pointer = std::function<std::string(ir::ValId)>;
  std::string matmul(ir::ExprId id, const Pointer& pointer);
  std::string scatter_add(ir::ExprId id, const Pointer& pointer);
  std::string fold(ir::ExprId id, const Pointer& pointer);
  std::string around(const ir::Extents& shape, std::size_t begin, std::size_t end);

  const ir::Fusion& fusion_;
  SizeTable& sizes_;
  std::set<std::string> used_;
};

}  // namespace segfuse::compiler::cpu
