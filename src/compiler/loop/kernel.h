#pragma once
// Loop IR: what a kernel does, for every target. The interpreter (interpret.h) is its meaning; the
// C and CUDA printers say the same in their languages.
//
// A kernel is one outer loop whose iterations are independent: threads of a pool (CPU) or blocks
// (CUDA) take them. Its body is statements in order. Inside are
//   lane loops    iterations are independent but for reductions: SIMD lanes (CPU), the threads of a
//                 block (CUDA). Not nested in each other. Statements in a lane loop are executed
//                 for single elements; what vectors they make is the printer's affair.
//   serial loops  in order; inside of lane loops or around them.
// Values are single assignment, visible from their statement to the end of the block they are in,
// inner blocks included. Statements outside of lane loops are uniform: all lanes agree on them.
//
// Memory. Global buffers are parameters. Row buffers belong to one outer iteration; an element of
// one is read by the lane that wrote it or after a Barrier, unless the buffer is in registers: then
// it is indexed by the variable of the lane loop alone, all lane loops that use it have the same
// bounds, and no barrier helps.
//
// Reductions. Begin sets the state, Accumulate adds one element to it, Finish gives the result. A
// state that was begun outside of a lane loop and accumulated inside is joined over the lanes by
// Finish (outside again), in a fixed order. Compensated sums lose nothing on the way that f32 can
// show: a target carries rounding errors along, or adds in f64. Orders may differ between targets,
// not between runs.

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "compiler/loop/index.h"
#include "compiler/schedule/schedule.h"
#include "ir/op.h"
#include "segfuse/tensor.h"

namespace segfuse::compiler::loop {

using BufferId = ir::Id<struct KernelBufferTag>;
using ReductionId = ir::Id<struct ReductionTag>;

struct KernelBuffer {
  enum class Kind : std::uint8_t {
    kInput,   ///< global, only read
    kOutput,  ///< global, only written
    kInOut,   ///< global; an element is read before it is written, by the lane that writes it
    kRow,     ///< of one outer iteration
  };
  Kind kind = Kind::kInput;
  std::string name;
  DType dtype = DType::kF32;
  ir::Extent elements;  ///< global: how many there are; row: how many are needed
  /// Row buffers: kScratch or kRegister, and the constant that `elements` never passes (kRegister).
  Hold hold = Hold::kScratch;
  std::int64_t capacity = 0;
};

/// Elementwise by the table of operations (info(op).op_class == kElementwise). The operands' types
/// are those that the operation demands in the Fusion; the result's is that of the value. f16 and
/// bf16 values are computed in f32 and rounded.
struct Compute {
  ValueId result;
  ir::Op op = ir::Op::add;
  std::vector<ValueId> operands;
};
/// An integer type's ends stand for what lies beyond them.
struct Constant {
  ValueId result;
  double value = 0;
};
/// The index as a value of an integer or float type.
struct FromIndex {
  ValueId result;
  Index index;
};
/// f32 in [0, 1) as ir::random_element says.
struct Random {
  ValueId result;
  ValueId key, sequence;  ///< i64
  std::int64_t stream = 0;
  Index element;
};

/// 0 <= index < bound.
struct Within {
  Index index;
  ir::Extent bound;
  friend bool operator==(const Within&, const Within&) = default;
};
/// `otherwise` where a condition does not hold, and then memory is not touched. A bool is read as
/// element != 0.
struct Load {
  ValueId result;
  BufferId buffer;
  Index index;
  std::vector<Within> when;
  double otherwise = 0;
};
/// Done only where all of `when` hold.
struct Store {
  BufferId buffer;
  Index index;
  ValueId value;
  std::vector<Within> when;
};
/// Reports an index out of range by writing 1 + `what` to the kernel's status word, unless `when`
/// fails; later uses of the position must be harmless: they go through Load::when.
struct Check {
  Within within;
  std::vector<Within> when;
  std::uint32_t what = 0;  ///< position in Kernel::checks
};

struct Begin {
  ReductionId reduction;
};
struct Accumulate {
  ReductionId reduction;
  ValueId value;
  Index
      position;  ///< of kArgmax: what its result counts. Equal values: the smallest position wins.
};
/// kArgmax gives the value and the position (i64), others one value, of the reduction's type.
struct Finish {
  ReductionId reduction;
  std::vector<ValueId> results;
};
/// All lanes have done what stands before, for row buffers in kScratch.
struct Barrier {};
/// Elements change places between two buffers of one type, of which one is a row buffer:
/// to[to_at + i * to_step + j] = from[from_at + j * from_step + i] for i below `height` and j below
/// `width`. Outside of lane loops. No place is written twice. CPU only.
struct Transpose {
  BufferId to;
  Index to_at;
  ir::Extent to_step;
  BufferId from;
  Index from_at;
  ir::Extent from_step;
  Index height, width;
};

struct Statement;
struct For {
  enum class Kind : std::uint8_t { kLane, kSerial };
  Kind kind = Kind::kSerial;
  VarId var;
  Index begin, end;  ///< uniform
  std::vector<Statement> body;
};
/// The body runs where all conditions hold.
struct If {
  std::vector<Within> when;
  std::vector<Statement> body;
};

struct Statement {
  std::variant<Compute, Constant, FromIndex, Random, Load, Store, Check, Begin, Accumulate, Finish,
               Barrier, Transpose, For, If>
      node;
};

struct Reduction {
  ir::Monoid op = ir::Monoid::kSum;
  DType dtype = DType::kF32;
  /// Sum, f32: as above.
  bool compensated = false;
};

struct Kernel {
  std::string name;
  Schedule schedule;
  Indices indices;
  std::vector<DType> values;  ///< by ValueId
  std::vector<KernelBuffer> buffers;
  std::vector<Reduction> reductions;
  std::vector<std::string> checks;  ///< "take: index of 'tokens'"
  VarId outer;                      ///< runs over [0, outer_count)
  ir::Extent outer_count;
  std::vector<Statement> body;
  /// About how many elements one outer iteration goes through: for the number of threads.
  ir::Extent work;

