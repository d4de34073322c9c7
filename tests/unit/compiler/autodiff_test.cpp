// Every gradient rule against central differences in double, through the interpreter.
#include "compiler/autodiff.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "base/rng.h"
#include "ir/builder.h"
#include "ir/interpret/interpreter.h"
#include "segfuse/error.h"

namespace segfuse::compiler {
namespace {

using ir::Builder;
using ir::Domain;
using ir::Extents;
using ir::Op;
using ir::ValId;

/// A function of f64 inputs (the integer and bool ones are made inside with constants).
struct Case {
  std::string name;
  std::vector<Op> covers;
  std::vector<Shape> inputs;
  std::function<ValId(Builder&, const std::vector<ValId>&)> build;
  Domain domain = Domain::kAny;
};

Tensor draw(const Shape& shape, Domain domain, Rng& rng) {
  Tensor tensor(DType::kF64, shape);
  for (double& x : tensor.span<double>()) {
    switch (domain) {
      case Domain::kAny: x = -2 + 4 * rng.uniform(); break;
      case Domain::kPositive: x = 0.2 + 2.8 * rng.uniform(); break;
      case Domain::kNonZero: x = (0.3 + 1.7 * rng.uniform()) * (rng.bits() & 1 ? 1 : -1); break;
    }
  }
  return tensor;
}

/// sum(weights * build(inputs)), with its inputs: the case's, then the weights.
struct Weighted {
  ir::Fusion fusion;
  std::vector<ValId> inputs;
  ValId loss;

  explicit Weighted(const Case& c, bool squared = false) {
    Builder b(fusion);
    for (std::size_t i = 0; i < c.inputs.size(); ++i)
      inputs.push_back(fusion.add_input("x" + std::to_string(i), DType::kF64,
                                        Extents(c.inputs[i].begin(), c.inputs[i].end())));
    const ValId out = c.build(b, inputs);
    const ValId weights = fusion.add_input("w", DType::kF64, b.val(out).shape);
    std::vector<std::int64_t> axes(b.rank(out));
    std::iota(axes.begin(), axes.end(), 0);
    loss = b.sum(b.mul(squared ? b.square(out) : out, weights), axes);
  }

