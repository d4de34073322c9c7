#pragma once
// What an operation is: its kind, its class and its attributes, all from ops.def.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "ir/extent.h"
#include "segfuse/tensor.h"

namespace segfuse::ir {

enum class Op : std::uint16_t {
#define SEGFUSE_UNARY(name, rule, domain, accuracy, instructions, formula, gradient) name,
#define SEGFUSE_BINARY(name, rule, domain, accuracy, instructions, formula, gradient_a, \
                       gradient_b)                                                      \
  name,
#define SEGFUSE_OP(name, op_class, min_operands, max_operands, results, accuracy, instructions, \
                   attributes)                                                                  \
  name,
#include "segfuse/ops.def"
};

enum class OpClass : std::uint8_t { kElementwise, kReduction, kMovement, kCreation, kOpaque };
/// Which element types an elementwise operation takes and gives; kNone for the operations with
/// rules of their own.
enum class DTypeRule : std::uint8_t { kNone, kFloat, kNumeric, kCompare, kTest, kLogical };
/// Where generated tests draw the inputs of an elementwise operation.
enum class Domain : std::uint8_t { kAny, kPositive, kNonZero };
enum class AttrType : std::uint8_t { kInt, kInts, kFloat, kDType, kExtents };

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

/// One attribute; the alternative is that of AttrType, in order.
using Attr =
    std::variant<std::int64_t, std::vector<std::int64_t>, double, DType, Extents, NeverHeld>;
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
  int instructions;             ///< for one element, about
  std::vector<AttrSpec> attrs;  ///< in the order in which Attrs holds them
};

/// All operations in the order of ops.def.
std::span<const OpInfo> all_ops();
const OpInfo& info(Op op);
std::optional<Op> op_from_name(std::string_view name);

}  // namespace segfuse::ir
