// The adjoint of a scan is a scan from the other end: what reaches the carries of a step is what
// the step after it hands back. Its body is the vector-Jacobian product of the body, at the carries
// that the step began with, which the forward scan stacks as well.

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>

#include "compiler/autodiff.h"
#include "compiler/autodiff/rules.h"
#include "compiler/passes/passes.h"
#include "ir/body.h"

namespace segfuse::compiler {
namespace {

using ir::Body;
using ir::Builder;
using ir::Expr;
using ir::Extents;
using ir::Fusion;
using ir::Op;
using ir::ValId;

/// The names of the sizes that stand alone in an axis.
std::set<std::string> lone_sizes(const Fusion& fusion, ValId val) {
  std::set<std::string> names;
  for (const ir::Extent& size : fusion.canonical(fusion.val(val).shape))
    if (const auto symbol = size.as_symbol()) names.insert(fusion.to_string(ir::Extent(*symbol)));
  return names;
}

/// Whether all sizes that stand alone in this input do so in others.
bool is_spare(const Fusion& fusion, ValId input) {
  std::set<std::string> left = lone_sizes(fusion, input);
  for (const ir::Input& other : fusion.inputs())
    if (other.val != input)
      for (const std::string& name : lone_sizes(fusion, other.val)) left.erase(name);
  return left.empty();
}

class ScanAdjoint {
 public:
  ScanAdjoint(Builder& builder, ir::ExprId id, const std::vector<ValId>& cotangents,
              const std::vector<bool>& wanted)
      : b_(builder),
        e_(builder.fusion().expr(id)),
        cotangents_(cotangents),
        wanted_(wanted),
        body_(*e_.attr<Body>("body").fusion),
        carries_(static_cast<std::size_t>(e_.attr<std::int64_t>("carries"))),
        constants_(carries_ + static_cast<std::size_t>(e_.attr<std::int64_t>("sequences"))),
        back_(body_.name() + " backward") {}

  std::vector<ValId> run() {
    add_inputs();
    differentiate();
    remove_spare_inputs();
    const std::vector<ValId> saved = saved_carries();
    return handed_back(saved);
  }

 private:
  /// An input of the backward body, and what it gets: an operand of the forward scan, one of its
  /// results, or a sum that begins with 0.
  enum class Role { kCarry, kSum, kSaved, kOperand, kCotangent };
  struct Given {
    ValId input;
    Role role;
    std::size_t which;  ///< operand or result
  };

  /// One side of a product for all steps: what the scan has, or a further output of its body.
  struct Side {
    std::optional<Given> given;
    std::size_t output;
  };
  struct Product {
    std::size_t operand;
    Side a, b;
  };

  const ir::Val& in(std::size_t i) const { return body_.val(body_.inputs()[i].val); }
  const ir::Val& out(std::size_t i) const { return body_.val(body_.outputs()[i].val); }
  bool carries_gradient(std::size_t i) const { return is_float(in(i).dtype); }
  static DType sum_type(DType dtype) { return dtype == DType::kF64 ? dtype : DType::kF32; }

  ValId add(Role role, std::size_t which, const char* name, DType dtype, const Extents& shape) {
    const ValId input = back_.add_input(fmt::format("{}_{}", name, which), dtype,
                                        ir::same_names(back_, body_, shape));
    given_.push_back({input, role, which});
    return input;
  }

  /// In the order of a scan's operands: carries, sequences, constants.
  void add_inputs() {
    forward_.resize(e_.operands.size());
    from_.resize(body_.outputs().size());
    sums_.resize(e_.operands.size());
    for (std::size_t i = 0; i < carries_; ++i)
      if (carries_gradient(i)) from_[i] = add(Role::kCarry, i, "d_carry", in(i).dtype, in(i).shape);
    for (std::size_t i = constants_; i < e_.operands.size(); ++i)
      if (wanted_[i]) sums_[i] = add(Role::kSum, i, "sum", sum_type(in(i).dtype), in(i).shape);
    for (std::size_t i = 0; i < carries_; ++i)
      forward_[i] = add(Role::kSaved, i, "carry", in(i).dtype, in(i).shape);
    for (std::size_t i = carries_; i < constants_; ++i)
      forward_[i] = add(Role::kOperand, i, "sequence", in(i).dtype, in(i).shape);
    for (std::size_t i = carries_; i < from_.size(); ++i)
      if (cotangents_[i].valid())
        from_[i] = add(Role::kCotangent, i, "d_output", out(i).dtype, out(i).shape);
    for (std::size_t i = constants_; i < e_.operands.size(); ++i)
      forward_[i] = add(Role::kOperand, i, "constant", in(i).dtype, in(i).shape);
  }

