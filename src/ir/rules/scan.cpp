// The rule of scan: what its body takes and gives is what comes and goes.

#include <fmt/core.h>

#include <string>

#include "base/check.h"
#include "ir/body.h"
#include "ir/rules/infer.h"

namespace segfuse::ir {
namespace {

class ScanRule {
 public:
  ScanRule(Fusion& fusion, std::span<const ValId> operands, const Attrs& attrs)
      : fusion_(fusion),
        operands_(operands),
        carries_(count(attrs, "carries")),
        sequences_(count(attrs, "sequences")),
        lengths_(std::get<Extents>(attrs[attr_position(Op::scan, "length")])),
        reverse_(std::get<std::int64_t>(attrs[attr_position(Op::scan, "reverse")])),
        body_(body_of(attrs)) {}

  std::vector<ValueType> apply() {
    check_counts();
    check_body();
    std::vector<Extents> shapes;
    for (std::size_t i = 0; i < operands_.size(); ++i) shapes.push_back(step_shape(i));
    try {
      return results(shapes);
    } catch (const UsageError& error) {
      if (std::string_view(error.what()).starts_with("scan:")) throw;
      fail("{}", error.what());
    }
  }

 private:
  template <class... Args>
  [[noreturn]] static void fail(fmt::format_string<Args...> format, Args&&... args) {
    throw UsageError("scan: " + fmt::format(format, std::forward<Args>(args)...));
  }
  static std::size_t count(const Attrs& attrs, std::string_view name) {
    const auto value = std::get<std::int64_t>(attrs[attr_position(Op::scan, name)]);
    if (value < 0) fail("the number of {} is {}; it must not be negative", name, value);
    return static_cast<std::size_t>(value);
  }
  static const Fusion& body_of(const Attrs& attrs) {
    const auto& body = std::get<Body>(attrs[attr_position(Op::scan, "body")]);
    SEGFUSE_CHECK(body.fusion != nullptr, "a scan without a body");
    return *body.fusion;
  }

  std::string text(DType dtype, const Extents& shape) const {
    return std::string(name_of(dtype)) + fusion_.to_string(shape);
  }
  std::string what(std::size_t i) const {
    if (i < carries_) return fmt::format("carry {}", i);
    if (i < carries_ + sequences_) return fmt::format("sequence {}", i - carries_);
    return fmt::format("constant {}", i - carries_ - sequences_);
  }

  void check_counts() const {
    if (carries_ + sequences_ == 0) fail("needs a carry or a sequence");
    if (carries_ + sequences_ > operands_.size())
      fail("{} operands were given for {} carries and {} sequences", operands_.size(), carries_,
           sequences_);
    if (lengths_.size() != 1) fail("length must be one size; found {}", lengths_.size());
    if (reverse_ != 0 && reverse_ != 1) fail("reverse must be 0 or 1; found {}", reverse_);
    if (body_.inputs().size() != operands_.size())
      fail("the body takes {} inputs and gets {}", body_.inputs().size(), operands_.size());
    if (body_.outputs().size() < carries_)
      fail("the body gives {} outputs, fewer than the {} carries", body_.outputs().size(),
           carries_);
    if (body_.outputs().empty()) fail("the body gives nothing");
  }

  void check_body() const {
    if (!body_.aliases().empty()) fail("the body must not overwrite its inputs");
    for (const ExprId id : body_.exprs())
      if (body_.expr(id).op == Op::random_uniform)
        fail(
            "the body draws random numbers, which would be the same in every step; draw them "
            "before the scan, as a sequence");
    for (std::size_t i = 0; i < carries_; ++i) {
      const Val& in = body_.val(body_.inputs()[i].val);
      const Val& out = body_.val(body_.outputs()[i].val);
      if (in.dtype != out.dtype || !body_.equal(in.shape, out.shape))
        fail("the body takes carry {} as {}{} and gives {}{}; they must be alike", i,
             name_of(in.dtype), body_.to_string(in.shape), name_of(out.dtype),
             body_.to_string(out.shape));
    }
  }

  /// What the body gets of an operand.
  Extents step_shape(std::size_t i) {
    const Val& operand = fusion_.val(operands_[i]);
    const DType expected = body_.val(body_.inputs()[i].val).dtype;
    Extents shape = fusion_.canonical(operand.shape);
    if (operand.dtype != expected)
      fail("{} is {}; the body takes {}", what(i), text(operand.dtype, shape), name_of(expected));
    if (i < carries_ || i >= carries_ + sequences_) return shape;
    if (shape.empty()) fail("{} has no axis to scan along", what(i));
    if (!fusion_.unify(shape[0], lengths_[0]))
      fail("{} has {} steps and the scan {}", what(i), fusion_.to_string(shape[0]),
           fusion_.to_string(lengths_[0]));
    shape.erase(shape.begin());
    return shape;
  }

  std::vector<ValueType> results(std::span<const Extents> shapes) {
    BodySizes sizes(fusion_, body_, shapes);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const Extents own = sizes.of(body_.val(body_.inputs()[i].val).shape);
      for (std::size_t a = 0; a < own.size(); ++a)
        if (!fusion_.unify(own[a], shapes[i][a]))
          fail("the body takes {} as {}; found {}", what(i), fusion_.to_string(own),
               fusion_.to_string(shapes[i]));
    }
    for (const auto& [left, right] : body_.storage().requirements)
      if (!fusion_.unify(sizes.of(left), sizes.of(right)))
        fail("the body needs the sizes {} and {} to agree", body_.to_string(left),
             body_.to_string(right));
    std::vector<ValueType> types;
    for (std::size_t i = 0; i < body_.outputs().size(); ++i) {
      const Val& output = body_.val(body_.outputs()[i].val);
      Extents shape = sizes.of(output.shape);
      if (i >= carries_) shape.insert(shape.begin(), lengths_[0]);
      types.push_back({output.dtype, std::move(shape)});
    }
    return types;
  }

  Fusion& fusion_;
  std::span<const ValId> operands_;
  std::size_t carries_;
  std::size_t sequences_;
  Extents lengths_;
  std::int64_t reverse_;
  const Fusion& body_;
};

}  // namespace

std::vector<ValueType> infer_scan(Fusion& fusion, std::span<const ValId> operands,
                                  const Attrs& attrs) {
  return ScanRule(fusion, operands, attrs).apply();
}

}  // namespace segfuse::ir