  Shape weight_shape() const {
    Shape shape;
    for (const ir::Extent& e : fusion.val(fusion.inputs().back().val).shape)
      shape.push_back(e.constant());
    return shape;
  }
};

double evaluate(const ir::Fusion& fusion, const std::vector<Tensor>& inputs) {
  return interpret(fusion, inputs)[0].at(0);
}

void expect_gradients(ir::Fusion value, ir::Fusion with_gradients, std::vector<Tensor> inputs,
                      std::size_t differentiated) {
  const std::vector<Tensor> gradients = interpret(with_gradients, inputs);
  constexpr double kStep = 1e-5;
  for (std::size_t i = 0; i < differentiated; ++i) {
    ASSERT_EQ(gradients[i].shape(), inputs[i].shape());
    for (std::int64_t j = 0; j < inputs[i].size(); ++j) {
      const double x = inputs[i].at(j);
      inputs[i].set(j, x + kStep);
      const double up = evaluate(value, inputs);
      inputs[i].set(j, x - kStep);
      const double down = evaluate(value, inputs);
      inputs[i].set(j, x);
      const double expected = (up - down) / (2 * kStep);
      EXPECT_NEAR(gradients[i].at(j), expected, 2e-7 * (1 + std::abs(expected)))
          << "input " << i << " element " << j;
    }
  }
}

void check_case(const Case& c) {
  SCOPED_TRACE(c.name);
  Rng rng(7, std::hash<std::string>{}(c.name));
  Weighted w(c);
  std::vector<Tensor> inputs;
  for (const Shape& shape : c.inputs) inputs.push_back(draw(shape, c.domain, rng));
  inputs.push_back(draw(w.weight_shape(), Domain::kNonZero, rng));
  ir::Fusion value = w.fusion;
  value.add_output(w.loss);
  ir::Fusion with_gradients = w.fusion;
  for (const ValId g : gradients(with_gradients, w.loss, w.inputs)) with_gradients.add_output(g);
  expect_gradients(value, with_gradients, inputs, c.inputs.size());
}

ValId indices(Builder& b, const std::vector<double>& values) {
  std::vector<ValId> parts;
  for (const double v : values) parts.push_back(b.unsqueeze(b.constant(v, DType::kI64), 0));
  return b.concat(parts, 0);
}

std::vector<Case> elementwise_cases() {
  std::vector<Case> cases;
#define SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient) \
  if (ir::DTypeRule::rule != ir::DTypeRule::kLogical &&                                        \
      ir::DTypeRule::rule != ir::DTypeRule::kTest)                                             \
    cases.push_back({#name,                                                                    \
                     {Op::name},                                                               \
                     {{3, 2}},                                                                 \
                     [](Builder& b, const std::vector<ValId>& x) { return b.name(x[0]); },     \
                     Domain::domain});
#define SEGFUSE_BINARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a, \
                       gradient_b)                                                                \
  if (ir::DTypeRule::rule != ir::DTypeRule::kLogical &&                                           \
      ir::DTypeRule::rule != ir::DTypeRule::kInteger &&                                           \
      ir::DTypeRule::rule != ir::DTypeRule::kCompare)                                             \
    cases.push_back({#name,                                                                       \
                     {Op::name},                                                                  \
                     {{3, 2}, {3, 2}},                                                            \
                     [](Builder& b, const std::vector<ValId>& x) { return b.name(x[0], x[1]); },  \
                     Domain::domain});
#include "segfuse/ops.def"
  return cases;
}

using Inputs = const std::vector<ValId>&;

std::vector<Case> reduction_cases() {
  return {
      {"where",
       {Op::where},
       {{4}, {4}, {4}},
       [](Builder& b, Inputs x) {
         return b.where(b.gt(x[0], b.constant(0, DType::kF64)), x[1], x[2]);
       }},
      {"cast",
       {Op::cast},
       {{3}},
       [](Builder& b, Inputs x) {
         return b.cast(b.mul(b.cast(x[0], DType::kF32), b.constant(3)), DType::kF64);
       }},
      {"sum", {Op::sum}, {{2, 3, 4}}, [](Builder& b, Inputs x) { return b.sum(x[0], {0, 2}); }},
      {"sum_keep",
       {Op::sum},
       {{2, 3}},
       [](Builder& b, Inputs x) { return b.mul(b.sum(x[0], {1}, true), x[0]); }},
      {"prod", {Op::prod}, {{2, 3, 2}}, [](Builder& b, Inputs x) { return b.prod(x[0], {1}); }},
      {"prod_with_one_zero",
       {Op::prod},
       {{2, 3}},
       [](Builder& b, Inputs x) {
         const ValId mask = b.ne(b.iota(3, DType::kI64), b.constant(1, DType::kI64));
         return b.prod(b.mul(x[0], b.cast(mask, DType::kF64)), {1});
       }},
      {"max", {Op::max}, {{3, 4}}, [](Builder& b, Inputs x) { return b.max(x[0], {1}); }},
      {"min", {Op::min}, {{3, 4}}, [](Builder& b, Inputs x) { return b.min(x[0], {0}); }},
      {"mean_and_m2",
       {Op::welford},
       {{3, 4}},
       [](Builder& b, Inputs x) {
         const auto m = b.welford(x[0], {1});
         return b.add(b.mul(m.mean, m.m2), b.exp(m.mean));
       }},
      {"m2_alone",
       {Op::welford},
       {{3, 4}},
       [](Builder& b, Inputs x) { return b.welford(x[0], {0, 1}).m2; }},
      {"mean_alone",
       {Op::welford},
       {{3, 4}},
       [](Builder& b, Inputs x) { return b.welford(x[0], {0}).mean; }},
      {"logsumexp",
       {Op::logsumexp},
       {{3, 4}},
       [](Builder& b, Inputs x) { return b.logsumexp(x[0], {1}); }},
  };
}

std::vector<Case> movement_cases() {
  return {
      {"permute",
       {Op::permute},
       {{2, 3, 4}},
       [](Builder& b, Inputs x) { return b.permute(x[0], {2, 0, 1}); }},
      {"broadcast_new_axes",
       {Op::broadcast},
       {{3}},
       [](Builder& b, Inputs x) { return b.broadcast(x[0], {1}, {2, 3, 2}); }},
      {"broadcast_stretched",
       {Op::broadcast},
       {{2, 1}},
       [](Builder& b, Inputs x) { return b.broadcast_to(x[0], {3, 2, 4}); }},
      {"broadcast_scalar",
       {Op::broadcast},
       {{}},
       [](Builder& b, Inputs x) { return b.broadcast_to(x[0], {3, 1}); }},
      {"squeeze",
       {Op::squeeze},
       {{2, 1, 3, 1}},
       [](Builder& b, Inputs x) { return b.squeeze(x[0], {1, 3}); }},
      {"reshape",
       {Op::reshape},
       {{2, 6}},
       [](Builder& b, Inputs x) { return b.reshape(x[0], {3, 4}); }},
      {"slice",
       {Op::slice},
       {{4, 5}},
       [](Builder& b, Inputs x) { return b.slice(x[0], {1, 2}, {2, 3}); }},
      {"pad",
       {Op::pad},
       {{2, 3}},
       [](Builder& b, Inputs x) { return b.pad(x[0], {1, 0}, {2, 1}, 7); }},
      {"concat",
       {Op::concat},
       {{2, 3}, {2, 1}, {2, 3}},
       [](Builder& b, Inputs x) { return b.concat({x[0], x[1], x[2], x[0]}, 1); }},
      {"take",
       {Op::take},
       {{2, 3, 2}},
       [](Builder& b, Inputs x) { return b.take(x[0], indices(b, {2, 0, 2, 1}), 1); }},
      {"gather",
       {Op::gather},
       {{3, 2}},
       [](Builder& b, Inputs x) {
         return b.gather(x[0], b.reshape(indices(b, {2, 0, 2, 1, 2, 2, 0, 1}), {4, 2}), 0);
       }},
      {"scatter_add",
       {Op::scatter_add},
       {{2, 4, 2}},
       [](Builder& b, Inputs x) { return b.scatter_add(x[0], indices(b, {4, 0, 4, 2}), 1, 5); }},
      {"unfold",
       {Op::unfold},
       {{2, 9, 2}},
       [](Builder& b, Inputs x) { return b.unfold(x[0], 1, 3, 2, 2); }},
      {"fold",
       {Op::fold},
       {{2, 3, 3, 2}},
       [](Builder& b, Inputs x) { return b.fold(x[0], 1, 2, 2, 9); }},
      {"matmul",
       {Op::matmul},
       {{3, 4}, {4, 2}},
       [](Builder& b, Inputs x) { return b.matmul(x[0], x[1]); }},
      {"matmul_transposed_both",
       {Op::matmul},
       {{2, 4, 3}, {2, 5, 4}},
       [](Builder& b, Inputs x) { return b.matmul(x[0], x[1], true, true); }},
      {"matmul_shared_right",
       {Op::matmul},
       {{2, 3, 4}, {4, 2}},
       [](Builder& b, Inputs x) { return b.matmul(x[0], x[1]); }},
      {"matmul_shared_right_transposed",
       {Op::matmul},
       {{2, 4, 3}, {2, 4}},
       [](Builder& b, Inputs x) { return b.matmul(x[0], x[1], true, true); }},
  };
}

Case line_case(const char* name, Op op, std::int64_t flag, Domain domain = Domain::kAny) {
  std::vector<Shape> shapes{{2, 5, 3}};
  if (op == Op::linear_scan) shapes.push_back({2, 5, 3});
  return {
      name,
      {op},
      shapes,
      [op, flag](Builder& b, Inputs x) { return b.make_all(op, x, {std::int64_t{1}, flag})[0]; },
      domain};
}

/// A carry that every step reads, a sequence and a constant; what is stacked is none of them.
Case scan_case(const char* name, std::int64_t reverse) {
  const auto build = [reverse](Builder& b, Inputs x) {
    ir::Fusion body("step");
    const Extents state{3};
    const ValId h = body.add_input("h", DType::kF64, state);
    const ValId v = body.add_input("v", DType::kF64, {2});
    const ValId w = body.add_input("w", DType::kF64, {5, 3});
    Builder s(body);
    const ValId both = s.reshape(s.concat({h, v}, 0), {1, 5});
    const ValId next = s.tanh(s.reshape(s.matmul(both, w), state));
    body.add_output(next);
    body.add_output(s.mul(next, h));
    const std::vector<ValId> all =
        b.make_all(Op::scan, x,
                   {std::int64_t{1}, std::int64_t{1}, Extents{4}, reverse,
                    ir::Body{std::make_shared<const ir::Fusion>(std::move(body))}});
    return b.add(b.sum(all[1], {0}), all[0]);
  };
  return {name, {Op::scan}, {{3}, {4, 2}, {5, 3}}, build};
}

/// The values and the logarithms, of which the mask is a constant.
Case attention_case(const char* name, bool bias, bool mask, Extents ahead) {
  std::vector<Shape> shapes{{2, 3, 4}, {2, 5, 4}, {2, 5, 3}};
  if (bias) shapes.push_back({1, 3, 5});
  const auto build = [=](Builder& b, Inputs x) {
    std::vector<ValId> operands(x.begin(), x.end());
    if (mask) {
      const ValId odd = b.fmod(b.iota(5, DType::kF64), b.constant(2, DType::kF64));
      operands.push_back(b.broadcast(b.gt(b.constant(1, DType::kF64), odd), {2}, {1, 1, 5}));
    }
    const std::vector<ValId> all = b.make_all(Op::attention, operands, {0.7, -2.0, ahead});
    return b.mul(all[0], b.unsqueeze(b.sin(all[1]), -1));
  };
  return {name, {Op::attention}, shapes, build};
}

/// Of gradients, which are differentiated as what they are made of.
Case attention_grad_case() {
  return {"attention_grad",
          {Op::attention_grad},
          {{2, 3, 4}, {2, 5, 4}, {2, 5, 3}, {2, 3}, {2, 3, 3}, {2, 3}},
          [](Builder& b, Inputs x) {
            const std::vector<ValId> all =
                b.make_all(Op::attention_grad, {x.begin(), x.end()}, {0.7, -2.0, Extents{1, 0}});
            return b.add(b.add(b.sum(all[0], {1}), b.sum(all[1], {1})),
                         b.pad_axis(b.sum(all[2], {1}), 1, 0, 1));
          }};
}

std::vector<Case> attention_cases() {
  return {attention_case("attention", false, false, {}),
          attention_case("attention_masked", false, true, {1, 0}),
          attention_case("attention_biased", true, true, {0, 1}), attention_grad_case()};
}

std::vector<Case> line_cases() {
  return {line_case("cumsum", Op::cumsum, 0),
          line_case("cumsum_reversed", Op::cumsum, 1),
          line_case("cumprod", Op::cumprod, 0),
          line_case("cumprod_reversed", Op::cumprod, 1),
          line_case("cummax", Op::cummax, 0),
          line_case("cummax_reversed", Op::cummax, 1),
          line_case("cummin", Op::cummin, 0),
          line_case("cumlogsumexp", Op::cumlogsumexp, 0),
          line_case("cumlogsumexp_reversed", Op::cumlogsumexp, 1),
          line_case("linear_scan", Op::linear_scan, 0),
          line_case("linear_scan_reversed", Op::linear_scan, 1),
          scan_case("scan", 0),
          scan_case("scan_reversed", 1),
          line_case("sort", Op::sort, 0),
          line_case("sort_descending", Op::sort, 1)};
}

std::vector<Case> composed_cases() {
  return {
      {"layer_norm",
       {},
       {{3, 5}, {5}, {5}},
       [](Builder& b, Inputs x) { return b.layer_norm(x[0], x[1], x[2]); }},
      {"softmax", {}, {{3, 4}}, [](Builder& b, Inputs x) { return b.softmax(x[0], 0); }},
      {"log_softmax", {}, {{3, 4}}, [](Builder& b, Inputs x) { return b.log_softmax(x[0], 1); }},
      {"gelu", {}, {{6}}, [](Builder& b, Inputs x) { return b.gelu(x[0]); }},
      {"silu", {}, {{6}}, [](Builder& b, Inputs x) { return b.silu(x[0]); }},
      // Factors that the gradients of broadcasts take out of their sums, and such that vary.
      {"factor_of_a_row",
       {},
       {{3, 4}, {3}, {3, 1}},
       [](Builder& b, Inputs x) {
         const ValId r = b.broadcast(x[1], {0}, {3, 4});
         return b.div(b.mul(b.sub(x[0], b.broadcast_to(x[2], {3, 4})), r), b.square(r));
       },
       Domain::kNonZero},
      {"factor_of_a_plane",
       {},
       {{2, 3, 4}, {3}, {2, 3}, {2, 1, 4}},
       [](Builder& b, Inputs x) {
         const Extents all{2, 3, 4};
         const ValId shift = b.broadcast(x[1], {1}, all);
         const ValId kept = b.broadcast(x[2], {0, 1}, all);
         return b.neg(b.mul(kept, b.mul(b.sub(x[0], shift), b.broadcast_to(x[3], all))));
       }},
      {"factor_of_a_column",
       {},
       {{2, 3, 4}, {3, 4}, {4}},
       [](Builder& b, Inputs x) {
         const Extents all{2, 3, 4};
         const ValId shift = b.broadcast(x[1], {1, 2}, all);
         return b.mul(b.sub(x[0], shift), b.broadcast(x[2], {2}, all));
       }},
      {"factor_of_everything",
       {},
       {{3, 4}, {}, {}},
       [](Builder& b, Inputs x) {
         const Extents all{3, 4};
         const ValId a = b.broadcast(x[1], {}, all);
         return b.mul(b.div(b.add(x[0], a), b.broadcast(x[2], {}, all)), a);
       },
       Domain::kNonZero},
      {"used_twice",
       {},
       {{3}},
       [](Builder& b, Inputs x) { return b.mul(b.exp(x[0]), b.sin(x[0])); }},
  };
}

std::vector<Case> other_cases() {
  std::vector<Case> all;
  for (const auto& cases :
       {reduction_cases(), movement_cases(), line_cases(), attention_cases(), composed_cases()})
    all.insert(all.end(), cases.begin(), cases.end());
  return all;
}

TEST(Autodiff, EveryElementwiseRuleMatchesCentralDifferences) {
  for (const Case& c : elementwise_cases())
    if (c.name != "stop_gradient") check_case(c);  // nothing passes it, whatever differences say
}

TEST(Autodiff, NothingPassesAStop) {
  ir::Fusion fusion;
  Builder b(fusion);
  const ValId x = fusion.add_input("x", DType::kF64, {3});
  const ValId loss = b.sum(b.mul(b.stop_gradient(b.mul(x, x)), x), {0});
  fusion.add_output(gradients(fusion, loss, std::vector{x})[0]);
  const Tensor g =
      interpret(fusion, std::vector{Tensor::from(std::vector<double>{1, 2, 3}, {3})})[0];
  for (int i = 0; i < 3; ++i) EXPECT_EQ(g.at(i), (i + 1.0) * (i + 1.0));
}

TEST(Autodiff, EveryOtherRuleMatchesCentralDifferences) {
  for (const Case& c : other_cases()) check_case(c);
}

TEST(Autodiff, EveryOperationWithAGradientHasACase) {
  // These give no gradient, or (semicrf) are differentiated in the engine's tests.
  std::set<Op> covered{Op::argmax,           Op::constant,       Op::iota,
                       Op::extent,           Op::random_uniform, Op::semicrf_loss,
                       Op::semicrf_loss_grad};
  for (const auto& cases : {elementwise_cases(), other_cases()})
    for (const Case& c : cases) covered.insert(c.covers.begin(), c.covers.end());
  for (const ir::OpInfo& op : ir::all_ops()) {
    const bool gives_bool = op.rule == ir::DTypeRule::kLogical || op.rule == ir::DTypeRule::kTest ||
                            op.rule == ir::DTypeRule::kCompare;
    if (op.rule == ir::DTypeRule::kInteger) continue;
    EXPECT_TRUE(gives_bool || covered.contains(op.op)) << op.name << " has no gradient test";
  }
}

TEST(Autodiff, SecondDerivativesMatchCentralDifferencesOfTheFirst) {
  const std::vector<Case> cases = {
      {"exp_sin", {}, {{3}}, [](Builder& b, Inputs x) { return b.exp(b.sin(x[0])); }},
      {"tanh_matmul",
       {},
       {{2, 3}, {3, 2}},
       [](Builder& b, Inputs x) { return b.tanh(b.matmul(x[0], x[1])); }},
      {"softmax", {}, {{2, 3}}, [](Builder& b, Inputs x) { return b.softmax(x[0], 1); }},
      {"layer_norm",
       {},
       {{2, 4}, {4}, {4}},
       [](Builder& b, Inputs x) { return b.layer_norm(x[0], x[1], x[2]); }},
      {"convolution", {}, {{2, 5, 2}}, [](Builder& b, Inputs x) {
         return b.square(b.unfold(b.pad_axis(x[0], 1, 1, 1), 1, 3, 1, 1));
       }}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Rng rng(11, c.name.size());
    Weighted w(c, true);
    std::vector<Tensor> inputs;
    for (const Shape& shape : c.inputs) inputs.push_back(draw(shape, Domain::kAny, rng));
    inputs.push_back(draw(w.weight_shape(), Domain::kNonZero, rng));
    // First derivative, contracted with itself to a scalar, then differentiated again.
    Builder b(w.fusion);
    ValId scalar = b.constant(0, DType::kF64);
    for (const ValId g : gradients(w.fusion, w.loss, w.inputs)) {
      std::vector<std::int64_t> axes(b.rank(g));
      std::iota(axes.begin(), axes.end(), 0);
      scalar = b.add(scalar, b.sum(b.sin(g), axes));
    }
    ir::Fusion value = w.fusion;
    value.add_output(scalar);
    ir::Fusion with_gradients = w.fusion;
    for (const ValId g : gradients(with_gradients, scalar, w.inputs)) with_gradients.add_output(g);
    expect_gradients(value, with_gradients, inputs, c.inputs.size());
  }
}

/// The operations whose results are summed.
std::vector<Op> summed(const ir::Fusion& fusion) {
  std::vector<Op> all;
  for (const ir::ExprId id : fusion.live_exprs()) {
    if (fusion.expr(id).op != Op::sum) continue;
    const ir::ExprId definition = fusion.val(fusion.expr(id).operands[0]).definition;
    all.push_back(definition.valid() ? fusion.expr(definition).op : Op::constant);
  }
  return all;
}

/// -(g * r) summed along rows, where r is of the row, is -(sum of g) * r; in 16 bits the sum alone
/// might not fit, and stays as it is.
TEST(Autodiff, FactorsOfARowAreTakenOutOfItsSum) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    ir::Fusion fusion;
    Builder b(fusion);
    const Extents shape{4, 8};
    const ValId x = fusion.add_input("x", dtype, shape);
    const ValId shift = fusion.add_input("shift", dtype, {4});
    const ValId r = fusion.add_input("r", dtype, {4});
    const ValId column = fusion.add_input("column", dtype, {8});
    const ValId g[] = {fusion.add_input("g", dtype, shape)};
    const ValId centred = b.sub(x, b.broadcast(shift, {0}, shape));
    const ValId y[] = {
        b.mul(b.mul(centred, b.broadcast(column, {1}, shape)), b.broadcast(r, {0}, shape))};
    const ValId wrt[] = {shift};
    fusion.add_output(vjp(fusion, y, g, wrt)[0]);
    const bool half = size_of(dtype) == 2;
    EXPECT_EQ(summed(fusion), std::vector{half ? Op::neg : Op::mul}) << name_of(dtype);
    if (half) continue;
    const ValId also[] = {column};  // here r varies along the sum
    fusion.remove_output(0);
    fusion.add_output(vjp(fusion, y, g, also)[0]);
    EXPECT_EQ(summed(fusion), std::vector{Op::mul});
  }
}

