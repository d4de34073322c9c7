#pragma once
// Tensor programs built in C++: values, operations, gradients.
//
//   using namespace segfuse::ops;
//   FusionBuilder f("layer norm");
//   Value x = f.input("x", DType::kF32, {"B", 64});
//   f.output(gelu(layer_norm(x)) + x, "y");
//   Program program = f.build();
//
// Operations broadcast as NumPy does: missing leading axes are added, axes of size 1 are stretched.
// Element types are never changed silently; a plain number takes the type of the values beside it.
// Axes count from 0, negative ones from the end. An impossible operation is a UsageError that names
// the operation, what was found and what was expected; the program stays usable.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "segfuse/error.h"
#include "segfuse/program.h"
#include "segfuse/tensor.h"

namespace segfuse::ops {

/// A size of an axis: a number, a named size that is known when the program runs, or a sum,
/// difference, product or quotient of sizes. Belongs to no program; a name means one size in each.
class Size {
 public:
  template <std::integral Integer>
  Size(Integer number);  // NOLINT(google-explicit-constructor): sizes are written as numbers
  Size(const char* name) : Size(std::string_view(name)) {}  // NOLINT(google-explicit-constructor)
  /// UsageError unless it is a letter or '_', and then letters, digits and '_'.
  Size(std::string_view name);  // NOLINT(google-explicit-constructor)

  /// The number, if no named size is in it.
  std::optional<std::int64_t> number() const;
  /// With numbers for the names. UsageError if the result does not fit 64 bits.
  std::int64_t evaluate(const std::function<std::int64_t(std::string_view)>& value_of) const;
  /// As in "2*B*T + 3".
  std::string text() const;

  friend Size operator+(const Size& a, const Size& b);
  friend Size operator-(const Size& a, const Size& b);
  friend Size operator*(const Size& a, const Size& b);
  /// Rounded toward minus infinity. UsageError unless divisor > 0.
  friend Size floordiv(const Size& a, std::int64_t divisor);

  struct Node;
  explicit Size(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  const Node& node() const { return *node_; }

 private:
  static Size of_number(std::int64_t number);
  StatePointer<std::shared_ptr<const Node>, "Size"> node_;
};

template <std::integral Integer>
Size::Size(Integer number) : Size(of_number(static_cast<std::int64_t>(number))) {}

using Sizes = std::vector<Size>;
using Axes = std::vector<std::int64_t>;

class FusionBuilder;

/// A value of a program, or a plain number that becomes a constant of the type of the values that
/// it is combined with. A handle: copies are the same value, and keep the program alive.
class Value {
 public:
  template <class Number>
    requires std::integral<Number> || std::floating_point<Number>
  Value(Number number)  // NOLINT(google-explicit-constructor): numbers stand in formulas
      : number_(static_cast<double>(number)) {
    if constexpr (std::integral<Number>) whole_ = static_cast<std::int64_t>(number);
  }

  /// These are UsageErrors for a plain number.
  DType dtype() const;
  Sizes shape() const;
  Size size(std::int64_t axis) const;
  std::int64_t rank() const;
  FusionBuilder fusion() const;
  std::string text() const;  ///< "f32[B, 64]", or the number

  struct State;
  Value(std::shared_ptr<State> state, std::uint32_t id) : state_(std::move(state)), id_(id) {}
  bool is_number() const { return id_ == kNumber; }
  double number() const { return number_; }
  /// The number, if it is a whole one of 64 bits that number() may have rounded; else 0.
  std::int64_t large() const;
  std::uint32_t id() const { return id_; }
  const std::shared_ptr<State>& state() const { return state_.checked(); }

 private:
  static constexpr std::uint32_t kNumber = 0xFFFFFFFF;
  StatePointer<std::shared_ptr<State>, "Value"> state_;  ///< null: a number, or moved from
  std::uint32_t id_ = kNumber;
  double number_ = 0;
  std::int64_t whole_ = 0;  ///< of a whole number, which number_ may have rounded
};

/// An attribute of an operation, by the type that operations() names.
using Attribute = std::variant<std::int64_t, Axes, double, DType, Sizes, NeverHeld>;

/// A program that is being written. Copies are the same program. Not for several threads at once.
class FusionBuilder {
 public:
  explicit FusionBuilder(std::string name = "main");

