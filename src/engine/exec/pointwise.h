#pragma once
// Evaluation of a pointwise group block by block: operands are loaded once, intermediate values
// live in scratch that fits the first cache, and only results needed outside are stored.

#include <vector>

#include "engine/exec/plan.h"
#include "engine/kernels/pointwise_kernels.h"

namespace segfuse::engine {

/// A straight-line program over blocks of an iteration space, built instruction by instruction.
class PointwiseProgram {
 public:
  /// A value of the program.
  struct Operand {
    enum class Kind : std::uint8_t { kNone, kTemporary, kLoad, kStore };
    Kind kind = Kind::kNone;
    std::uint32_t index = 0;
  };

  explicit PointwiseProgram(Shape shape) : shape_(std::move(shape)) {}

  /// A view of the shape of the program.
  Operand load(Ref ref);
  /// A contiguous result.
  Operand store(Ref ref);
  Operand temporary(DType dtype);
  void emit(Loop loop, Operand out, std::initializer_list<Operand> in);
  /// out = the elements of a random_uniform.
  void emit_random(Operand out, Ref seed, std::int64_t stream);
  /// To be called once, after the last instruction.
  void finish();

  void run(Run& context) const;

 private:
  struct Instruction {
    Loop loop = nullptr;  ///< null: random numbers
    Operand out;
    Operand in[3];
    std::size_t seed = 0;
    std::int64_t stream = 0;
  };
  /// How a load reaches its elements.
  enum class Access : std::uint8_t { kContiguous, kScalar, kStrided };
  struct Load {
    Ref ref;
    Access access = Access::kContiguous;
    std::size_t slot = 0;    ///< of scratch, for strided ones
    std::size_t stride = 0;  ///< which strides of the nest
  };
  struct Temporary {
    std::size_t slot = 0;
  };
  struct Cursor;

  void assign_slots();
  void run_range(Run& context, const std::vector<std::int64_t>& seeds, std::int64_t begin,
                 std::int64_t end) const;
  void run_block(Cursor& cursor, std::int64_t begin, std::int64_t n) const;
  void locate(Cursor& cursor, std::size_t load, std::int64_t begin, std::int64_t n) const;

  Shape shape_;
  std::vector<Load> loads_;
  std::vector<Ref> stores_;
  std::vector<Temporary> temporaries_;
  std::vector<Instruction> instructions_;
  std::vector<Ref> seeds_;
  Nest nest_;
  std::int64_t size_ = 0;
  std::int64_t row_ = 0;    ///< innermost axis of the nest
  bool by_rows_ = false;    ///< blocks do not cross rows
  std::int64_t block_ = 0;  ///< elements
  std::size_t slots_ = 0;
  std::size_t width_ = 4;  ///< bytes of a scratch element
};

}  // namespace segfuse::engine