TEST(Autodiff, EqualExtremaShareTheGradient) {
  ir::Fusion fusion;
  Builder b(fusion);
  const ValId x = fusion.add_input("x", DType::kF64, {4});
  const ValId wrt[] = {x};
  fusion.add_output(gradients(fusion, b.max(x, {0}), wrt)[0]);
  const Tensor g =
      interpret(fusion, std::vector{Tensor::from(std::vector<double>{1, 3, 3, 2}, {4})})[0];
  EXPECT_EQ(g.at(0), 0);
  EXPECT_EQ(g.at(1), 0.5);
  EXPECT_EQ(g.at(2), 0.5);
}

TEST(Autodiff, OneZeroInAProductHasAGradientAndTwoHaveNone) {
  ir::Fusion fusion;
  Builder b(fusion);
  const ValId x = fusion.add_input("x", DType::kF64, {3, 3});
  const ValId wrt[] = {x};
  fusion.add_output(gradients(fusion, b.sum(b.prod(x, {1}), {0}), wrt)[0]);
  const std::vector<double> rows{2, 3, 5, 2, 0, 5, 0, 0, 5};
  const Tensor g = interpret(fusion, std::vector{Tensor::from(rows, {3, 3})})[0];
  const double expected[] = {15, 10, 6, 0, 10, 0, 0, 0, 0};
  for (int i = 0; i < 9; ++i) EXPECT_EQ(g.at(i), expected[i]) << i;
}

