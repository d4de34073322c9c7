// The passes: on random programs against the interpreter, bit for bit, and rule by rule in
// tests/golden/passes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "base/os/file.h"
#include "base/rng.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/passes.h"
#include "ir/interpret/interpreter.h"
#include "ir/rules/verify.h"
#include "ir/text.h"
#include "segfuse/error.h"
#include "support/random/seasoned_fusion.h"
#include "support/slow_build.h"
#include "support/source_dir.h"
#include "support/structure.h"
#include "support/tensors.h"

namespace segfuse::compiler {
namespace {

using segfuse::testing::Numbers;
using segfuse::testing::RandomFusion;
using segfuse::testing::seasoned_fusion;
using segfuse::testing::shuffled;
using segfuse::testing::special_inputs;
using ::testing::HasSubstr;

/// Equal in every bit; all NaN are one.
bool identical(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}

::testing::AssertionResult same_outputs(const std::vector<Tensor>& a,
                                        const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "another number of outputs";
  for (std::size_t o = 0; o < a.size(); ++o) {
    if (a[o].shape() != b[o].shape() || a[o].dtype() != b[o].dtype())
      return ::testing::AssertionFailure() << "another type of output " << o;
    for (std::int64_t i = 0; i < a[o].size(); ++i)
      if (!identical(a[o].at(i), b[o].at(i)))
        return ::testing::AssertionFailure() << "output " << o << " element " << i << ": "
                                             << a[o].at(i) << " became " << b[o].at(i);
  }
  return ::testing::AssertionSuccess();
}

constexpr ir::InterpretOptions kRounded{.outputs_as_f64 = true, .round_to_dtype = true};

/// One program through one pass; returns whether the pass changed it.
bool check_pass(const Pass& pass, const RandomFusion& program, std::uint64_t seed) {
  ir::Fusion fusion = program.fusion;
  const bool changed = pass.run(fusion);
  ir::verify(fusion);
  const std::string text = ir::print(fusion);
  if (pass.run != unify_extents) {
    EXPECT_EQ(changed, text != ir::print(program.fusion));
  }
  EXPECT_FALSE(pass.run(fusion)) << "not idempotent";
  EXPECT_EQ(ir::print(fusion), text);
  EXPECT_EQ(fusion.live_exprs().size(), fusion.exprs().size()) << "dead code is left";
  if (!changed) return false;
  for (const auto& [b, t] : {std::pair<std::int64_t, std::int64_t>{2, 5}, {0, 4}}) {
    const std::vector<Tensor> inputs = special_inputs(program, seed, b, t);
    EXPECT_TRUE(same_outputs(interpret(program.fusion, inputs, {}, kRounded),
                             interpret(fusion, inputs, {}, kRounded)))
        << ir::print(program.fusion) << text;
  }
  return true;
}

class EachPass : public ::testing::TestWithParam<Pass> {};

TEST_P(EachPass, KeepsRandomProgramsBitForBit) {
  const Pass pass = GetParam();
  int changed = 0;
  for (std::uint64_t seed = 1; seed <= ::segfuse::testing::cases(400) && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomFusion program = seasoned_fusion(seed, seed % 2 ? Numbers::kSmooth : Numbers::kExact);
    if (pass.run != remove_dead_code) remove_dead_code(program.fusion);
    changed += check_pass(pass, program, seed);
  }
  // The programs hold no aliases and only canonical sizes.
  if (pass.run != prepare_aliases && pass.run != unify_extents) {
    EXPECT_GE(changed, static_cast<int>(::segfuse::testing::cases(80)));
  }
}

TEST_P(EachPass, DoesNotDependOnTheOrderOfInsertion) {
  const Pass pass = GetParam();
  for (std::uint64_t seed = 1; seed <= ::segfuse::testing::cases(150) && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomFusion program = seasoned_fusion(seed, seed % 2 ? Numbers::kSmooth : Numbers::kExact);
    remove_dead_code(program.fusion);
    ir::Fusion other = shuffled(program.fusion, seed);
    ir::verify(other);
    ASSERT_TRUE(ir::structurally_equal(program.fusion, other));
    pass.run(program.fusion);
    pass.run(other);
    EXPECT_TRUE(ir::structurally_equal(program.fusion, other))
        << ir::print(program.fusion) << ir::print(other);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EachPass, ::testing::ValuesIn(all_passes()), [](const auto& param) {
  std::string name(param.param.name);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Passes, AllTogetherKeepRandomProgramsAndComeToRest) {
  for (std::uint64_t seed = 2000; seed < 2000 + ::segfuse::testing::cases(400) && !HasFailure();
       ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const RandomFusion program =
        seasoned_fusion(seed, seed % 2 ? Numbers::kSmooth : Numbers::kExact);
    ir::Fusion fusion = program.fusion;
    run_passes(fusion, {.verify = true});
    const std::string text = ir::print(fusion);
    for (const PassTime& again : run_passes(fusion)) {
      EXPECT_EQ(again.changes, 0) << again.pass->name;
      EXPECT_EQ(again.runs, 1);
    }
    const std::vector<Tensor> inputs = special_inputs(program, seed, 2, 4);
    EXPECT_TRUE(same_outputs(interpret(program.fusion, inputs, {}, kRounded),
                             interpret(fusion, inputs, {}, kRounded)))
        << ir::print(program.fusion) << text;
    ir::Fusion other = shuffled(program.fusion, seed);
    run_passes(other);
    EXPECT_EQ(fusion.exprs().size(), other.exprs().size());
    EXPECT_TRUE(ir::structurally_equal(fusion, other)) << text << ir::print(other);
  }
}

// --- rule by rule: "# pass NAME", a program, then what it becomes

struct Golden {
  std::string path;
  std::string pass;
  std::string before;
  std::string after;
};

Golden read_golden(const std::string& path) {
  const std::string text = read_file(path);
  const std::string key = "# pass ";
  const std::string mark = "# becomes\n";
  EXPECT_TRUE(text.starts_with(key)) << path;
  const std::size_t line = text.find('\n');
  const std::size_t middle = std::min(text.find(mark), text.size());
  const std::size_t end = std::min(middle + mark.size(), text.size());
  return {path, text.substr(key.size(), line - key.size()), text.substr(0, middle),
          text.substr(end)};
}

class GoldenPass : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenPass, BecomesWhatStands) {
  const Golden golden = read_golden(GetParam());
  ir::Fusion fusion = ir::parse(golden.before, golden.path);
  if (golden.pass != "dead-code") {
    EXPECT_EQ(fusion.exprs().size(), fusion.live_exprs().size());
  }
  find_pass(golden.pass).run(fusion);
  ir::verify(fusion);
  const std::string after = ir::print(fusion);
  if (after != golden.after && std::getenv("SEGFUSE_UPDATE_GOLDEN")) {
    write_file_atomically(golden.path, golden.before + "# becomes\n" + after);
    return;
  }
  EXPECT_EQ(after, golden.after) << "set SEGFUSE_UPDATE_GOLDEN=1 to rewrite " << golden.path;
}

std::vector<std::string> golden_files() {
  std::vector<std::string> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(SEGFUSE_SOURCE_DIR "/tests/golden/passes"))
    if (entry.path().extension() == ".sf") files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenPass, ::testing::ValuesIn(golden_files()),
                         [](const auto& param) {
                           return std::filesystem::path(param.param).stem().string();
                         });

TEST(GoldenPasses, ThereIsOneForEachPass) {
  std::map<std::string, int> count;
  for (const std::string& path : golden_files()) ++count[read_golden(path).pass];
  for (const Pass& pass : all_passes()) EXPECT_GE(count[std::string(pass.name)], 1) << pass.name;
}

// --- what a text cannot show

TEST(Passes, SizesThatAreEqualBecomeEqualObjects) {
  ir::Fusion fusion;
  ir::Builder b(fusion);
  const ir::Extent rows(fusion.symbol("N"));
  const ir::Extent others(fusion.symbol("M"));
  const ir::ValId x = fusion.add_input("x", DType::kF32, {rows, 4});
  const ir::ValId y = fusion.add_input("y", DType::kF32, {others, 4});
  const ir::ValId early = b.broadcast_to(b.constant(1), {others, 4});
  fusion.add_output(b.add(b.add(x, y), early));
  ASSERT_NE(fusion.val(x).shape, fusion.val(early).shape);
  EXPECT_TRUE(unify_extents(fusion));
  EXPECT_EQ(fusion.val(x).shape, fusion.val(early).shape);
  EXPECT_EQ(fusion.val(x).shape, fusion.attr<ir::Extents>(fusion.val(early).definition, "shape"));
  EXPECT_FALSE(unify_extents(fusion));
  ir::verify(fusion);
}

TEST(Passes, EmptyOperandsOfLibraryCallsAndScatter) {
  ir::Fusion fusion;
  ir::Builder b(fusion);
  const ir::Extent rows(fusion.symbol("N"));
  const ir::ValId left = fusion.add_input("left", DType::kF32, {rows, 0});
  const ir::ValId right = fusion.add_input("right", DType::kF32, {0, 3});
  const ir::ValId updates = fusion.add_input("updates", DType::kF32, {0, 3});
  const ir::ValId places = fusion.add_input("places", DType::kI64, {0});
  fusion.add_output(b.matmul(left, right));
  fusion.add_output(b.scatter_add(updates, places, 0, 5));
  const std::vector<Tensor> inputs = {Tensor(DType::kF32, {2, 0}), Tensor(DType::kF32, {0, 3}),
                                      Tensor(DType::kF32, {0, 3}), Tensor(DType::kI64, {0})};
  const std::vector<Tensor> before = interpret(fusion, inputs);
  EXPECT_TRUE(remove_empty_tensors(fusion));
  for (const ir::ExprId id : fusion.exprs())
    EXPECT_THAT(fusion.expr(id).op, ::testing::AnyOf(ir::Op::constant, ir::Op::broadcast));
  EXPECT_TRUE(same_outputs(before, interpret(fusion, inputs)));
}

/// The formulas of the table over floats. In a template, so that others are not instantiated.
template <class T>
T formula(ir::Op op, T a, T b) {
  static_cast<void>(b);
  switch (op) {
#define SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient) \
  case ir::Op::name:                                                                           \
    if constexpr (ir::DTypeRule::rule == ir::DTypeRule::kFloat ||                              \
                  ir::DTypeRule::rule == ir::DTypeRule::kNumeric)                              \
      return formula;                                                                          \
    break;
#define SEGFUSE_BINARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a, \
                       gradient_b)                                                                \
  SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a)
#include "segfuse/ops.def"
    default: break;  // any other: refused below
  }
  throw InternalError("no formula of floats");
}