  Value input(std::string name, DType dtype, const Sizes& shape);
  void output(const Value& value, std::string name = "");
  /// When a run has ended, the input holds what the output holds.
  void alias(const Value& output, const Value& input);

  Value constant(double value, DType dtype = DType::kF32);
  Value full(double value, const Sizes& shape, DType dtype = DType::kF32);
  Value iota(const Size& length, DType dtype = DType::kI64);  ///< 0, 1, 2, ...
  Value size(const Size& size, DType dtype = DType::kI64);    ///< as a scalar

  /// Adds any operation by its name in the table, with all its attributes in order, except scan(),
  /// which takes a program. Broadcasts elementwise operands. Returns the results.
  std::vector<Value> apply(std::string_view operation, std::span<const Value> operands,
                           std::span<const Attribute> attributes = {});

  /// States that two sizes are equal; checked when the program runs. UsageError if they cannot be.
  void require(const Size& a, const Size& b);
  /// Whether they are equal for all sizes of inputs that the program takes.
  bool equal(const Size& a, const Size& b) const;
  /// The same size in one form: sizes that are equal() have the same text.
  Size canonical(const Size& size) const;
  /// a / b where that is a size for all values of the names in it, as in B*T*64 / (B*64).
  std::optional<Size> divide(const Size& a, const Size& b) const;

  /// The program so far; what is built later does not change it. UsageError without an output.
  Program build() const;
  /// Its text form (docs/ir.md).
  std::string text() const;

  explicit FusionBuilder(std::shared_ptr<Value::State> state) : state_(std::move(state)) {}
  const std::shared_ptr<Value::State>& state() const { return state_.checked(); }

