#include "ir/rules/infer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"

namespace segfuse::ir {
namespace {

/// One use of a rule: the operation with its operands and attributes, and the errors it can give.
class Rule {
 public:
  Rule(Fusion& fusion, Op op, std::span<const ValId> operands, const Attrs& attrs)
      : fusion_(fusion), op_(op), operands_(operands), attrs_(attrs) {
    for (const ValId operand : operands)
      shapes_.push_back(fusion.canonical(fusion.val(operand).shape));
  }

  std::vector<ValueType> apply();

 private:
  const Val& operand(std::size_t i) const { return fusion_.val(operands_[i]); }
  const Extents& shape(std::size_t i) const { return shapes_[i]; }
  template <class T>
  const T& attr(std::string_view name) const {
    return std::get<T>(attrs_[attr_position(op_, name)]);
  }
  std::string text(std::size_t i) const {
    return std::string(name_of(operand(i).dtype)) + fusion_.to_string(shape(i));
  }
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw UsageError(
        fmt::format("{}: {}", info(op_).name, fmt::format(format, std::forward<Args>(args)...)));
  }

  void check_counts() const;
  void check_attrs();
  void need_representable(double value, DType dtype) const;
  Extent window(std::int64_t size, std::int64_t dilation) const;
  void need_equal(const Extent& a, const Extent& b, std::string_view what) const;
  void need_rank(std::size_t i, std::size_t rank, std::string_view what) const;
  void need_dtype(std::size_t i, DType dtype) const;
  void need_same_dtype(std::size_t first, std::size_t last) const;
  std::size_t axis(std::int64_t value, std::size_t rank) const;
  std::vector<bool> axis_set(std::span<const std::int64_t> axes, std::size_t rank) const;
  void need_same_shapes() const;

  DType elementwise_dtype() const;
  std::vector<ValueType> elementwise() const;
  std::vector<ValueType> reduction() const;
  std::vector<ValueType> movement() const;
  std::vector<ValueType> creation() const;
  std::vector<ValueType> opaque() const;
  Extents permuted() const;
  Extents broadcasted() const;
  Extents squeezed() const;
  Extents reshaped() const;
  Extents sliced() const;
  Extents padded() const;
  Extents concatenated() const;
  Extents taken() const;
  Extents gathered() const;
  Extents scattered() const;
  Extents unfolded() const;
  Extents folded() const;
  ValueType multiplied() const;
  /// An operation along one axis of numbers, with an attribute that is 0 or 1.
  void need_line(std::string_view flag) const;
  ValueType scanned() const;
  std::vector<ValueType> sorted() const;
  std::vector<ValueType> semicrf() const;