  void differentiate() {
    const std::vector<ValId> results = ir::inline_body(back_, body_, forward_);
    std::vector<ValId> outputs;
    std::vector<ValId> cotangents;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!from_[i].valid()) continue;
      outputs.push_back(results[i]);
      cotangents.push_back(from_[i]);
    }
    std::vector<ValId> wrt;
    for (std::size_t i = 0; i < forward_.size(); ++i)
      if (i < carries_ ? carries_gradient(i) : wanted_[i]) wrt.push_back(forward_[i]);
    const std::vector<ValId> all = vjp(back_, outputs, cotangents, wrt);
    std::vector<ValId> by_operand(forward_.size());
    for (std::size_t i = 0, next = 0; i < forward_.size(); ++i)
      if (i < carries_ ? carries_gradient(i) : wanted_[i]) by_operand[i] = all[next++];
    Builder b(back_);
    for (std::size_t i = constants_; i < forward_.size(); ++i)
      if (sums_[i].valid() && is_product(by_operand[i])) multiply_later(i, by_operand[i]);
    for (std::size_t i = 0; i < carries_; ++i)
      if (by_operand[i].valid()) back_.add_output(by_operand[i], fmt::format("d_carry_{}", i));
    for (std::size_t i = constants_; i < forward_.size(); ++i)
      if (sums_[i].valid())
        back_.add_output(b.add(sums_[i], b.cast(by_operand[i], sum_type(in(i).dtype))),
                         fmt::format("sum_{}", i));
    for (std::size_t i = carries_; i < constants_; ++i)
      if (by_operand[i].valid()) back_.add_output(by_operand[i], fmt::format("d_sequence_{}", i));
    for (const ValId side : sides_) back_.add_output(side, "side of a product");
  }

  /// A^T B of two matrices: the sum over the steps is one product of the stacked A and B.
  bool is_product(ValId gradient) const {
    const ir::ExprId definition = back_.val(gradient).definition;
    if (!definition.valid()) return false;
    const Expr& e = back_.expr(definition);
    return e.op == Op::matmul && back_.val(e.operands[0]).shape.size() == 2 &&
           back_.val(e.operands[1]).shape.size() == 2 && e.attr<std::int64_t>("transpose_a") == 1 &&
           e.attr<std::int64_t>("transpose_b") == 0;
  }

  void multiply_later(std::size_t operand, ValId gradient) {
    const Expr& e = back_.expr(back_.val(gradient).definition);
    products_.push_back({operand, side(e.operands[0]), side(e.operands[1])});
    std::erase_if(given_, [&](const Given& given) { return given.input == sums_[operand]; });
    back_.remove_input(sums_[operand]);
    sums_[operand] = {};
  }

  /// What is there already is not stacked again.
  Side side(ValId val) {
    for (const Given& given : given_)
      if (given.input == val && (given.role != Role::kOperand || given.which < constants_) &&
          (given.role == Role::kSaved || given.role == Role::kOperand ||
           given.role == Role::kCotangent))
        return {given, 0};
    const auto known = std::find(sides_.begin(), sides_.end(), val);
    const auto place = static_cast<std::size_t>(known - sides_.begin());
    if (known == sides_.end()) sides_.push_back(val);
    return {std::nullopt, place};
  }

  /// What the product does not read is not kept.
  void remove_spare_inputs() {
    remove_dead_code(back_);
    auto steps = std::count_if(given_.begin(), given_.end(),
                               [&](const Given& given) { return !is_constant(given); });
    std::erase_if(given_, [&](const Given& given) {
      if (steps == 1 && !is_constant(given)) return false;  // a scan needs an input by steps
      if (given.role == Role::kCarry || given.role == Role::kSum) return false;
      if (!back_.val(given.input).uses.empty() || back_.is_output(given.input)) return false;
      if (!is_spare(back_, given.input)) return false;
      back_.remove_input(given.input);
      steps -= is_constant(given) ? 0 : 1;
      return true;
    });
  }