TEST(Autodiff, LogSumExpOfNothingButMinusInfinityHasGradientZero) {
  ir::Fusion fusion;
  Builder b(fusion);
  const ValId x = fusion.add_input("x", DType::kF64, {3});
  const ValId wrt[] = {x};
  fusion.add_output(gradients(fusion, b.logsumexp(x, {0}), wrt)[0]);
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor g =
      interpret(fusion, std::vector{Tensor::from(std::vector<double>{-inf, -inf, -inf}, {3})})[0];
  for (int i = 0; i < 3; ++i) EXPECT_EQ(g.at(i), 0);
}

TEST(Autodiff, AnUnrelatedValueGetsZerosOfItsShape) {
  ir::Fusion fusion;
  Builder b(fusion);
  const ValId x = fusion.add_input("x", DType::kF64, {2});
  const ValId y = fusion.add_input("y", DType::kF64, {2, 3});
  const ValId wrt[] = {y};
  fusion.add_output(gradients(fusion, b.sum(x, {0}), wrt)[0]);
  const Tensor g = interpret(
      fusion, std::vector{Tensor::zeros(DType::kF64, {2}), Tensor::zeros(DType::kF64, {2, 3})})[0];
  EXPECT_EQ(g.shape(), (Shape{2, 3}));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(g.at(i), 0);
}