  Fusion& fusion_;
  Op op_;
  std::span<const ValId> operands_;
  Attrs attrs_;                  // sizes canonical
  std::vector<Extents> shapes_;  // of the operands, canonical when the rule began
};

// --- checks
// -----------------------------------------------------------------------

void Rule::check_counts() const {
  const OpInfo& rules = info(op_);
  if (operands_.size() < rules.min_operands || operands_.size() > rules.max_operands) {
    const std::string expected =
        rules.min_operands == rules.max_operands
            ? std::to_string(rules.min_operands)
            : fmt::format("{} to {}", rules.min_operands, rules.max_operands);
    fail("{} operands were given, {} are expected", operands_.size(), expected);
  }
  if (attrs_.size() != rules.attrs.size())
    fail("{} attributes were given, {} are expected", attrs_.size(), rules.attrs.size());
}

void Rule::check_attrs() {
  for (std::size_t i = 0; i < attrs_.size(); ++i) {
    if (attrs_[i].index() != static_cast<std::size_t>(info(op_).attrs[i].type))
      fail("the attribute '{}' has the wrong type", info(op_).attrs[i].name);
    if (auto* extents = std::get_if<Extents>(&attrs_[i])) *extents = fusion_.canonical(*extents);
  }
}

void Rule::need_representable(double value, DType dtype) const {
  if (is_float(dtype)) return;
  const double low = dtype == DType::kI64 ? -0x1p63 : dtype == DType::kI32 ? -0x1p31 : 0.0;
  const double end = dtype == DType::kI64 ? 0x1p63 : dtype == DType::kI32 ? 0x1p31 : 2.0;
  if (!(value >= low && value < end && value == std::floor(value)))
    fail("the value {} does not fit {}", value, name_of(dtype));
}

void Rule::need_equal(const Extent& a, const Extent& b, std::string_view what) const {
  if (!fusion_.unify(a, b))
    fail("{} must agree; found {} and {}", what, fusion_.to_string(a), fusion_.to_string(b));
}

void Rule::need_rank(std::size_t i, std::size_t rank, std::string_view what) const {
  if (shape(i).size() != rank) fail("{} must have {} axes; found {}", what, rank, text(i));
}

void Rule::need_dtype(std::size_t i, DType dtype) const {
  if (operand(i).dtype != dtype)
    fail("operand {} must be {}; found {}", i, name_of(dtype), text(i));
}

void Rule::need_same_dtype(std::size_t first, std::size_t last) const {
  for (std::size_t i = first + 1; i < last; ++i)
    if (operand(i).dtype != operand(first).dtype)
      fail("operands must have one element type; found {} and {}", text(first), text(i));
}

std::size_t Rule::axis(std::int64_t value, std::size_t rank) const {
  if (value < 0 || value >= static_cast<std::int64_t>(rank))
    fail("axis {} does not exist; the operand has {} axes", value, rank);
  return static_cast<std::size_t>(value);
}

std::vector<bool> Rule::axis_set(std::span<const std::int64_t> axes, std::size_t rank) const {
  std::vector<bool> set(rank, false);
  std::int64_t last = -1;
  for (const std::int64_t value : axes) {
    set[axis(value, rank)] = true;
    if (value <= last) fail("the axes must be ascending and each given once");
    last = value;
  }
  return set;
}

void Rule::need_same_shapes() const {
  for (std::size_t i = 1; i < operands_.size(); ++i) {
    if (shape(i).size() != shape(0).size())
      fail("operands must have one shape (broadcast first); found {} and {}", text(0), text(i));
    for (std::size_t a = 0; a < shape(0).size(); ++a)
      if (!fusion_.unify(shape(0)[a], shape(i)[a]))
        fail("operands must have one shape (broadcast first); found {} and {}", text(0), text(i));
  }
}

// --- elementwise and reductions
// ------------------------------------------------------------------------------------

DType Rule::elementwise_dtype() const {
  if (op_ == Op::cast) return attr<DType>("dtype");
  if (op_ == Op::where) {
    need_dtype(0, DType::kBool);
    need_same_dtype(1, 3);
    return operand(1).dtype;
  }
  need_same_dtype(0, operands_.size());
  const DType dtype = operand(0).dtype;
  switch (info(op_).rule) {
    case DTypeRule::kFloat:
      if (!is_float(dtype)) fail("needs floating point operands; found {}", text(0));
      return dtype;
    case DTypeRule::kTest:
      if (!is_float(dtype)) fail("needs floating point operands; found {}", text(0));
      return DType::kBool;
    case DTypeRule::kNumeric:
      if (dtype == DType::kBool) fail("needs numbers; found {}", text(0));
      return dtype;
    case DTypeRule::kCompare: return DType::kBool;
    case DTypeRule::kLogical:
      if (dtype != DType::kBool) fail("needs bool operands; found {}", text(0));
      return dtype;
    case DTypeRule::kInteger:
      if (!is_integer(dtype)) fail("needs integers; found {}", text(0));
      return dtype;
    case DTypeRule::kNone: break;
  }
  throw InternalError(fmt::format("no type rule for '{}'", info(op_).name));
}

std::vector<ValueType> Rule::elementwise() const {
  need_same_shapes();
  return {{elementwise_dtype(), shape(0)}};
}

std::vector<ValueType> Rule::reduction() const {
  const DType dtype = operand(0).dtype;
  const auto& axes = attr<std::vector<std::int64_t>>("axes");
  const std::vector<bool> reduced = axis_set(axes, shape(0).size());
  Extents kept;
  for (std::size_t i = 0; i < reduced.size(); ++i)
    if (!reduced[i]) kept.push_back(shape(0)[i]);
  if (dtype == DType::kBool) fail("needs numbers; cast {} first", text(0));
  switch (as<ReductionOp>(op_)) {
    case ReductionOp::argmax:
      if (axes.size() != 1) fail("works along exactly one axis; {} were given", axes.size());
      return {{DType::kI64, kept}};
    case ReductionOp::welford:
    case ReductionOp::logsumexp:
      if (!is_float(dtype)) fail("needs a floating point operand; found {}", text(0));
      break;
    case ReductionOp::sum:
    case ReductionOp::prod:
    case ReductionOp::max:
    case ReductionOp::min: break;
  }
  return std::vector<ValueType>(info(op_).max_results, {dtype, kept});
}

// --- movement
// -----------------------------------------------------------------------

Extents Rule::permuted() const {
  const auto& perm = attr<std::vector<std::int64_t>>("perm");
  if (perm.size() != shape(0).size())
    fail("perm has {} entries; the operand is {}", perm.size(), text(0));
  std::vector<bool> seen(perm.size(), false);
  Extents result;
  for (const std::int64_t from : perm) {
    const std::size_t a = axis(from, perm.size());
    if (seen[a]) fail("perm names axis {} twice", from);
    seen[a] = true;
    result.push_back(shape(0)[a]);
  }
  return result;
}

Extents Rule::broadcasted() const {
  const auto& axes = attr<std::vector<std::int64_t>>("axes");
  const auto& target = attr<Extents>("shape");
  if (axes.size() != shape(0).size())
    fail("axes has {} entries; the operand is {}", axes.size(), text(0));
  (void)axis_set(axes, target.size());
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const Extent& to = target[static_cast<std::size_t>(axes[i])];
    if (shape(0)[i].is_constant(1)) continue;
    if (!fusion_.unify(shape(0)[i], to))
      fail("{} cannot be broadcast to {}: axis {} is neither 1 nor equal", text(0),
           fusion_.to_string(target), i);
  }
  return target;
}

