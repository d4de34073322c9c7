// Trainings with products in bf16: which products are, how far gradients are from those in f32,
// and that the bits do not depend on who computes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "compiler/autodiff.h"
#include "ir/builder.h"
#include "ir/rules/verify.h"
#include "ir/text.h"
#include "learn/model/given_encoder.h"
#include "learn/model/products.h"
#include "learn/train/loop/bound_inputs.h"
#include "unit/learn/small_training.h"

namespace segfuse::learn {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Blocks of all kinds.
ModelConfig all_blocks(nn::Recurrence recurrence, bool causal = false) {
  ModelConfig m = tiny(0.1);
  m.width = 8;
  m.dilations = {1, 2};
  m.recurrence = recurrence;
  m.recurrent_blocks = 1;
  m.recurrent_states = 5;
  m.attention_blocks = 1;
  m.attention_heads = 2;
  m.subsample = 2;
  m.causal = causal;
  m.boundary_scores = true;
  return m;
}

/// Loss and gradients of one batch.
std::vector<Tensor> step_of(const Segmenter& segmenter, Precision precision, int threads = 1) {
  ThreadPool pool(threads);
  engine::Executable program(segmenter.training(precision), pool);
  BoundInputs inputs(program.fusion());
  for (const nn::ParameterSpec& spec : segmenter.parameters())
    inputs.set(spec.name, nn::initial_value(spec, 3));
  if (inputs.has("duration_limit"))
    inputs.set("duration_limit", duration_limit_table({4, 4, 4}, 4));
  const Batch batch =
      make_batch(some_sequences(5, {9, 14, 11, 6}), {0, 1, 2, 3}, segmenter.config());
  bind_batch(inputs, batch, {1, 0, batch.segments});
  return program.run(inputs.tensors());
}

double norm(const Tensor& x) {
  double squares = 0;
  for (std::int64_t i = 0; i < x.size(); ++i) squares += x.at(i) * x.at(i);
  return std::sqrt(squares);
}

double distance(const Tensor& a, const Tensor& b) {
  double squares = 0;
  for (std::int64_t i = 0; i < a.size(); ++i) squares += std::pow(a.at(i) - b.at(i), 2);
  return std::sqrt(squares);
}

/// The names of the inputs that a value is made of by operations that only move or cast.
std::string source_of(const ir::Fusion& fusion, ir::ValId val) {
  while (fusion.val(val).definition.valid()) {
    const ir::Expr& e = fusion.expr(fusion.val(val).definition);
    if (e.op != ir::Op::cast && ir::info(e.op).op_class != ir::OpClass::kMovement) return "";
    val = e.operands[0];
  }
  for (const ir::Input& input : fusion.inputs())
    if (input.val == val) return input.name;
  return "";
}

TEST(Precision, AllProductsOfTheEncoderAndItsGradientsAreBFloat16) {
  for (const auto kind : {nn::Recurrence::kLstm, nn::Recurrence::kGru, nn::Recurrence::kSsm}) {
    const Segmenter segmenter(all_blocks(kind));
    const ir::Fusion fusion = segmenter.training(Precision::kBFloat16);
    ir::verify(fusion);
    std::multiset<std::string> exact;
    std::size_t rounded = 0;
    std::size_t attentions = 0;
    for (const ir::ExprId id : fusion.live_exprs()) {
      const ir::Expr& e = fusion.expr(id);
      const DType dtype = fusion.val(e.results[0]).dtype;
      if (e.op == ir::Op::matmul) {
        rounded += dtype == DType::kBF16 ? 1 : 0;
        if (dtype != DType::kBF16) exact.insert(source_of(fusion, e.operands[1]));
        continue;
      }
      if (e.op == ir::Op::attention || e.op == ir::Op::attention_grad) {
        EXPECT_EQ(dtype, DType::kBF16);
        ++attentions;
        continue;
      }
      // Sums, norms and activations are f32: bf16 values are only moved, and added by fold, which
      // sums in f32.
      const bool kept = e.op == ir::Op::cast || ir::info(e.op).op_class == ir::OpClass::kMovement;
      EXPECT_TRUE(kept || dtype != DType::kBF16) << ir::info(e.op).name;
    }
    // The scores: forward, and back to the encoder; and the gradients of their weights.
    EXPECT_EQ(exact.count("emission.weight"), 2U);
    EXPECT_EQ(exact.count("start.weight"), 2U);
    EXPECT_EQ(exact.count("end.weight"), 2U);
    const bool loops = kind != nn::Recurrence::kSsm;  // gradients of state.weight, by all steps
    EXPECT_EQ(exact.size(), loops ? 11U : 9U);
    // Stem, two blocks of two, recurrence of two directions and its way out, before and behind
    // attention four.
    const std::size_t forward = 1 + 4 + 3 + 4;
    EXPECT_EQ(rounded, 3 * forward - 1);  // features have no gradient
    EXPECT_EQ(attentions, 2U);
    for (const ir::Output& output : fusion.outputs())
      EXPECT_EQ(fusion.val(output.val).dtype, DType::kF32) << output.name;
  }
}

/// Neither scores nor weights, nor the bias of padding for each of them.
TEST(Precision, NothingOfAttentionIsOfFramesTimesFrames) {
  for (const bool causal : {false, true}) {
    const Segmenter segmenter(all_blocks(nn::Recurrence::kSsm, causal));
    const ir::Fusion fusion = segmenter.training(Precision::kBFloat16);
    std::size_t found = 0;
    for (const ir::ExprId id : fusion.live_exprs())
      for (const ir::ValId val : fusion.expr(id).results) {
        const ir::Extents shape = fusion.canonical(fusion.val(val).shape);
        if (shape.size() != 4) continue;
        ++found;
        EXPECT_FALSE(!shape[3].is_constant() && fusion.equal(shape[2], shape[3]))
            << ir::info(fusion.expr(id).op).name;
      }
    EXPECT_GE(found, 8U);  // heads of queries, keys and values, forward and backward
  }
}

TEST(Precision, OthersHaveTheProgramOfAlways) {
  const Segmenter segmenter(all_blocks(nn::Recurrence::kGru));
  const std::string plain = ir::print(segmenter.training());
  EXPECT_EQ(ir::print(segmenter.training(Precision::kTF32)), plain);
  EXPECT_THAT(plain, Not(HasSubstr("bf16")));
  EXPECT_THAT(ir::print(segmenter.inference()), Not(HasSubstr("bf16")));
}

/// The length of the difference of gradients over that of the first ones, of all together.
double relative_error(std::span<const Tensor> exact, std::span<const Tensor> found) {
  double squares = 0;
  double whole = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    squares += std::pow(distance(found[i], exact[i]), 2);
    whole += std::pow(norm(exact[i]), 2);
  }
  return std::sqrt(squares / whole);
}

