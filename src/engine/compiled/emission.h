#pragma once
// A compiled program for people to read: its groups one after the other, in words.

#include <functional>
#include <string>
#include <vector>

#include "compiler/compile.h"

namespace segfuse::engine {

struct EmittedGroup {
  const compiler::SegmentedGroup& group;
  compiler::GroupKind kind;
  const compiler::Space* space = nullptr;  ///< nothing for views and library calls
  compiler::Schedule schedule;
  compiler::LoweredGroup lowered;
};

class Emission {
 public:
  Emission(const ir::Fusion& source, const compiler::CompileOptions& how)
      : compiled_(source, how) {}

  /// Lowers the groups for sizes as the hints say.
  void each(const std::function<void(EmittedGroup&)>& visit);

  const compiler::SegmentedFusion& segmented() const { return compiled_.segmented(); }
  const ir::Fusion& fusion() const { return compiled_.fusion(); }
  /// A kernel in the target's language, complete.
  std::string text(const compiler::GroupKernel& kernel) const {
    return compiled_.print(kernel.kernel);
  }
  /// The same without the functions that a C kernel needs before it.
  std::string function_text(const compiler::GroupKernel& kernel) const {
    return compiled_.print_function(kernel.kernel);
  }
  /// "'x'" of an input or a named output, else "%7".
  std::string name(ir::ValId val) const;
  /// "b0 = 'x', b1 = %7, w2 = workspace 0"
  std::string operands(const compiler::GroupKernel& kernel) const;
  /// "[B, 256 reduced innermost]"
  std::string describe(const compiler::Space& space) const;

 private:
  compiler::CompiledFusion compiled_;
};

}  // namespace segfuse::engine