TEST(Passes, FoldedConstantsAreWhatTheFormulaGivesInTheirType) {
  int folded = 0;
  for (const ir::OpInfo& op : ir::all_ops()) {
    if (op.op_class != ir::OpClass::kElementwise || op.op == ir::Op::where) continue;
    if (op.rule != ir::DTypeRule::kFloat && op.rule != ir::DTypeRule::kNumeric) continue;
    Rng rng(6, static_cast<std::uint64_t>(op.op));
    for (int draw = 0; draw < 200; ++draw) {
      const auto a = static_cast<float>(0.2 + 3 * rng.uniform());
      const auto b = static_cast<float>(0.2 + 3 * rng.uniform());
      ir::Fusion fusion("constants");
      std::vector<ir::ValId> operands{fusion.constant(a, DType::kF32)};
      if (op.max_operands == 2) operands.push_back(fusion.constant(b, DType::kF32));
      fusion.add_output(fusion.result(fusion.add_expr(op.op, operands, {})));
      fold_constants(fusion);
      const ir::ExprId id = fusion.val(fusion.outputs()[0].val).definition;
      if (fusion.expr(id).op != ir::Op::constant) continue;
      ++folded;
      const auto value = static_cast<float>(fusion.attr<double>(id, "value"));
      ASSERT_TRUE(identical(value, formula(op.op, a, b)))
          << op.name << " of " << a << ", " << b << " became " << value;
    }
  }
  EXPECT_GT(folded, 15 * 200);
}

