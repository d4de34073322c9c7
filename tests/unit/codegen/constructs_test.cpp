// Every construct of loop IR in C: programs that make them, and the text they become.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/rng.h"
#include "compiler/codegen/cpu/print_c.h"
#include "compiler/passes/pass.h"
#include "compiler/segment/segmenter.h"
#include "ir/text.h"
#include "support/c/c_kernels.h"
#include "support/random/group_runner.h"
#include "support/source_dir.h"

namespace segfuse::compiler {
namespace {

struct Program {
  const char* name;
  const char* text;
};
void PrintTo(const Program& program, std::ostream* out) { *out << program.name; }

std::vector<Program> programs() {
  return {
      {"pointwise",
       "%0 = input \"a\" : f32[B, T]\n%1 = input \"b\" : f32[T]\n"
       "%2 = broadcast(%1) {axes=[1], shape=[B, T]}\n%3 = add(%0, %2)\n"
       "%4 = tanh(%3)\noutput %4\n"},
      {"transpose",
       "%0 = input \"a\" : f32[B, T]\n%1 = permute(%0) {perm=[1, 0]}\n"
       "%2 = exp(%1)\noutput %2\n"},
      {"softmax",
       "%0 = input \"a\" : f32[B, T]\n%1 = max(%0) {axes=[1]}\n"
       "%2 = broadcast(%1) {axes=[0], shape=[B, T]}\n%3 = sub(%0, %2)\n%4 = exp(%3)\n"
       "%5 = sum(%4) {axes=[1]}\n%6 = broadcast(%5) {axes=[0], shape=[B, T]}\n"
       "%7 = div(%4, %6)\noutput %7\n"},
      {"column_sum", "%0 = input \"a\" : f32[B, T]\n%1 = sum(%0) {axes=[0]}\noutput %1\n"},
      {"argmax",
       "%0 = input \"a\" : f32[B, T]\n%1 = argmax(%0) {axes=[1]}\n"
       "%2 = argmax(%0) {axes=[0]}\noutput %1\noutput %2\n"},
      {"whole_numbers",
       "%0 = input \"a\" : i32[B, T]\n%1 = mul(%0, %0)\n%2 = prod(%1) {axes=[1]}\n"
       "%3 = min(%0) {axes=[0]}\n%4 = max(%0) {axes=[0, 1]}\n"
       "%5 = sum(%0) {axes=[1]}\n"
       "output %2\noutput %3\noutput %4\noutput %5\n"},
      {"halves",
       "%0 = input \"a\" : f16[B, T]\n%1 = input \"b\" : bf16[B, T]\n"
       "%2 = cast(%1) {dtype=f16}\n%3 = mul(%0, %2)\n%4 = tanh(%3)\n"
       "%5 = cast(%4) {dtype=bf16}\n%6 = sum(%0) {axes=[1]}\noutput %4\noutput %5\n"
       "output %6\n"},
      {"bools",
       "%0 = input \"a\" : f32[B, T]\n%1 = input \"b\" : bool[B, T]\n"
       "%2 = constant {value=0.25, dtype=f32}\n"
       "%3 = broadcast(%2) {axes=[], shape=[B, T]}\n%4 = lt(%0, %3)\n"
       "%5 = logical_xor(%4, %1)\n%6 = where(%5, %0, %3)\n%7 = cast(%5) {dtype=f64}\n"
       "%8 = logical_not(%5)\noutput %6\noutput %7\noutput %8\n"},
      {"pad_slice_concat",
       "%0 = input \"a\" : f32[B, T]\n%1 = pad(%0) {low=[1, 2], high=[0, 3], value=1.5}\n"
       "%2 = slice(%1) {starts=[0, 1], sizes=[B, T]}\n%3 = concat(%2, %0) {axis=1}\n"
       "output %1\noutput %3\n"},
      {"take",
       "%0 = input \"a\" : f32[B, T]\n%1 = input \"index\" : i64[B]\n"
       "%2 = take(%0, %1) {axis=0}\n%3 = square(%2)\noutput %3\n"},
      {"random",
       "%0 = input \"seed\" : i64[2]\n%1 = input \"a\" : f32[B, T]\n"
       "%2 = random_uniform(%0) {shape=[B, T], stream=5}\n%3 = add(%1, %2)\noutput %3\n"},
      {"iota",
       "%0 = iota {length=[T], dtype=f32}\n%1 = input \"a\" : f32[B, T]\n"
       "%2 = broadcast(%0) {axes=[1], shape=[B, T]}\n%3 = mul(%1, %2)\noutput %3\n"},
      {"reshape",
       "%0 = input \"a\" : f64[B, T]\n%1 = reshape(%0) {shape=[B*T]}\n%2 = floor(%1)\n"
       "%3 = pow(%2, %1)\noutput %3\n"},
      {"unfold",
       "%0 = input \"a\" : f32[B, T]\n"
       "%1 = unfold(%0) {axis=1, size=3, stride=1, dilation=1}\n%2 = erf(%1)\n"
       "output %2\n"},
  };
}

ir::Fusion fusion_of(const Program& program) {
  return ir::parse(std::string("fusion \"") + program.name + "\" {\nsymbols B, T\n" + program.text +
                   "}\n");
}

SegmentedFusion cut_of(const Program& program) {
  ir::Fusion fusion = fusion_of(program);
  run_passes(fusion, {.verify = true});
  return segment(std::move(fusion));
}

std::vector<Tensor> inputs_of(const ir::Fusion& fusion, std::int64_t b, std::int64_t t) {
  Rng rng(7);
  std::vector<Tensor> inputs;
  for (const ir::Input& input : fusion.inputs()) {
    Shape shape;
    for (const ir::Extent& extent : fusion.val(input.val).shape)
      shape.push_back(fusion.canonical(extent).evaluate([&](ir::SymbolId symbol) {
        return fusion.to_string(ir::Extent(symbol)) == "B" ? b : t;
      }));
    Tensor tensor(fusion.val(input.val).dtype, shape);
    const bool real = is_float(tensor.dtype());
    for (std::int64_t i = 0; i < tensor.size(); ++i)
      tensor.set(i, real ? rng.normal()
                         : static_cast<double>(rng.below(static_cast<std::uint64_t>(
                               tensor.dtype() == DType::kBool ? 2 : b))));
    if (real && tensor.size() > 40) {  // NaN wins a maximum, and so does the first of equal ones
      tensor.set(21, std::numeric_limits<double>::quiet_NaN());
      tensor.set(3, 9);
      tensor.set(30, 9);
    }
    inputs.push_back(tensor);
  }
  return inputs;
}

class Constructs : public ::testing::TestWithParam<Program> {};

TEST_P(Constructs, InCAreThoseOfTheInterpreter) {
  test::CKernels kernels;
  const SegmentedFusion cut = cut_of(GetParam());
  Schedule narrow;
  narrow.tile = 24;
  narrow.unroll = 3;
  for (const Schedule& schedule : {Schedule{}, narrow})
    for (const std::int64_t t : {4, 16, 35, 150})
      for (const std::int64_t b : {1, 3, 70}) {
        SCOPED_TRACE(::testing::Message() << b << " by " << t);
        testing::run_groups(
            cut, inputs_of(cut.fusion(), b, t), [&](const Space&) { return schedule; }, {},
            [&](const loop::Kernel& kernel, std::span<Tensor> globals,
                const test::CKernels::Size& size) {
              return kernels.compare(kernel, globals, size);
            });
        if (HasFailure()) return;
      }
}

TEST(SomeConstructs, AnIndexOutOfRangeIsReported) {
  test::CKernels kernels;
  const Program program = programs()[9];
  const SegmentedFusion cut = cut_of(program);
  for (const std::int64_t wrong : {-1, 5}) {
    std::vector<Tensor> inputs = inputs_of(cut.fusion(), 5, 40);
    inputs[1].set(4, static_cast<double>(wrong));
    EXPECT_THROW(testing::run_groups(
                     cut, inputs, [](const Space&) { return Schedule{}; }, {},
                     [&](const loop::Kernel& kernel, std::span<Tensor> globals,
                         const test::CKernels::Size& size) {
                       return kernels.compare(kernel, globals, size);
                     }),
                 UsageError);
  }
}

/// The kernels' functions, without the prelude.
std::string functions_of(const Program& program) {
  const SegmentedFusion cut = cut_of(program);
  std::string text;
  testing::run_groups(
      cut, inputs_of(cut.fusion(), 3, 16), [](const Space&) { return Schedule{}; },
      [&](const Space&, const LoweredGroup& group) {
        for (const GroupKernel& kernel : group.kernels) {
          const std::string whole = cpu::print_c(kernel.kernel);
          EXPECT_EQ(whole, cpu::print_c(kernel.kernel));
          text += (text.empty() ? "" : "\n") + whole.substr(whole.find("// Kernel "));
        }
      });
  return text;
}

TEST_P(Constructs, BecomeTheTextThatStands) {
  const std::string path =
      std::string(SEGFUSE_SOURCE_DIR "/tests/golden/codegen/") + GetParam().name + ".c";
  const std::string text = functions_of(GetParam());
  std::ostringstream stands;
  stands << std::ifstream(path).rdbuf();
  if (text != stands.str() && std::getenv("SEGFUSE_UPDATE_GOLDEN")) {
    std::ofstream(path) << text;
    return;
  }
  EXPECT_EQ(text, stands.str()) << "set SEGFUSE_UPDATE_GOLDEN=1 to rewrite " << path;
}

TEST_P(Constructs, CompileWithoutWarnings) {
  const SegmentedFusion cut = cut_of(GetParam());
  testing::run_groups(
      cut, inputs_of(cut.fusion(), 3, 16), [](const Space&) { return Schedule{}; },
      [&](const Space&, const LoweredGroup& group) {
        for (const GroupKernel& kernel : group.kernels) {
          // A kernel is called by name from another file.
          const std::string text = cpu::print_c(kernel.kernel);
          EXPECT_EQ(test::compiler_complaints(text, "-Wall -Wextra -Werror"), "");
          EXPECT_EQ(test::compiler_complaints(text, "-Wall -Wextra -Werror -DSF_SCALAR"), "");
        }
      });
}

TEST(SomeConstructs, AStrangersCompilerWithoutVectorsGivesTheSameNumbers) {
  test::CKernels kernels(true, "-O1 -DSF_SCALAR");
  for (const std::size_t i : {0U, 2U, 4U, 6U, 8U}) {
    const SegmentedFusion cut = cut_of(programs()[i]);
    testing::run_groups(
        cut, inputs_of(cut.fusion(), 3, 35), [](const Space&) { return Schedule{}; }, {},
        [&](const loop::Kernel& kernel, std::span<Tensor> globals,
            const test::CKernels::Size& size) { return kernels.compare(kernel, globals, size); });
  }
  EXPECT_GE(kernels.compiled(), 5);
}

/// What the kernels of some programs write, by one compiler.
std::string written_by(test::CKernels& kernels) {
  for (const std::size_t i : {0U, 2U, 3U, 4U, 6U}) {
    const SegmentedFusion cut = cut_of(programs()[i]);
    testing::run_groups(
        cut, inputs_of(cut.fusion(), 7, 150), [](const Space&) { return Schedule{}; }, {},
        [&](const loop::Kernel& kernel, std::span<Tensor> globals,
            const test::CKernels::Size& size) { return kernels.compare(kernel, globals, size); });
  }
  return kernels.written();
}

TEST(SomeConstructs, HaveTheSameBitsByAllCompilersAndInstructionSets) {
  test::CKernels in_process;
  const std::string want = written_by(in_process);
  ASSERT_GT(want.size(), 4000U);
  for (const std::string& flags : test::machine_flags()) {
    test::CKernels stranger(true, "-O2 -ffp-contract=fast " + flags);
    EXPECT_TRUE(written_by(stranger) == want) << "with " << flags;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Constructs, ::testing::ValuesIn(programs()),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace segfuse::compiler