 private:
  StatePointer<std::shared_ptr<Value::State>, "FusionBuilder"> state_;
};

/// A row of the table of operations.
struct OperationInfo {
  std::string name;
  std::string kind;    ///< elementwise, reduction, movement, creation or library
  std::string types;   ///< of elementwise operands: float, numeric, compare, test or logical
  std::string domain;  ///< where it is smooth: any, positive or nonzero
  std::size_t min_operands = 0;
  std::size_t max_operands = 0;
  std::size_t results = 0;
  std::vector<std::pair<std::string, std::string>> attributes;  ///< name, type
};
std::vector<OperationInfo> operations();

// --- gradients -----------------------------------------------------------------------------------

/// The gradients of a scalar, one of the shape and type of each value of `wrt`; zeros for one that
/// it does not depend on. They are values like others and can be differentiated again.
std::vector<Value> grad(const Value& scalar, std::span<const Value> wrt);
Value grad(const Value& scalar, const Value& wrt);
/// For each value of `wrt` the sum over i of cotangents[i] times d outputs[i] / d wrt.
std::vector<Value> vjp(std::span<const Value> outputs, std::span<const Value> cotangents,
                       std::span<const Value> wrt);

// --- elementwise: exp, tanh, maximum, lt, ... ----------------------------------------------------

#define SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient) \
  Value name(const Value& a);
#define SEGFUSE_BINARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a, \
                       gradient_b)                                                                \
  Value name(const Value& a, const Value& b);
#include "segfuse/ops.def"

Value where(const Value& condition, const Value& a, const Value& b);
Value cast(const Value& a, DType dtype);

inline Value operator-(const Value& a) { return neg(a); }
inline Value operator+(const Value& a, const Value& b) { return add(a, b); }
inline Value operator-(const Value& a, const Value& b) { return sub(a, b); }
inline Value operator*(const Value& a, const Value& b) { return mul(a, b); }
inline Value operator/(const Value& a, const Value& b) { return div(a, b); }
inline Value operator<(const Value& a, const Value& b) { return lt(a, b); }
inline Value operator<=(const Value& a, const Value& b) { return le(a, b); }
inline Value operator>(const Value& a, const Value& b) { return gt(a, b); }
inline Value operator>=(const Value& a, const Value& b) { return ge(a, b); }

// --- reductions: `axes` go; with `keep` they stay with size 1; no axes are all axes --------------

/// All axes of a value.
inline constexpr std::nullopt_t kAllAxes = std::nullopt;
using OptionalAxes = std::optional<Axes>;

Value sum(const Value& a, const OptionalAxes& axes = kAllAxes, bool keep = false);
Value prod(const Value& a, const OptionalAxes& axes = kAllAxes, bool keep = false);
/// UsageError for an axis of size 0; one that turns out to be empty in a run gives the least number
/// of the type (-infinity).
Value max(const Value& a, const OptionalAxes& axes = kAllAxes, bool keep = false);
/// As max: the greatest number of the type.
Value min(const Value& a, const OptionalAxes& axes = kAllAxes, bool keep = false);
Value mean(const Value& a, const OptionalAxes& axes = kAllAxes, bool keep = false);
Value logsumexp(const Value& a, const OptionalAxes& axes = kAllAxes, bool keep = false);
/// Index (i64) of the first greatest element.
Value argmax(const Value& a, std::int64_t axis, bool keep = false);
/// Sum of squared deviations over (count - correction): 0 for the variance, 1 for its estimate.
Value var(const Value& a, const OptionalAxes& axes = kAllAxes, bool keep = false,
          std::int64_t correction = 0);
struct Moments {
  Value mean;
  Value m2;  ///< sum of squared deviations from the mean
};
Moments welford(const Value& a, const OptionalAxes& axes = kAllAxes, bool keep = false);

// --- running results and order along an axis -----------------------------------------------------

/// y[t] = x[0] + ... + x[t]; with `reverse` from the end on. The others alike.
Value cumsum(const Value& a, std::int64_t axis, bool reverse = false);
Value cumprod(const Value& a, std::int64_t axis, bool reverse = false);
Value cummax(const Value& a, std::int64_t axis, bool reverse = false);
Value cummin(const Value& a, std::int64_t axis, bool reverse = false);
Value cumlogsumexp(const Value& a, std::int64_t axis, bool reverse = false);
/// y[t] = a[t] * y[t - 1] + b[t], with 0 before the first.
Value linear_scan(const Value& a, const Value& b, std::int64_t axis, bool reverse = false);

/// The results of a scan.
struct Scanned {
  std::vector<Value> carries;  ///< of the last step
  std::vector<Value> stacked;  ///< (length, ...): the outputs of all steps
};
/// Runs `body` for each of `length` steps along the first axis of the sequences, from the last to
/// the first if `reverse`. The inputs of the body are the carries, one step of each sequence, and
/// the constants, in this order. Its outputs are the next carries, of the same types, and then the
/// values to be stacked, in the order of the sequences. A name of a size in the body is the size of
/// that name in the program of the operands. The body is copied, so later additions to it have no
/// effect. It must not draw random numbers.
Scanned scan(const FusionBuilder& body, std::span<const Value> carries,
             std::span<const Value> sequences, std::span<const Value> constants, const Size& length,
             bool reverse = false);
struct Sorted {
  Value values;
  Value places;  ///< (i64) index of each value before sorting
};
/// In ascending order; the sort is stable, and NaN is greater than all numbers.
Sorted sort(const Value& a, std::int64_t axis, bool descending = false);

// --- movement ------------------------------------------------------------------------------------

Value permute(const Value& a, const Axes& perm);
Value transpose(const Value& a, std::int64_t axis_a = -2, std::int64_t axis_b = -1);
Value broadcast_to(const Value& a, const Sizes& shape);
Value unsqueeze(const Value& a, std::int64_t axis);  ///< `axis` counts in the result
Value squeeze(const Value& a, const Axes& axes);
Value reshape(const Value& a, const Sizes& shape);
/// [start, start + size) of one axis.
Value slice(const Value& a, std::int64_t axis, const Size& start, const Size& size);
Value pad(const Value& a, std::int64_t axis, const Size& low, const Size& high, double value = 0);
Value concat(const std::vector<Value>& parts, std::int64_t axis);
/// The parts along a new axis.
Value stack(const std::vector<Value>& parts, std::int64_t axis);
/// Replaces `axis` of a by the axes of the indices (i32 or i64, not negative).
Value take(const Value& a, const Value& indices, std::int64_t axis);
/// Takes the element that each index names along `axis`; the shape is that of the indices.
Value gather(const Value& a, const Value& indices, std::int64_t axis);
Value scatter_add(const Value& updates, const Value& indices, std::int64_t axis, const Size& size);
/// Windows: `axis` becomes (windows, size).
Value unfold(const Value& a, std::int64_t axis, std::int64_t size, std::int64_t stride = 1,
             std::int64_t dilation = 1);
Value fold(const Value& a, std::int64_t axis, const Size& extent, std::int64_t stride = 1,
           std::int64_t dilation = 1);

// --- library calls and random numbers ------------------------------------------------------------

/// (..., M, K) x (..., K, N), or a matrix on the right; each side may be stored transposed.
Value matmul(const Value& a, const Value& b, bool transpose_a = false, bool transpose_b = false);
/// Uniform f32 in [0, 1) from an i64[2] seed; every call of a program draws numbers of its own.
Value random_uniform(const Value& seed, const Sizes& shape);
/// Keeps each element with probability 1 - rate and divides it by that.
Value dropout(const Value& a, const Value& seed, double rate);

// --- compositions --------------------------------------------------------------------------------

Value softmax(const Value& a, std::int64_t axis = -1);
Value log_softmax(const Value& a, std::int64_t axis = -1);
Value gelu(const Value& a);  ///< exact: a * (1 + erf(a / sqrt 2)) / 2
/// a * (1 + tanh(sqrt(2 / pi) * (a + 0.044715 a^3))) / 2
Value gelu_tanh(const Value& a);
Value silu(const Value& a);  ///< a * sigmoid(a)
/// The nearest number in [low, high]; NaN stays.
Value clamp(const Value& a, const Value& low, const Value& high);
/// (a - mean) / sqrt(variance + epsilon) over the last axis, times scale, plus shift.
Value layer_norm(const Value& a, double epsilon = 1e-5);
Value layer_norm(const Value& a, const Value& scale, const Value& shift, double epsilon = 1e-5);
/// a / sqrt(mean(a^2) + epsilon) over the last axis, times scale.
Value rms_norm(const Value& a, double epsilon = 1e-6);
Value rms_norm(const Value& a, const Value& scale, double epsilon = 1e-6);
struct BatchNorm {
  Value value;
  Value mean;      ///< of the batch, for running statistics
  Value variance;  ///< of the batch, over count
};
/// a is (B, C, ...), scale and shift are (C): statistics over all axes but the second.
BatchNorm batch_norm(const Value& a, const Value& scale, const Value& shift, double epsilon = 1e-5);
/// The same with statistics (C) that are given.
Value batch_norm(const Value& a, const Value& mean, const Value& variance, const Value& scale,
                 const Value& shift, double epsilon = 1e-5);
/// a is (B, C, ...): statistics over the axes after the second, for each row and channel.
Value instance_norm(const Value& a, double epsilon = 1e-5);
Value instance_norm(const Value& a, const Value& scale, const Value& shift, double epsilon = 1e-5);

}  // namespace segfuse::ops

namespace segfuse {

// Programs on files: what `segfuse run` and Python's Fusion.from_text are made of.

/// The places among inputs() of those that a run of the program overwrites.
std::vector<std::size_t> overwritten_inputs(const Program& program);

/// The values of inputs that stand in comments of a program's file ("#: x = 0.5 inf 0*14"), by the
/// inputs' names. Errors as of examine_numerics().
std::map<std::string, Tensor> values_in_comments(const std::filesystem::path& file,
                                                 const SizeExamples& sizes = {});

/// A tensor from a file of NumPy's (.npy). DataError naming the file and what is wrong with it: no
/// .npy file, cut short, an element type that programs have not. Arrays of bfloat16 are those that
/// NumPy calls '<V2', as the package ml_dtypes writes them. Arrays in Fortran order become
/// row-major.
Tensor read_npy(const std::filesystem::path& path);
/// Whole or not at all; replaces a file that is there.
void write_npy(const std::filesystem::path& path, const Tensor& tensor);

}  // namespace segfuse