/// The passes keep what `text` means for inputs of the sizes `inside`, and refuse those of the
/// sizes `outside` as it does. Each input has one axis.
void expect_still_refused(const std::string& text, const std::vector<std::int64_t>& inside,
                          const std::vector<std::int64_t>& outside) {
  const ir::Fusion fusion = ir::parse(text, "slices");
  ir::Fusion cleaned = fusion;
  run_passes(cleaned);
  const auto inputs = [](const std::vector<std::int64_t>& sizes) {
    std::vector<Tensor> all;
    for (const std::int64_t size : sizes)
      all.push_back(segfuse::testing::counting({size}, DType::kF32));
    return all;
  };
  EXPECT_TRUE(same_outputs(interpret(fusion, inputs(inside)), interpret(cleaned, inputs(inside))));
  EXPECT_THROW((void)interpret(fusion, inputs(outside)), UsageError);
  EXPECT_THROW((void)interpret(cleaned, inputs(outside)), UsageError);
}

/// A slice may leave the slice that it is taken from and still be inside of what that was taken
/// from: it is refused all the same.
TEST(Passes, ASliceOutOfASliceIsStillRefused) {
  expect_still_refused(
      "fusion \"slices\" {\n  symbols N, M, K\n  %0 = input \"x\" : f32[N]\n"
      "  %1 = input \"m\" : f32[M]\n  %2 = input \"k\" : f32[K]\n"
      "  %3 = slice(%0) {starts=[0], sizes=[M]}\n  %4 = slice(%3) {starts=[2], sizes=[K]}\n"
      "  output %4\n}\n",
      {10, 8, 4}, {10, 3, 4});
}