Extents Rule::squeezed() const {
  const std::vector<bool> drop = axis_set(attr<std::vector<std::int64_t>>("axes"), shape(0).size());
  Extents result;
  for (std::size_t i = 0; i < drop.size(); ++i) {
    if (drop[i]) {
      need_equal(shape(0)[i], 1, "a squeezed axis and 1");
    } else {
      result.push_back(shape(0)[i]);
    }
  }
  return result;
}

Extents Rule::reshaped() const {
  const auto& target = attr<Extents>("shape");
  Extent from = 1;
  Extent to = 1;
  for (const Extent& extent : shape(0)) from = from * extent;
  for (const Extent& extent : target) to = to * extent;
  if (!fusion_.unify(from, to))
    fail("{} and {} have different numbers of elements", text(0), fusion_.to_string(target));
  return target;
}

Extents Rule::sliced() const {
  const auto& starts = attr<Extents>("starts");
  const auto& sizes = attr<Extents>("sizes");
  if (starts.size() != shape(0).size() || sizes.size() != shape(0).size())
    fail("starts and sizes need one entry an axis; the operand is {}", text(0));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Extent rest = fusion_.canonical(shape(0)[i] - starts[i] - sizes[i]);
    const Extent start = fusion_.canonical(starts[i]);
    const Extent size = fusion_.canonical(sizes[i]);
    if ((rest.is_constant() && rest.constant() < 0) ||
        (start.is_constant() && start.constant() < 0) ||
        (size.is_constant() && size.constant() < 0))
      fail("[{}, {} + {}) is outside axis {} of {}", fusion_.to_string(start),
           fusion_.to_string(start), fusion_.to_string(size), i, text(0));
  }
  return sizes;
}

Extents Rule::padded() const {
  const auto& low = attr<Extents>("low");
  const auto& high = attr<Extents>("high");
  if (low.size() != shape(0).size() || high.size() != shape(0).size())
    fail("low and high need one entry an axis; the operand is {}", text(0));
  need_representable(attr<double>("value"), operand(0).dtype);
  Extents result;
  for (std::size_t i = 0; i < low.size(); ++i) {
    if ((low[i].is_constant() && low[i].constant() < 0) ||
        (high[i].is_constant() && high[i].constant() < 0))
      fail("padding must not be negative; axis {} has {} and {}", i, fusion_.to_string(low[i]),
           fusion_.to_string(high[i]));
    result.push_back(shape(0)[i] + low[i] + high[i]);
  }
  return result;
}

Extents Rule::concatenated() const {
  const std::size_t along = axis(attr<std::int64_t>("axis"), shape(0).size());
  need_same_dtype(0, operands_.size());
  Extents result = shape(0);
  for (std::size_t i = 1; i < operands_.size(); ++i) {
    need_rank(i, result.size(), "every operand");
    for (std::size_t a = 0; a < result.size(); ++a)
      if (a != along) need_equal(result[a], shape(i)[a], "the other axes");
    result[along] = result[along] + shape(i)[along];
  }
  return result;
}

