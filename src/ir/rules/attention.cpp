// The rule of attention and of its gradients.

#include <fmt/core.h>

#include <string>

#include "ir/attention.h"
#include "ir/rules/infer.h"
#include "segfuse/error.h"

namespace segfuse::ir {
namespace {

class AttentionRule {
 public:
  AttentionRule(Fusion& fusion, Op op, std::span<const ValId> operands, const Attrs& attrs)
      : fusion_(fusion),
        op_(op),
        operands_(operands),
        parts_(attention_operands(fusion, op, operands)),
        ahead_(std::get<Extents>(attrs[attr_position(op, "ahead")])) {
    for (const ValId operand : operands)
      shapes_.push_back(fusion.canonical(fusion.val(operand).shape));
  }

  std::vector<ValueType> apply() const {
    check_types();
    const Extents& q = shapes_[0];
    const Extents& k = shapes_[1];
    const Extents& v = shapes_[2];
    const std::size_t rank = q.size();
    if (rank < 2 || k.size() != rank || v.size() != rank)
      fail(
          "needs (..., M, D), (..., N, D) and (..., N, E) with the same axes before them; found "
          "{}, {} and {}",
          text(0), text(1), text(2));
    for (std::size_t a = 0; a + 2 < rank; ++a) {
      need_equal(q[a], k[a], "the leading axes");
      need_equal(q[a], v[a], "the leading axes");
    }
    need_equal(q[rank - 1], k[rank - 1], "the inner sizes");
    need_equal(k[rank - 2], v[rank - 2], "the numbers of keys and values");
    Extents scores = q;
    scores.back() = k[rank - 2];
    if (parts_.bias) need_spread(*parts_.bias, scores, "the bias");
    if (parts_.mask) need_spread(*parts_.mask, scores, "the mask");
    if (!ahead_.empty() && ahead_.size() != 2)
      fail("ahead needs two sizes or none; found {}", ahead_.size());
    const DType dtype = fusion_.val(operands_[0]).dtype;
    const Extents rows(q.begin(), q.end() - 1);
    Extents result = q;
    result.back() = v.back();
    if (op_ == Op::attention) return {{dtype, result}, {attention_sums(dtype), rows}};
    need_shape(parts_.rest, rows, "the logarithms");
    need_shape(parts_.rest + 1, result, "the cotangent");
    need_shape(parts_.rest + 2, rows, "the sums of rows");
    return {{dtype, q}, {dtype, k}, {dtype, v}};
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw UsageError(
        fmt::format("{}: {}", info(op_).name, fmt::format(format, std::forward<Args>(args)...)));
  }
  std::string text(std::size_t i) const {
    return std::string(name_of(fusion_.val(operands_[i]).dtype)) + fusion_.to_string(shapes_[i]);
  }

  void check_types() const {
    const DType dtype = fusion_.val(operands_[0]).dtype;
    if (dtype != DType::kF32 && dtype != DType::kF64 && dtype != DType::kBF16)
      fail("needs f32, f64 or bf16; cast {} first", text(0));
    const DType sums = attention_sums(dtype);
    for (std::size_t i = 1; i < operands_.size(); ++i) {
      if (i == parts_.mask) continue;
      const bool of_sums = i == parts_.bias || i == parts_.rest || i == parts_.rest + 2;
      const DType expected = of_sums ? sums : dtype;
      if (fusion_.val(operands_[i]).dtype == expected) continue;
      if (expected == dtype)
        fail("operands must have one element type; found {} and {}", text(0), text(i));
      fail("with {}, the bias and sums of rows must be {}; found {}", text(0), name_of(expected),
           text(i));
    }
    const std::size_t named = 3 + (parts_.bias ? 1 : 0) + (parts_.mask ? 1 : 0);
    if (named != parts_.rest || (parts_.bias && parts_.mask && *parts_.bias > *parts_.mask))
      fail("a bias, then a mask of truth values may follow the values, each once");
  }
  void need_equal(const Extent& a, const Extent& b, std::string_view what) const {
    if (!fusion_.unify(a, b))
      fail("{} must agree; found {} and {}", what, fusion_.to_string(a), fusion_.to_string(b));
  }
  void need_shape(std::size_t i, const Extents& expected, std::string_view what) const {
    if (shapes_[i].size() != expected.size())
      fail("{} must be {}; found {}", what, fusion_.to_string(expected), text(i));
    for (std::size_t a = 0; a < expected.size(); ++a) need_equal(shapes_[i][a], expected[a], what);
  }
  void need_spread(std::size_t i, const Extents& scores, std::string_view what) const {
    if (shapes_[i].size() != scores.size())
      fail("{} must have the {} axes of the scores, or 1 for any; found {}", what, scores.size(),
           text(i));
    for (std::size_t a = 0; a < scores.size(); ++a)
      if (!shapes_[i][a].is_constant(1)) need_equal(shapes_[i][a], scores[a], what);
  }

  Fusion& fusion_;
  Op op_;
  std::span<const ValId> operands_;
  AttentionOperands parts_;
  const Extents& ahead_;
  std::vector<Extents> shapes_;
};

}  // namespace

std::vector<ValueType> infer_attention(Fusion& fusion, Op op, std::span<const ValId> operands,
                                       const Attrs& attrs) {
  return AttentionRule(fusion, op, operands, attrs).apply();
}

}  // namespace segfuse::ir