/// So is one whose start is a symbol.
TEST(Passes, ASliceThatBeginsOutsideOfASliceIsStillRefused) {
  expect_still_refused(
      "fusion \"slices\" {\n  symbols K\n  %0 = input \"x\" : f32[20]\n"
      "  %1 = input \"k\" : f32[K]\n  %2 = slice(%0) {starts=[0], sizes=[8]}\n"
      "  %3 = slice(%2) {starts=[K], sizes=[3]}\n  output %3\n}\n",
      {20, 5}, {20, 6});
}

/// And one whose inner slice is what may be outside.
TEST(Passes, ASliceOutOfASliceThatMayBeOutsideIsStillRefused) {
  expect_still_refused(
      "fusion \"slices\" {\n  symbols N\n  %0 = input \"x\" : f32[N]\n"
      "  %1 = slice(%0) {starts=[0], sizes=[8]}\n  %2 = slice(%1) {starts=[0], sizes=[3]}\n"
      "  output %2\n}\n",
      {8}, {4});
}

/// A product reads the rows of a log softmax's gradient, a sum reads them with an axis split: two
/// rules, each right alone, moved the reshape in opposite directions.
TEST(Passes, AStoredValueThatFollowsAReductionComesToRest) {
  for (const std::string follower :
       {"mul(%0, %3)", "broadcast(%2) {axes=[0], shape=[6, 5]}", "sum(%9) {axes=[2]}"}) {
    SCOPED_TRACE(follower);
    const ir::Fusion fusion = ir::parse(
        "fusion \"stored\" {\n  %0 = input \"x\" : f32[6, 5]\n  %1 = input \"w\" : f32[5, 8]\n"
        "  %9 = input \"y\" : f32[6, 5, 4]\n"
        "  %2 = sum(%0) {axes=[1]}\n  %3 = broadcast(%2) {axes=[0], shape=[6, 5]}\n  %4 = " +
        follower +
        "\n  %5 = sub(%0, %4)\n  %6 = reshape(%5) {shape=[3, 2, 5]}\n"
        "  %7 = sum(%6) {axes=[0, 1]}\n"
        "  %8 = matmul(%5, %1) {transpose_a=0, transpose_b=0}\n  output %7\n  output %8\n}\n");
    ir::Fusion rewritten = fusion;
    run_passes(rewritten, {.verify = true});
    const std::vector inputs{segfuse::testing::counting({6, 5}, DType::kF32),
                             segfuse::testing::counting({5, 8}, DType::kF32),
                             segfuse::testing::counting({6, 5, 4}, DType::kF32)};
    EXPECT_TRUE(same_outputs(interpret(fusion, inputs, {}, kRounded),
                             interpret(rewritten, inputs, {}, kRounded)));
  }
}

/// 2^-16 is an f16, but 2^16 is none.
TEST(Passes, ADivisorWithoutAReciprocalInItsTypeStays) {
  for (const auto& [power, stays] : {std::pair{-13, false}, {-16, true}}) {
    ir::Fusion fusion;
    ir::Builder b(fusion);
    const ir::ValId x = fusion.add_input("x", DType::kF16, {3});
    fusion.add_output(b.div(x, b.constant_like(std::ldexp(1, power), x)));
    ir::Fusion folded = fusion;
    EXPECT_EQ(fold_constants(folded), !stays) << power;
    const std::vector inputs{segfuse::testing::row({0x1p-16, 0x1p-18, 0x3p-20}, DType::kF16)};
    EXPECT_TRUE(same_outputs(interpret(fusion, inputs, {}, kRounded),
                             interpret(folded, inputs, {}, kRounded)));
  }
}

TEST(Passes, ACastThroughATypeThatLosesPlacesStays) {
  const auto changes = [](DType from, DType through, double value) {
    ir::Fusion fusion;
    ir::Builder b(fusion);
    fusion.add_output(b.cast(b.cast(fusion.add_input("x", from, {1}), through), from));
    ir::Fusion cleaned = fusion;
    const bool changed = clean_casts(cleaned);
    const std::vector inputs{segfuse::testing::row({value}, from)};
    EXPECT_TRUE(same_outputs(interpret(fusion, inputs, {}, kRounded),
                             interpret(cleaned, inputs, {}, kRounded)));
    return changed;
  };
  EXPECT_FALSE(changes(DType::kI32, DType::kF32, 0x1p24 + 1));
  EXPECT_TRUE(changes(DType::kI32, DType::kF64, 0x1p31 - 1));
  EXPECT_FALSE(changes(DType::kI64, DType::kF64, 0x1p52 + 1));
  EXPECT_FALSE(changes(DType::kF32, DType::kBF16, 1.001));
}