Extents Rule::taken() const {
  const std::size_t along = axis(attr<std::int64_t>("axis"), shape(0).size());
  if (!is_integer(operand(1).dtype)) fail("indices must be i32 or i64; found {}", text(1));
  Extents result(shape(0).begin(), shape(0).begin() + static_cast<std::ptrdiff_t>(along));
  result.insert(result.end(), shape(1).begin(), shape(1).end());
  result.insert(result.end(), shape(0).begin() + static_cast<std::ptrdiff_t>(along) + 1,
                shape(0).end());
  return result;
}

Extents Rule::gathered() const {
  const std::size_t along = axis(attr<std::int64_t>("axis"), shape(0).size());
  if (!is_integer(operand(1).dtype)) fail("indices must be i32 or i64; found {}", text(1));
  need_rank(1, shape(0).size(), "indices");
  for (std::size_t a = 0; a < shape(0).size(); ++a)
    if (a != along) need_equal(shape(0)[a], shape(1)[a], "the other axes");
  return shape(1);
}

Extents Rule::scattered() const {
  const auto& size = attr<Extents>("size");
  if (size.size() != 1) fail("size needs one entry; {} were given", size.size());
  if (!is_integer(operand(1).dtype)) fail("indices must be i32 or i64; found {}", text(1));
  const std::size_t rank = shape(1).size();
  const auto first = attr<std::int64_t>("axis");
  if (first < 0 || rank > shape(0).size() ||
      static_cast<std::size_t>(first) > shape(0).size() - rank)
    fail("updates {} do not hold the axes of indices {} at axis {}", text(0), text(1), first);
  const auto along = static_cast<std::size_t>(first);
  Extents result(shape(0).begin(), shape(0).begin() + static_cast<std::ptrdiff_t>(along));
  for (std::size_t a = 0; a < rank; ++a)
    need_equal(shape(0)[along + a], shape(1)[a], "updates and indices");
  result.push_back(size[0]);
  result.insert(result.end(), shape(0).begin() + static_cast<std::ptrdiff_t>(along + rank),
                shape(0).end());
  return result;
}

/// Elements from the first to the last of a window.
Extent Rule::window(std::int64_t size, std::int64_t dilation) const {
  return Extent(dilation) * (Extent(size) - 1) + 1;
}

Extents Rule::unfolded() const {
  const std::size_t along = axis(attr<std::int64_t>("axis"), shape(0).size());
  const auto size = attr<std::int64_t>("size");
  const auto stride = attr<std::int64_t>("stride");
  const auto dilation = attr<std::int64_t>("dilation");
  if (size < 1 || stride < 1 || dilation < 1)
    fail("size, stride and dilation must be positive; found {}, {} and {}", size, stride, dilation);
  const Extent last_start = shape(0)[along] - window(size, dilation);
  if (last_start.is_constant() && last_start.constant() < 0)
    fail("a window of {} elements does not fit axis {} of {}", window(size, dilation).constant(),
         along, text(0));
  Extents result = shape(0);
  result[along] = fusion_.floordiv(last_start, stride) + 1;
  result.insert(result.begin() + static_cast<std::ptrdiff_t>(along) + 1, Extent(size));
  return result;
}

Extents Rule::folded() const {
  const auto& extent = attr<Extents>("extent");
  const auto first = attr<std::int64_t>("axis");
  const auto stride = attr<std::int64_t>("stride");
  const auto dilation = attr<std::int64_t>("dilation");
  if (extent.size() != 1) fail("extent needs one entry; {} were given", extent.size());
  if (first < 0 || first >= static_cast<std::int64_t>(shape(0).size()) - 1)
    fail("{} does not hold windows at axis {}", text(0), first);
  const auto along = static_cast<std::size_t>(first);
  if (stride < 1 || dilation < 1)
    fail("stride and dilation must be positive; found {} and {}", stride, dilation);
  const std::int64_t size = shape(0)[along + 1].constant();
  if (!shape(0)[along + 1].is_constant() || size < 1)
    fail("the window size must be a positive number; found {}", text(0));
  const Extent last_start = extent[0] - window(size, dilation);
  need_equal(shape(0)[along], fusion_.floordiv(last_start, stride) + 1,
             "the number of windows and the extent");
  Extents result = shape(0);
  result.erase(result.begin() + static_cast<std::ptrdiff_t>(along) + 1);
  result[along] = extent[0];
  return result;
}