/// Products of all forms with smooth functions between them: a convolution, heads that attend, and
/// a matrix that is read by two products. Half a unit in the last place of bf16 is 2^-9.
TEST(Precision, GradientsOfSmoothProgramsAreWithinAUnitInTheLastPlace) {
  std::vector<std::vector<Tensor>> results;
  for (const bool rounds : {false, true}) {
    ir::Fusion fusion;
    ir::Builder b(fusion);
    Rng rng(8);
    std::vector<Tensor> inputs;
    std::vector<ir::ValId> wrt;
    const auto input = [&](Shape shape, double scale) {
      Tensor value = segfuse::testing::uniform(rng, DType::kF32, shape, -scale, scale);
      inputs.push_back(value);
      wrt.push_back(fusion.add_input("x" + std::to_string(inputs.size()), DType::kF32,
                                     ir::Extents(shape.begin(), shape.end())));
      return wrt.back();
    };
    const ir::ValId x = input({2, 40, 16}, 1);
    const ir::ValId windows = b.unfold(b.pad_axis(x, 1, 2, 2), 1, 3, 1, 2);
    const ir::ValId y = b.gelu(
        b.add(b.matmul(b.reshape(windows, {2, 40, 48}), input({48, 32}, 0.3)), input({32}, 1)));
    const ir::ValId shared = input({32, 32}, 0.3);
    const auto heads = [&](ir::ValId v) {
      return b.permute(b.reshape(v, {2, 40, 4, 8}), {0, 2, 1, 3});
    };
    const ir::ValId q = heads(b.matmul(y, shared));
    const ir::ValId k = heads(b.matmul(y, input({32, 32}, 0.3)));
    const ir::ValId weights = b.softmax(b.matmul(q, k, false, true), -1);
    const ir::ValId mixed = b.permute(b.matmul(weights, q), {0, 2, 1, 3});
    const ir::ValId out = b.matmul(b.tanh(b.reshape(mixed, {80, 32})), shared, false, true);
    const ir::ValId last = rounds ? round_products(fusion, out) : out;
    const ir::ValId loss = b.sum(b.sin(b.mul(last, input({32}, 1))), {0, 1});
    for (const ir::ValId gradient : compiler::gradients(fusion, loss, wrt))
      fusion.add_output(gradient);
    ThreadPool pool(1);
    results.push_back(engine::Executable(fusion, pool).run(inputs));
  }
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    const double error =
        relative_error(std::span(results[0]).subspan(i, 1), std::span(results[1]).subspan(i, 1));
    EXPECT_LE(error, 1.0 / 128) << i;
    EXPECT_GE(error, 1e-5) << i << ": nothing was rounded";
  }
}

