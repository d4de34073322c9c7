#pragma once
// What a Fusion does for one set of input shapes: steps over storages with fixed layouts.

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "engine/exec/array.h"
#include "engine/exec/groups.h"
#include "ir/bind.h"
#include "ir/fusion.h"

namespace segfuse::engine {

class SemicrfOps;

/// A piece of memory. Arena storages share one block; their lives decide who may overlap whom.
struct Storage {
  enum class Kind : std::uint8_t { kInput, kOutput, kArena, kConstant };
  Kind kind = Kind::kArena;
  std::size_t index = 0;  ///< which input or output
  std::size_t bytes = 0;
  std::size_t offset = 0;      ///< into the arena or the constants
  std::size_t first_step = 0;  ///< that writes it
  std::size_t last_step = 0;   ///< that reads or writes it
};

/// A view of a storage. dtype is a compute type: halves are held as f32, but between generated
/// kernels.
struct Ref {
  std::uint32_t storage = 0;
  DType dtype = DType::kF32;
  Layout layout;
};

/// What steps run with: where each storage is in this run, and the library calls' states.
struct Run {
  ThreadPool& pool;
  SemicrfOps& semicrf;
  std::vector<std::byte*> bases;  ///< by storage

  /// Valid as long as `ref`.
  Array array(const Ref& ref) const {
    const std::int64_t shift = ref.layout.offset * static_cast<std::int64_t>(size_of(ref.dtype));
    return {bases[ref.storage] + shift, &ref.layout, ref.dtype};
  }
};

struct Step {
  ir::ExprId expr;            ///< the last expression it evaluates; invalid for conversions
  std::vector<Ref> operands;  ///< filled when steps are to be checked
  std::vector<Ref> results;   ///< what it defines for later steps
  std::function<void(Run&)> go;
  std::string what = {};  ///< of generated kernels: "row_norm of 9"
  double seconds = 0;     ///< measured, when asked for
  std::int64_t runs = 0;
};

struct Plan {
  std::vector<Storage> storages;
  std::vector<Step> steps;
  std::vector<Shape> output_shapes;
  /// By output: the input whose memory it is, for those that are written in place.
  std::vector<std::optional<std::size_t>> in_place;
  std::size_t arena_bytes = 0;
  std::vector<std::byte> constants;
};

/// Plans a run. `groups` are those of the Fusion; nothing is kept of the arguments.
Plan make_plan(const ir::Fusion& fusion, std::span<const Group> groups, const ir::Sizes& sizes);

class CpuKernels;
/// The same with generated kernels. Halves are stored as they are. The plan holds the code, not the
/// CpuKernels.
Plan make_plan(CpuKernels& kernels, std::span<const Tensor> inputs);

}  // namespace segfuse::engine