std::vector<ValueType> Rule::movement() const {
  const DType dtype = operand(0).dtype;
  switch (as<MovementOp>(op_)) {
    case MovementOp::permute: return {{dtype, permuted()}};
    case MovementOp::broadcast: return {{dtype, broadcasted()}};
    case MovementOp::squeeze: return {{dtype, squeezed()}};
    case MovementOp::reshape: return {{dtype, reshaped()}};
    case MovementOp::slice: return {{dtype, sliced()}};
    case MovementOp::pad: return {{dtype, padded()}};
    case MovementOp::concat: return {{dtype, concatenated()}};
    case MovementOp::take: return {{dtype, taken()}};
    case MovementOp::gather: return {{dtype, gathered()}};
    case MovementOp::scatter_add: return {{dtype, scattered()}};
    case MovementOp::unfold: return {{dtype, unfolded()}};
    case MovementOp::fold: return {{dtype, folded()}};
  }
  throw InternalError(fmt::format("no shape rule for '{}'", info(op_).name));
}

// --- creation and opaque
// -----------------------------------------------------------------------

std::vector<ValueType> Rule::creation() const {
  switch (as<CreationOp>(op_)) {
    case CreationOp::constant:
      need_representable(attr<double>("value"), attr<DType>("dtype"));
      return {{attr<DType>("dtype"), {}}};
    case CreationOp::iota:
    case CreationOp::extent: {
      const auto& sizes = attr<Extents>(op_ == Op::iota ? "length" : "size");
      const DType dtype = attr<DType>("dtype");
      if (sizes.size() != 1) fail("needs one size; {} were given", sizes.size());
      if (dtype == DType::kBool) fail("cannot be bool");
      return {{dtype, op_ == Op::iota ? sizes : Extents{}}};
    }
    case CreationOp::random_uniform:
      need_dtype(0, DType::kI64);
      need_rank(0, 1, "the seed");
      need_equal(shape(0)[0], 2, "the length of the seed and 2");
      if (attr<std::int64_t>("stream") < 0)
        fail("stream must not be negative; found {}", attr<std::int64_t>("stream"));
      return {{DType::kF32, attr<Extents>("shape")}};
  }
  throw InternalError(fmt::format("no shape rule for '{}'", info(op_).name));
}

ValueType Rule::multiplied() const {
  need_same_dtype(0, 2);
  if (!is_float(operand(0).dtype)) fail("needs floating point operands; found {}", text(0));
  for (const char* flag : {"transpose_a", "transpose_b"})
    if (const auto value = attr<std::int64_t>(flag); value != 0 && value != 1)
      fail("{} must be 0 or 1; found {}", flag, value);
  Extents a = shape(0);
  Extents b = shape(1);
  if (a.size() < 2 || b.size() < 2) fail("needs matrices; found {} and {}", text(0), text(1));
  if (attr<std::int64_t>("transpose_a")) std::swap(a[a.size() - 1], a[a.size() - 2]);
  if (attr<std::int64_t>("transpose_b")) std::swap(b[b.size() - 1], b[b.size() - 2]);
  if (b.size() != 2 && b.size() != a.size())
    fail("the right side must be a matrix or have the leading axes of the left; found {} and {}",
         text(0), text(1));
  if (b.size() != 2)
    for (std::size_t i = 0; i + 2 < a.size(); ++i) need_equal(a[i], b[i], "the leading axes");
  need_equal(a.back(), b[b.size() - 2], "the inner sizes");
  a.back() = b.back();
  return {operand(0).dtype, a};
}

void Rule::need_line(std::string_view flag) const {
  (void)axis(attr<std::int64_t>("axis"), shape(0).size());
  if (const auto value = attr<std::int64_t>(flag); value != 0 && value != 1)
    fail("{} must be 0 or 1; found {}", flag, value);
  if (operand(0).dtype == DType::kBool) fail("needs numbers; cast {} first", text(0));
}

ValueType Rule::scanned() const {
  need_line("reverse");
  need_same_dtype(0, operands_.size());
  need_same_shapes();
  if ((op_ == Op::linear_scan || op_ == Op::cumlogsumexp) && !is_float(operand(0).dtype))
    fail("needs floating point operands; found {}", text(0));
  return {operand(0).dtype, shape(0)};
}