/// A ReLU whose argument changes its sign moves gradients further than a rounding.
TEST(Precision, GradientsOfModelsAreNearThoseOfFloat32) {
  for (const auto kind : {nn::Recurrence::kLstm, nn::Recurrence::kGru, nn::Recurrence::kSsm})
    for (const bool causal : {false, true}) {
      const Segmenter segmenter(all_blocks(kind, causal));
      const std::vector<Tensor> exact = step_of(segmenter, Precision::kFloat32);
      const std::vector<Tensor> found = step_of(segmenter, Precision::kBFloat16);
      EXPECT_NEAR(found[0].at(0), exact[0].at(0), std::abs(exact[0].at(0)) / 128);
      const double error = relative_error(std::span(exact).subspan(1), std::span(found).subspan(1));
      EXPECT_LE(error, 1.0 / 8);
      EXPECT_GE(error, 1e-5) << "nothing was rounded";
    }
}

TEST(Precision, CastsGoBeforeWhatOnlyMoves) {
  const auto written = [](double filled) {
    ir::Fusion fusion;
    ir::Builder b(fusion);
    const ir::ValId x = fusion.add_input("x", DType::kF32, {2, 9, 4});
    const ir::ValId w = fusion.add_input("w", DType::kF32, {12, 3});
    const ir::ValId padded = fusion.result(
        fusion.add_expr(ir::Op::pad, {x}, {ir::Extents{0, 1, 0}, ir::Extents{0, 1, 0}, filled}));
    const ir::ValId windows = b.unfold(padded, 1, 3, 1, 1);
    const ir::ValId y = b.matmul(b.reshape(windows, {2, 9, 12}), w);
    fusion.add_output(round_products(fusion, b.relu(y)));
    ir::verify(fusion);
    return fusion;
  };
  const std::string text = ir::print(written(0));
  EXPECT_THAT(text, HasSubstr("cast(%0) {dtype=bf16} : bf16[2, 9, 4]"));
  EXPECT_THAT(text, HasSubstr("cast(%1) {dtype=bf16} : bf16[12, 3]"));
  // 0.1 is no bf16 value.
  EXPECT_THAT(ir::print(written(0.1)), HasSubstr("cast(%2) {dtype=bf16} : bf16[2, 11, 4]"));
}

/// The result of the whole program may be that of a product, and a value of another type none.
TEST(Precision, TheRootFollowsItsProduct) {
  ir::Fusion fusion;
  ir::Builder b(fusion);
  const ir::ValId x = fusion.add_input("x", DType::kF32, {2, 3});
  const ir::ValId w = fusion.add_input("w", DType::kF32, {3, 3});
  const ir::ValId z = fusion.add_input("z", DType::kF64, {3, 3});
  fusion.add_output(b.matmul(z, z));
  fusion.add_output(round_products(fusion, b.matmul(b.matmul(x, w), w)));
  ir::verify(fusion);
  EXPECT_EQ(fusion.val(fusion.outputs()[0].val).dtype, DType::kF64);
  EXPECT_EQ(fusion.val(fusion.outputs()[1].val).dtype, DType::kF32);
  EXPECT_EQ(fusion.expr(fusion.val(fusion.outputs()[1].val).definition).op, ir::Op::cast);
}

