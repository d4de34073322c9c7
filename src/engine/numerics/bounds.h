#pragma once
// How far a right evaluator may be from the interpreter in double precision: the bounds that
// docs/doctor.md states, and what errors of operands become.

#include <optional>
#include <span>
#include <vector>

#include "ir/fusion.h"
#include "ir/interpret/evaluate.h"
#include "segfuse/tensor.h"

namespace segfuse::engine::numerics {

/// Whose elementary functions compute.
enum class Functions {
  kOurs,   ///< of generated C and the built-in loops
  kDevice  ///< CUDA's libdevice
};

/// In units of the last place: what docs/codegen.md states for elementary functions (of a device:
/// docs/doctor.md); nothing for operations that are exact or rounded once.
std::optional<double> stated_ulps(ir::Op op, DType dtype, Functions functions = Functions::kOurs);

/// A value as the interpreter computes it, and how far from it a right result may be. Both wide;
/// `error` is f64, infinite where nothing can be said.
struct Judged {
  Tensor value;
  Tensor error;
};

/// One expression from judged operands.
std::vector<Judged> judge(const ir::Evaluation& e, std::span<const Judged> operands,
                          const ir::OpaqueOps& opaque, Functions functions);

/// All values of a program, by ValId, from exact inputs. What is not computed stays empty.
std::vector<Judged> judge_all(const ir::Fusion& fusion, std::span<const Tensor> inputs,
                              const ir::OpaqueOps& opaque, Functions functions = Functions::kOurs);

/// The same from judged inputs, for sizes that are known.
std::vector<Judged> judge_values(const ir::Fusion& fusion, const ir::Sizes& sizes,
                                 std::span<const Judged> inputs, const ir::OpaqueOps& opaque,
                                 Functions functions);
/// A scan, step after step: the errors of carries go on.
std::vector<Judged> judge_scan(const ir::Evaluation& e, std::span<const Judged> operands,
                               const ir::OpaqueOps& opaque, Functions functions);

/// The first element of `found` that is further from `judged` than it may be; -1: none.
std::int64_t first_beyond(const Tensor& found, const Judged& judged);

/// Whether an operation only puts elements into places, without a rounding.
bool only_moves(ir::Op op);

/// The largest finite number of a type.
double largest_of(DType dtype);

}  // namespace segfuse::engine::numerics