TEST(Passes, TheGreatestOfNothingIsTheLeastOfItsType) {
  for (const DType dtype : {DType::kI32, DType::kI64, DType::kF16, DType::kF64}) {
    ir::Fusion fusion;
    ir::Builder b(fusion);
    fusion.add_output(b.max(fusion.add_input("x", dtype, {2, 0}), {1}));
    const std::vector inputs{Tensor(dtype, {2, 0})};
    const std::vector<Tensor> before = interpret(fusion, inputs);
    EXPECT_TRUE(remove_empty_tensors(fusion));
    EXPECT_TRUE(same_outputs(before, interpret(fusion, inputs))) << name_of(dtype);
  }
}

/// Both are stretched along the same axes, but the one from a single element.
TEST(Passes, OperandsOfTwoShapesThatAreBroadcastAlikeStayApart) {
  const ir::Fusion fusion = ir::parse(
      "fusion \"alike\" {\n  symbols N, M\n  %0 = input \"a\" : f32[1]\n"
      "  %1 = input \"b\" : f32[N]\n  %2 = input \"c\" : f32[M]\n"
      "  %3 = broadcast(%0) {axes=[0], shape=[N, M]}\n"
      "  %4 = broadcast(%1) {axes=[0], shape=[N, M]}\n  %5 = sub(%3, %4)\n"
      "  %6 = sub(%4, %3)\n  %7 = mul(%5, %6)\n"
      "  %8 = broadcast(%2) {axes=[1], shape=[N, M]}\n  %9 = add(%7, %8)\n  output %9\n}\n",
      "alike");
  for (const std::int64_t n : {1, 4}) {
    std::vector<Tensor> inputs{Tensor(DType::kF32, {1}), Tensor(DType::kF32, {n}),
                               Tensor(DType::kF32, {3})};
    inputs[0].set(0, 7);
    for (std::int64_t i = 0; i < n; ++i) inputs[1].set(i, static_cast<double>(i));
    for (std::int64_t i = 0; i < 3; ++i) inputs[2].set(i, 0.5 * static_cast<double>(i));
    ir::Fusion cleaned = fusion;
    clean_broadcasts(cleaned);
    ir::verify(cleaned);
    EXPECT_TRUE(same_outputs(interpret(fusion, inputs), interpret(cleaned, inputs)));
  }
}

TEST(Passes, AnUnknownNameIsRefusedWithTheKnownOnes) {
  try {
    (void)find_pass("comon");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'comon'"));
    EXPECT_THAT(error.what(), HasSubstr("'common'"));
  }
}

TEST(Passes, TheHookSeesEveryRun) {
  RandomFusion program = seasoned_fusion(3, Numbers::kSmooth);
  std::vector<std::string_view> seen;
  const std::vector<PassTime> times =
      run_passes(program.fusion, {.after = [&](const Pass& pass, const ir::Fusion& fusion) {
                   seen.push_back(pass.name);
                   ir::verify(fusion);
                 }});
  ASSERT_EQ(times.size(), all_passes().size());
  EXPECT_EQ(seen.size(), times.size() * static_cast<std::size_t>(times[0].runs));
  for (std::size_t i = 0; i < times.size(); ++i) {
    EXPECT_EQ(seen[i], all_passes()[i].name);
    EXPECT_GE(times[i].seconds, 0);
  }
}

TEST(Passes, ABrokenPassIsNamed) {
  // verify() is what finds it; here the hook breaks the program behind the loop's back.
  ir::Fusion fusion;
  ir::Builder b(fusion);
  fusion.add_output(b.exp(fusion.add_input("x", DType::kF32, {4})));
  bool broken = false;
  EXPECT_THROW(run_passes(fusion, {.verify = true,
                                   .after =
                                       [&](const Pass&, const ir::Fusion& seen) {
                                         if (std::exchange(broken, true)) return;
                                         auto& ir = const_cast<ir::IrStorage&>(seen.storage());
                                         ir.vals[0].item.uses.clear();
                                       }}),
               InternalError);
}

}  // namespace
}  // namespace segfuse::compiler