TEST(Autodiff, ASizeThatIsFoundToBeOneLaterIsStretched) {
  ir::Fusion fusion;
  Builder b(fusion);
  const ir::Extent n(fusion.symbol("N"));
  const ValId x = fusion.add_input("x", DType::kF64, {n});
  ASSERT_TRUE(fusion.unify(n, 1));
  const ValId wide = b.broadcast(x, {0}, {4});
  const ValId wrt[] = {x};
  fusion.add_output(gradients(fusion, b.sum(b.mul(wide, wide), {0}), wrt)[0]);
  const Tensor g = interpret(fusion, std::vector{Tensor::from(std::vector<double>{3}, {1})})[0];
  EXPECT_EQ(g.shape(), Shape{1});
  EXPECT_EQ(g.at(0), 4 * 2 * 3);
}

TEST(Autodiff, MisuseIsNamed) {
  ir::Fusion fusion;
  const ValId x = fusion.add_input("x", DType::kF64, {2});
  const ValId n = fusion.add_input("n", DType::kI64, {});
  const ValId wrt[] = {x};
  EXPECT_THROW(gradients(fusion, x, wrt), UsageError);
  EXPECT_THROW(gradients(fusion, n, wrt), UsageError);
  const ValId integers[] = {n};
  Builder b(fusion);
  EXPECT_THROW(gradients(fusion, b.sum(x, {0}), integers), UsageError);
}

}  // namespace
}  // namespace segfuse::compiler