/// Scores that an encoder gives itself are sums of f32 products, as those that the model makes.
TEST(Precision, ProductsThatTheScoresAreASumOfStayAsTheyAre) {
  ir::Fusion fusion;
  ir::Builder b(fusion);
  const ir::ValId x = fusion.add_input("x", DType::kF32, {2, 3});
  const ir::ValId inside = fusion.add_input("inside", DType::kBool, {2, 1});
  const auto times = [&](ir::ValId y, const char* name) {
    return b.matmul(y, fusion.add_input(name, DType::kF32, {3, 3}));
  };
  const ir::ValId h = b.relu(times(x, "first"));
  const ir::ValId scaled = b.mul(times(h, "scaled"), b.tanh(times(h, "gate")));
  const ir::ValId sum = b.sub(b.add(times(h, "last"), h), b.neg(scaled));
  const ir::ValId moved = b.reshape(b.permute(b.where(inside, sum, times(h, "else")), {1, 0}), {6});
  fusion.add_output(round_products(fusion, moved, true));
  ir::verify(fusion);
  std::map<std::string, DType> found;
  for (const ir::ExprId id : fusion.live_exprs()) {
    const ir::Expr& e = fusion.expr(id);
    if (e.op == ir::Op::matmul)
      found[source_of(fusion, e.operands[1])] = fusion.val(e.results[0]).dtype;
  }
  const std::map<std::string, DType> expected = {{"first", DType::kBF16},
                                                 {"gate", DType::kBF16},
                                                 {"scaled", DType::kF32},
                                                 {"last", DType::kF32},
                                                 {"else", DType::kF32}};
  EXPECT_EQ(found, expected);
}

TEST(Precision, TheLastProductOfAGivenEncoderThatScoresIsFloat32) {
  for (const bool scores : {false, true}) {
    ModelConfig m = tiny(0);
    m.subsample = 1;
    m.boundary_scores = false;
    ir::Fusion written;
    ir::Builder b(written);
    const auto matrix = [&](const char* name, std::int64_t rows, std::int64_t columns) {
      return written.add_input(name, DType::kF32, {ir::Extent(rows), ir::Extent(columns)});
    };
    const ir::ValId x = written.add_input(
        "features", DType::kF32, {ir::Extent(1), written.symbol("H"), ir::Extent(m.features)});
    const ir::ValId h = b.relu(b.matmul(x, matrix("encoder.first", m.features, 5)));
    written.add_output(b.matmul(h, matrix("encoder.last", 5, m.classes)), "steps");
    Encoder encoder;
    encoder.training = encoder.inference = ir::print(written);
    encoder.parameters = {{"first", Tensor::zeros(DType::kF32, {m.features, 5})},
                          {"last", Tensor::zeros(DType::kF32, {5, m.classes})}};
    encoder.scores = scores;
    m.given = std::make_shared<const GivenEncoder>(encoder);
    const ir::Fusion fusion = Segmenter(m).training(Precision::kBFloat16);
    std::map<std::string, DType> found;
    for (const ir::ExprId id : fusion.live_exprs()) {
      const ir::Expr& e = fusion.expr(id);
      const std::string name = e.op == ir::Op::matmul ? source_of(fusion, e.operands[1]) : "";
      if (name.starts_with("encoder.")) found[name] = fusion.val(e.results[0]).dtype;
    }
    const std::map<std::string, DType> expected = {
        {"encoder.first", DType::kBF16}, {"encoder.last", scores ? DType::kF32 : DType::kBF16}};
    EXPECT_EQ(found, expected);
  }
}

TEST(Precision, ThreadsAndRanksGiveTheSameBits) {
  for (const auto precision : {Precision::kBFloat16, Precision::kTF32}) {
    Training training(all_blocks(nn::Recurrence::kSsm));
    training.plan.precision = precision;
    const TrainingOutcome one = training.run(1);
    expect_equal(training.run(2), one);
    TrainingPlan exact = training.plan;
    exact.precision = Precision::kFloat32;
    std::swap(training.plan, exact);
    const TrainingOutcome plain = training.run(1);
    std::swap(training.plan, exact);
    // CPUs have no TF32.
    EXPECT_EQ(segfuse::testing::same_bits(plain.parameters[0], one.parameters[0]),
              precision == Precision::kTF32);
    expect_equal(run_on_ranks(2, training), run_on_ranks(1, training));
  }
}

}  // namespace
}  // namespace segfuse::learn
