#pragma once
// What an operation is: its kind, its class and its attributes, all from ops.def.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "ir/extent.h"
#include "segfuse/tensor.h"

namespace segfuse::ir {

class Fusion;

enum class Op : std::uint16_t {
#define SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient) name,
#define SEGFUSE_BINARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a, \
                       gradient_b)                                                                \
  name,
#define SEGFUSE_OP(name, op_class, min_operands, max_operands, results, accuracy, instructions, \
                   attributes)                                                                  \
  name,
#include "segfuse/ops.def"
};

enum class OpClass : std::uint8_t { kElementwise, kReduction, kMovement, kCreation, kOpaque };

// The operations of one class as types of their own, with the values of Op: a `switch` over one
// names all of them without `default:`, so that the compiler says which it lacks.
enum class ReductionOp : std::uint16_t {
#define SEGFUSE_REDUCTION(name, results, accuracy, walks) name = static_cast<int>(Op::name),
#include "segfuse/ops.def"
};
enum class MovementOp : std::uint16_t {
#define SEGFUSE_MOVEMENT(name, min_operands, max_operands, moves, attributes) \
  name = static_cast<int>(Op::name),
#include "segfuse/ops.def"
};
enum class CreationOp : std::uint16_t {
#define SEGFUSE_CREATION(name, operands, instructions, attributes) \
  name = static_cast<int>(Op::name),
#include "segfuse/ops.def"
};
enum class OpaqueOp : std::uint16_t {
#define SEGFUSE_OPAQUE(name, min_operands, max_operands, results, attributes) \
  name = static_cast<int>(Op::name),
#include "segfuse/ops.def"
};

/// Which element types an elementwise operation takes and gives; kNone for the operations with
/// rules of their own.
enum class DTypeRule : std::uint8_t {
  kNone,
  kFloat,
  kNumeric,
  kCompare,
  kTest,
  kLogical,
  kInteger
};
/// Where generated tests draw the inputs of an elementwise operation.
enum class Domain : std::uint8_t { kAny, kPositive, kNonZero };
/// For operands anywhere in an interval: whether the farthest result is at an end.
enum class Extremes : std::uint8_t { kAtEnds, kWithin };
/// How an operation of class kMovement finds elements.
enum class Moves : std::uint8_t { kByPosition, kByIndex, kAddsByPosition, kAddsByIndex };
/// What one state of a reduction accumulates; kArgmax holds a value and its position.
enum class Monoid : std::uint8_t { kSum, kProduct, kMax, kMin, kArgmax };
enum class AttrType : std::uint8_t { kInt, kInts, kFloat, kDType, kExtents, kBody };

/// How exact the results of an operation over floats are.
struct Accuracy {
  enum class Kind : std::uint8_t {
    kExact,    ///< an operand, a whole number or a truth value: no type rounds it
    kRounded,  ///< rounded once: IEEE 754 fixes its bits
    kUlps,     ///< within these many units of the last place
    kDerived,  ///< from what is added up
  };
  Kind kind = Kind::kDerived;
  double f32 = 0, f64 = 0;
  double device_f32 = 0, device_f64 = 0;  ///< of GPUs
};

struct AttrSpec {
  std::string_view name;
  AttrType type;
};

/// A Fusion inside an expression: what a scan does at each step. It does not change, and copies
/// share it. Its sizes are its own. Equal: the same text.
struct Body {
  std::shared_ptr<const Fusion> fusion;
  friend bool operator==(const Body& a, const Body& b);
};

/// One attribute; the alternative is that of AttrType, in order.
using Attr =
    std::variant<std::int64_t, std::vector<std::int64_t>, double, DType, Extents, Body, NeverHeld>;
using Attrs = std::vector<Attr>;

struct OpInfo {
  Op op;
  std::string_view name;
  OpClass op_class;
  DTypeRule rule;
  Domain domain;
  std::uint32_t min_operands;
  std::uint32_t max_operands;
  std::uint32_t max_results;
  Accuracy accuracy;
  Extremes extremes;
  int instructions;          ///< for one element, about
  std::string_view formula;  ///< of an elementwise operation with a row of its own, in a and b
  std::vector<std::vector<Monoid>> walks;  ///< of a reduction: the states of each walk
  Moves moves;                             ///< of a movement
  std::vector<AttrSpec> attrs;             ///< in the order in which Attrs holds them
};

/// All operations in the order of ops.def.
std::span<const OpInfo> all_ops();
const OpInfo& info(Op op);
std::optional<Op> op_from_name(std::string_view name);

constexpr OpClass class_of(ReductionOp) { return OpClass::kReduction; }
constexpr OpClass class_of(MovementOp) { return OpClass::kMovement; }
constexpr OpClass class_of(CreationOp) { return OpClass::kCreation; }
constexpr OpClass class_of(OpaqueOp) { return OpClass::kOpaque; }
/// Throws InternalError if `op` is of another class.
void need_class(Op op, OpClass op_class);
template <class Of>
Of as(Op op) {
  need_class(op, class_of(Of{}));
  return static_cast<Of>(op);
}

/// Whether elements are added up where they meet: scatter_add, fold.
bool adds(Op op);
/// Whether operand 1 holds indices.
bool has_indices(Op op);
/// C's operator of a formula of the form "a + b"; empty if it has another form.
std::string_view infix(Op op);

std::string_view name_of(Monoid monoid);
/// The state of no elements. An integer type's ends stand for what lies beyond them.
double identity(Monoid monoid, DType dtype);
/// The operation that brings a value into a state; InternalError for kArgmax.
Op joining(Monoid monoid);

}  // namespace segfuse::ir