  DType dtype(ValueId value) const { return values.at(value.index); }
  const KernelBuffer& buffer(BufferId id) const { return buffers.at(id.index); }
  /// Every size that is not a number, each once, in the order of first use: the integer parameters
  /// of printed kernels.
  std::vector<ir::Extent> sizes() const;
  std::vector<std::string> symbols;  ///< names of the sizes' symbols, by SymbolId
};

/// How generated C is called, for all that print it or call it:
///   void NAME(void* const* buffers, const int64_t* sizes, int64_t begin, int64_t end, void*
///   scratch)
/// buffers: the global ones in their order, then an int32_t, the status word (see Check). sizes:
/// the values of Kernel::sizes(). [begin, end): outer iterations. scratch: of this thread, at a
/// multiple of 64 bytes: the row buffers in their order, each at the next multiple of 64 bytes.
/// Bytes of one row buffer with that many elements.
inline std::int64_t row_buffer_bytes(DType dtype, std::int64_t elements) {
  const auto bytes = elements * static_cast<std::int64_t>(size_of(dtype));
  return (bytes + 63) / 64 * 64;
}

/// InternalError naming the first rule broken: a value used before or outside its block, wrong
/// types or counts of operands, nested lane loops, bounds that are not uniform, row buffers in
/// registers indexed otherwise, reductions out of order, globals of the wrong kind.
void verify(const Kernel& kernel);

/// What is known about the program's sizes.
struct SizeFacts {
  std::function<bool(const ir::Extent&, const ir::Extent&)> equal;
  std::function<ir::Extent(const ir::Extent&, std::int64_t)> ceil_divide;
};
/// InternalError unless it follows from the loops, conditions and positions that each element of
/// each output is written, and once. Buffers that are read and written by several statements are
/// not looked at.
void verify_writes(const Kernel& kernel, const SizeFacts& facts);

/// The form of golden tests and of `--emit=loop`.
std::string print(const Kernel& kernel);
std::string to_string(const Kernel& kernel, const Index& index);

/// Calls visit(statement, depth) for every statement in order, bodies after their loop.
void walk(const std::vector<Statement>& body,
          const std::function<void(const Statement&, int depth)>& visit);

}  // namespace segfuse::compiler::loop