std::vector<ValueType> Rule::sorted() const {
  need_line("descending");
  return {{operand(0).dtype, shape(0)}, {DType::kI64, shape(0)}};
}

std::vector<ValueType> Rule::semicrf() const {
  const std::size_t count = operands_.size() - (op_ == Op::semicrf_loss_grad ? 1 : 0);
  if (count != 8 && count != 10)
    fail("start and end scores come together; {} operands were given", operands_.size());
  const std::size_t scores = count - 3;
  need_same_dtype(0, scores);
  const DType dtype = operand(0).dtype;
  if (dtype != DType::kF32 && dtype != DType::kF64)
    fail("scores must be f32 or f64; found {}", text(0));
  need_rank(0, 3, "emission");
  need_rank(1, 3, "transition");
  need_rank(2, 2, "duration");
  const Extent& batch = shape(0)[0];
  const Extent& time = shape(0)[1];
  const Extent& classes = shape(0)[2];
  auto need_shape = [&](std::size_t i, const Extents& expected, std::string_view what) {
    need_rank(i, expected.size(), what);
    for (std::size_t a = 0; a < expected.size(); ++a) need_equal(shape(i)[a], expected[a], what);
  };
  const Extent durations = shape(2)[0];
  const Extent slices = shape(1)[0].is_constant(1) ? Extent(1) : durations;
  need_shape(1, {slices, classes, classes}, "transition (1 or K, C, C)");
  need_shape(2, {durations, classes}, "duration (K, C)");
  need_shape(3, {classes}, "initial (C)");
  need_shape(4, {classes}, "final (C)");
  for (std::size_t i = 5; i < scores; ++i)
    need_shape(i, {batch, time, classes}, "start and end (B, T, C)");
  need_shape(scores, {batch}, "lengths (B)");
  need_shape(scores + 1, {batch, time}, "labels (B, T)");
  need_shape(scores + 2, {batch, time}, "segment_start (B, T)");
  need_dtype(scores, DType::kI64);
  need_dtype(scores + 1, DType::kI32);
  need_dtype(scores + 2, DType::kBool);
  if (op_ == Op::semicrf_loss) return {{dtype, {batch}}};
  need_shape(count, {batch}, "weights (B)");
  need_dtype(count, dtype);
  std::vector<ValueType> results;
  for (std::size_t i = 0; i < scores; ++i) results.push_back({dtype, shape(i)});
  return results;
}

std::vector<ValueType> Rule::opaque() const {
  switch (as<OpaqueOp>(op_)) {
    case OpaqueOp::matmul: return {multiplied()};
    case OpaqueOp::cumsum:
    case OpaqueOp::cumprod:
    case OpaqueOp::cummax:
    case OpaqueOp::cummin:
    case OpaqueOp::cumlogsumexp:
    case OpaqueOp::linear_scan: return {scanned()};
    case OpaqueOp::scan: return infer_scan(fusion_, operands_, attrs_);
    case OpaqueOp::sort: return sorted();
    case OpaqueOp::attention:
    case OpaqueOp::attention_grad: return infer_attention(fusion_, op_, operands_, attrs_);
    case OpaqueOp::semicrf_loss:
    case OpaqueOp::semicrf_loss_grad: break;
  }
  return semicrf();
}

std::vector<ValueType> Rule::apply() {
  check_counts();
  check_attrs();
  std::vector<ValueType> types;
  switch (info(op_).op_class) {
    case OpClass::kElementwise: types = elementwise(); break;
    case OpClass::kReduction: types = reduction(); break;
    case OpClass::kMovement: types = movement(); break;
    case OpClass::kCreation: types = creation(); break;
    case OpClass::kOpaque: types = opaque(); break;
  }
  for (ValueType& type : types) {
    type.shape = fusion_.canonical(type.shape);
    for (const Extent& extent : type.shape)
      if (extent.is_constant() && extent.constant() < 0)
        fail("the result would have the shape {}; sizes must not be negative",
             fusion_.to_string(type.shape));
  }
  return types;
}

}  // namespace

std::vector<ValueType> infer(Fusion& fusion, Op op, std::span<const ValId> operands,
                             const Attrs& attrs) {
  return Rule(fusion, op, operands, attrs).apply();
}

}  // namespace segfuse::ir
