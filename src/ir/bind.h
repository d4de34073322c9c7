#pragma once
// Numbers for the symbolic sizes of a Fusion, from the shapes of its inputs, and other checks of
// what a run gets. Shared by all evaluators, so that they refuse with the same words.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/fusion.h"
#include "segfuse/tensor.h"

namespace segfuse::ir {

/// The sizes of one run of a Fusion. Holds numbers only: it outlives the Fusion.
class Sizes {
 public:
  /// UsageError if the extent holds a symbol that no input sets, or if it does not fit 64 bits.
  std::int64_t of(const Extent& extent) const;
  Shape of(const Extents& extents) const;

 private:
  friend class Binder;
  struct Entry {
    std::string name;
    std::optional<std::int64_t> value;
  };
  std::vector<Entry> symbols_;  ///< by SymbolId
};

/// Solves the symbols from `input_shapes` (one per input, in order): symbols that stand alone in an
/// axis first, then axes and requirements that are linear in one symbol. Every input axis, every
/// requirement and every size that live expressions use is then checked. UsageError naming input,
/// axis, found and expected if the number of inputs, a rank or a size disagrees, a requirement
/// fails, a size would be negative, a slice would leave its operand, or a live size cannot be
/// solved. Symbols that only dead expressions use may stay unknown. Write it ir::bind: a call
/// without the namespace finds std::bind as well.
Sizes bind(const Fusion& fusion, std::span<const Shape> input_shapes);

/// The same for the tensors of a run, whose types are checked as well.
Sizes bind_inputs(const Fusion& fusion, std::span<const Tensor> inputs);

/// UsageError naming the operation, the index and the size unless 0 <= index < size.
void check_index(Op op, std::int64_t index, std::int64_t size);

}  // namespace segfuse::ir