  /// By carry: what each step began with. The forward scan is written again with them.
  std::vector<ValId> saved_carries() {
    std::vector<ValId> saved(carries_);
    Fusion keeping = body_;
    std::vector<std::size_t> kept;
    std::vector<Given> all = given_;
    for (const Product& product : products_)
      for (const Side& one : {product.a, product.b})
        if (one.given) all.push_back(*one.given);
    for (const Given& given : all)
      if (given.role == Role::kSaved &&
          std::find(kept.begin(), kept.end(), given.which) == kept.end()) {
        keeping.add_output(body_.inputs()[given.which].val, fmt::format("carry_{}", given.which));
        kept.push_back(given.which);
      }
    if (kept.empty()) return saved;
    ir::Attrs attrs = e_.attrs;
    attrs[ir::attr_position(Op::scan, "body")] =
        Body{std::make_shared<const Fusion>(std::move(keeping))};
    const std::vector<ValId> results = b_.make_all(Op::scan, e_.operands, std::move(attrs));
    for (std::size_t i = 0; i < e_.results.size(); ++i)
      b_.fusion().redirect_uses(e_.results[i], results[i]);
    for (std::size_t i = 0; i < kept.size(); ++i) saved[kept[i]] = results[e_.results.size() + i];
    return saved;
  }

  ValId operand_for(const Given& given, const std::vector<ValId>& saved) {
    const auto zeros = [&](ValId like, DType dtype) {
      return b_.full(0, b_.fusion().canonical(b_.val(like).shape), dtype);
    };
    switch (given.role) {
      case Role::kCarry: {
        const ValId known = cotangents_[given.which];
        const ValId like = e_.operands[given.which];
        return known.valid() ? known : zeros(like, b_.val(like).dtype);
      }
      case Role::kSum: {
        const DType type = b_.val(e_.operands[given.which]).dtype;
        return zeros(e_.operands[given.which], sum_type(type));
      }
      case Role::kSaved: return saved[given.which];
      case Role::kOperand: return e_.operands[given.which];
      case Role::kCotangent: break;
    }
    return cotangents_[given.which];
  }

  /// Whether an input of the backward body is the same in all steps.
  bool is_constant(const Given& given) const {
    return given.role == Role::kOperand && given.which >= constants_;
  }

  /// The results of the backward scan.
  std::vector<ValId> go_back(const std::vector<ValId>& saved) {
    if (back_.outputs().empty()) return {};
    std::vector<ValId> operands;
    std::int64_t carries = 0;
    std::int64_t sequences = 0;
    for (const Given& given : given_) {
      operands.push_back(operand_for(given, saved));
      const bool carry = given.role == Role::kCarry || given.role == Role::kSum;
      carries += carry ? 1 : 0;
      sequences += !carry && !is_constant(given) ? 1 : 0;
    }
    const std::int64_t reverse = 1 - e_.attr<std::int64_t>("reverse");
    return b_.make_all(Op::scan, std::move(operands),
                       {carries, sequences, e_.attr<Extents>("length"), reverse,
                        Body{std::make_shared<const Fusion>(std::move(back_))}});
  }

  std::vector<ValId> handed_back(const std::vector<ValId>& saved) {
    const std::vector<ValId> all = go_back(saved);
    std::vector<ValId> result(e_.operands.size());
    std::size_t next = 0;
    for (std::size_t i = 0; i < carries_; ++i)
      if (carries_gradient(i)) result[i] = all[next++];
    for (std::size_t i = constants_; i < result.size(); ++i)
      if (sums_[i].valid()) result[i] = b_.cast(all[next++], in(i).dtype);
    for (std::size_t i = carries_; i < constants_; ++i)
      if (wanted_[i]) result[i] = all[next++];
    const auto stacked = [&](const Side& one) {
      const ValId val = one.given ? operand_for(*one.given, saved) : all[next + one.output];
      const Extents shape = b_.fusion().canonical(b_.val(val).shape);
      return b_.reshape(val, {shape[0] * shape[1], shape[2]});
    };
    for (const Product& product : products_)
      result[product.operand] = b_.matmul(stacked(product.a), stacked(product.b), true, false);
    for (std::size_t i = 0; i < result.size(); ++i)
      if (!wanted_[i]) result[i] = {};
    return result;
  }

  Builder& b_;
  const Expr e_;
  const std::vector<ValId>& cotangents_;
  const std::vector<bool>& wanted_;
  const Fusion& body_;
  std::size_t carries_;
  std::size_t constants_;  ///< the first operand that is one
  Fusion back_;
  std::vector<Given> given_;
  std::vector<ValId> forward_;     ///< by operand
  std::vector<ValId> from_;        ///< by result: its cotangent within a step
  std::vector<ValId> sums_;        ///< by operand: of constants
  std::vector<Product> products_;  ///< gradients of constants that are no sums
  std::vector<ValId> sides_;
};

}  // namespace

std::vector<ValId> scan_cotangents(Builder& builder, ir::ExprId id,
                                   const std::vector<ValId>& cotangents,
                                   const std::vector<bool>& wanted) {
  return ScanAdjoint(builder, id, cotangents, wanted).run();
}

}  // namespace segfuse::compiler
