// The public face: text in, description and results out.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/code/float_mode.h"
#include "engine/program_state.h"
#include "ir/builder.h"
#include "ir/text.h"
#include "segfuse/error.h"
#include "segfuse/ops.h"
#include "segfuse/program.h"
#include "support/files.h"
#include "support/source_dir.h"
#include "support/tensors.h"

namespace segfuse {
namespace {

using segfuse::testing::expect_values;
using segfuse::testing::row;
using ::testing::HasSubstr;

std::string sample() {
  ir::Fusion fusion("sample");
  ir::Builder b(fusion);
  const ir::Extent n(fusion.symbol("N"));
  const ir::ValId x = fusion.add_input("x", DType::kF32, {n});
  fusion.add_output(b.mul(b.exp(x), b.constant(2.0)), "y");
  return ir::print(fusion);
}

TEST(Program, InputsThatShareMemoryWithAnOverwrittenOneAreReadAsTheyWere) {
  ops::FusionBuilder f;
  const ops::Value w = f.input("w", DType::kF32, {"N"});
  const ops::Value x = f.input("x", DType::kF32, {"N"});
  const ops::Value next = w + 1.0;
  f.output(next);
  f.alias(next, w);
  f.output(x * 10.0);
  const Program program = f.build();
  for (const char* backend : {"compiled", "loops", "reference"})
    for (const std::int64_t first : {0, 1, 4, 5}) {
      Tensor all = row({1, 1, 1, 1, 1, 2, 2, 2, 2, 2}, DType::kF32);
      const auto part = [&](std::int64_t from) {
        const auto owner = std::make_shared<Tensor>(all);
        return Tensor::borrow(DType::kF32, {5},
                              {owner, static_cast<std::byte*>(all.data()) + 4 * from});
      };
      const std::vector<Tensor> outputs =
          program.run(std::vector{part(0), part(first)}, {.backend = backend});
      std::vector<double> expected;
      for (std::int64_t i = first; i < first + 5; ++i) expected.push_back(i < 5 ? 10 : 20);
      expect_values(outputs[1], expected);
      expect_values(outputs[0], {2, 2, 2, 2, 2});
      expect_values(all, {2, 2, 2, 2, 2, 2, 2, 2, 2, 2});
    }
  ops::FusionBuilder g;
  const ops::Value a = g.input("a", DType::kF32, {"N"});
  const ops::Value b = g.input("b", DType::kF32, {"N"});
  for (const ops::Value& input : {a, b}) {
    const ops::Value changed = input * 3.0;
    g.output(changed);
    g.alias(changed, input);
  }
  const Tensor both = row({1, 2}, DType::kF32);
  try {
    (void)g.build().run(std::vector{both, both});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("inputs 'a' and 'b' of the Fusion 'main' share memory"));
  }
  expect_values(both, {1, 2});
}

/// What a run gives, or its error, on stderr.
void run_late(const std::string& backend) {
  try {
    const std::vector<Tensor> inputs{row({1, 2}, DType::kF32)};
    const Program program = Program::from_text(sample());
    const double last = program.run(inputs, {.backend = backend})[0].at(1);
    std::fprintf(stderr, "%s: %.3f\n", backend.c_str(), last);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "%s: %s\n", backend.c_str(), error.what());
  }
}

// Statics of the library that were made after the handler was registered would be gone.
TEST(ProgramDeathTest, RunsWhileTheProcessEnds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto end_after = [](const char* before) {
    std::atexit([] {
      for (const char* backend : {"loops", "reference", "compiled"}) run_late(backend);
    });
    run_late(before);
    std::exit(0);
  };
  const auto ended = ::testing::ExitedWithCode(0);
  EXPECT_EXIT(end_after("loops"), ended,
              "loops: 14.778\nloops: 14.778\nreference: 14.778\ncompiled: 14.778");
  // The compiler of C ends before the handlers that are older than it.
  EXPECT_EXIT(end_after("compiled"), ended,
              "compiled: 14.778\nloops: 14.778\nreference: 14.778\ncompiled: (14.778|kernel)");
}

TEST(Program, ReadsDescribesAndRuns) {
  const Program program = Program::from_text(sample());
  EXPECT_EQ(program.name(), "sample");
  ASSERT_EQ(program.inputs().size(), 1U);
  EXPECT_EQ(program.inputs()[0].name, "x");
  EXPECT_EQ(program.inputs()[0].shape, "[N]");
  EXPECT_EQ(program.outputs()[0].name, "y");
  EXPECT_EQ(program.outputs()[0].dtype, DType::kF32);
  const std::vector<Tensor> inputs{row({0, 1}, DType::kF32)};
  expect_values(program.run(inputs)[0], {2, 2 * std::exp(1.0)}, 1e-6);
  expect_values(program.run(inputs, {.threads = 2, .check_numerics = true})[0],
                {2, 2 * std::exp(1.0)}, 1e-6);
  expect_values(program.run_reference(inputs)[0], {2, 2 * std::exp(1.0)}, 1e-14);
  EXPECT_THROW(program.run(std::vector{row({1000}, DType::kF32)}, {.check_numerics = true}),
               DataError);
}

TEST(Program, RunsFromSeveralThreadsWaitForEachOther) {
  const Program program = Program::from_text(sample());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int n = 1; n < 50; ++n) {
        const std::vector<Tensor> inputs{Tensor::full(DType::kF32, {n + 60 * i}, i)};
        const Tensor made = program.run(inputs, {.threads = 1 + n % 2})[0];
        if (made.size() != n + 60 * i || std::abs(made.at(n - 1) - 2 * std::exp(i)) > 1e-4) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Program, NumbersOfThreadsAreBounded) {
  const std::vector<Tensor> inputs{row({0}, DType::kF32)};
  for (const int threads : {-1, 4097, 1 << 30})
    EXPECT_THROW((void)Program::from_text(sample()).run(inputs, {.threads = threads}), UsageError);
}

/// XLA's threads flush denormals, and so do those of PyTorch after set_flush_denormal(True).
TEST(Program, TheCallersFloatModeChangesNoResult) {
  ir::Fusion fusion("roots");
  ir::Builder b(fusion);
  const ir::ValId x = fusion.add_input("x", DType::kF32, {ir::Extent(fusion.symbol("N"))});
  fusion.add_output(b.mul(b.sqrt(x), b.constant(1e-20)), "y");
  const Program program = Program::from_text(ir::print(fusion));
  const std::vector<Tensor> inputs{row(std::vector<double>(100'000, 1e-39), DType::kF32)};
  for (const int threads : {1, 4}) {
    const FloatMode mode(Denormals::kFlushed);
    const Tensor made = program.run(inputs, {.threads = threads})[0];
    volatile float tiny = 1e-39F;
    EXPECT_EQ(tiny * 2, 0.0F) << "the caller's mode was not given back";
    const FloatMode usual(Denormals::kKept);
    expect_values(made, std::vector<double>(100'000, 3.1622776e-40), 2e-45);
  }
}

TEST(Program, EmitsItsTextAndNamesWhatElseThereIs) {
  const Program program = Program::from_text(sample());
  EXPECT_EQ(program.emit("ir"), sample());
  try {
    (void)program.emit("wasm");
    FAIL() << "wasm was emitted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'wasm' cannot be emitted; what can is 'ir'"));
  }
}

TEST(Program, EmitsItsKernels) {
  const Program program = Program::from_file(SEGFUSE_SOURCE_DIR "/examples/layer_norm.sf");
  const std::string plan = program.emit("plan");
  EXPECT_THAT(plan, HasSubstr("group 0: RowNorm of"));
  EXPECT_THAT(plan, HasSubstr("space [B*T, 256 reduced innermost]"));
  EXPECT_THAT(plan, HasSubstr("kernel row_norm x B*T: b0 = 'x'"));
  EXPECT_THAT(program.emit("loop"), HasSubstr("outer p in 0 .. B*T"));
  EXPECT_THAT(program.emit("kernels"), HasSubstr("void row_norm(void *const *buffers"));
  EXPECT_THAT(program.emit("cuda"), HasSubstr("extern \"C\" __global__ void"));
  EXPECT_EQ(program.emit("kernels"), program.emit("kernels"));
  EXPECT_NE(program.emit("plan", {.sizes = {{"B", 1}, {"T", 1}}}), "");
}

TEST(Program, ANegativeNumberOfThreadsIsRefused) {
  const Program program =
      Program::from_text("fusion {\n  symbols N\n  %0 = input \"x\" : f32[N]\n  output %0\n}\n");
  const std::vector<Tensor> inputs{Tensor::zeros(DType::kF32, {2})};
  EXPECT_THROW(program.run(inputs, {.threads = -1}), UsageError);
}

TEST(Program, OutputsAreNobodyElsesMemory) {
  const Program program = Program::from_text(
      "fusion \"in place\" {\n  symbols N\n  %0 = input \"x\" : f32[N]\n  %1 = exp(%0)\n"
      "  output %1\n  output %0\n  alias %1 -> %0\n}\n");
  for (const char* backend : {"compiled", "loops", "reference"}) {
    const Tensor x = row({0, 1}, DType::kF32);
    const auto outputs = program.run(std::vector{x}, {.backend = backend});
    expect_values(x, {1, std::exp(1.0)}, 1e-6);
    expect_values(outputs[0], {1, std::exp(1.0)}, 1e-6);
    expect_values(outputs[1], {0, 1}, 0);
    for (const Tensor& output : outputs) EXPECT_FALSE(output.shares_storage_with(x)) << backend;
  }
}

TEST(Program, RunsOnEveryBackend) {
  const Program program = Program::from_text(sample());
  const std::vector inputs{row({0, 1}, DType::kF32)};
  for (const char* backend : {"compiled", "loops", "reference"})
    expect_values(program.run(inputs, {.backend = backend})[0], {2, 2 * std::exp(1.0)}, 1e-6);
  EXPECT_THROW(program.run(inputs, {.backend = "gpu"}), UsageError);
}

TEST(Program, NothingHasNoArgmaxOnAnyBackend) {
  const Program program = Program::from_text(
      "fusion {\n  symbols B, N\n  %0 = input \"x\" : f32[B, N]\n"
      "  %1 = exp(%0)\n  %2 = argmax(%1) {axes=[1]}\n  output %2\n}\n");
  for (const char* backend : {"compiled", "loops", "reference"}) {
    const std::vector<Tensor> rows{Tensor::zeros(DType::kF32, {2, 0})};
    EXPECT_THROW(program.run(rows, {.backend = backend}), UsageError) << backend;
    const std::vector<Tensor> none{Tensor::zeros(DType::kF32, {0, 0})};
    EXPECT_EQ(program.run(none, {.backend = backend})[0].size(), 0) << backend;
    const std::vector<Tensor> some{Tensor::zeros(DType::kF32, {2, 3})};
    EXPECT_EQ(program.run(some, {.backend = backend})[0].at(1), 0) << backend;
  }
}

TEST(Program, KeepsWhatItMadeWhenOptionsAlternate) {
  const Program program = Program::from_text(sample());
  const std::vector inputs{row({0, 1}, DType::kF32)};
  for (int i = 0; i < 3; ++i)
    for (const int threads : {1, 2})
      for (const bool check : {false, true})
        expect_values(program.run(inputs, {.threads = threads, .check_numerics = check})[0],
                      {2, 2 * std::exp(1.0)}, 1e-6);
  EXPECT_EQ(program.state().all.size(), 2U) << "one that checks and one that does not";
  EXPECT_EQ(program.state().pool.size(), 2);
}

TEST(Program, TakesWhatIsNotGivenFromItsContext) {
  const Program program = Program::from_text(sample());
  const Context context = Context().with(options::kThreads, std::int64_t{2});
  const auto run = [&](const Context& with) {
    (void)program.run(std::vector{row({1000}, DType::kF32)}, {.context = with});
  };
  run(context);
  EXPECT_EQ(program.state().pool.size(), 2);
  EXPECT_THROW(run(context.with(options::kCheckNumerics, std::string("op"))), DataError);
  EXPECT_THROW(run(context.with(options::kDevice, std::string("toaster"))), UsageError);
  run(context.with(options::kBackend, std::string("loops")));
  EXPECT_EQ(program.state().last->options.backend, "loops");
  run(context);
  EXPECT_EQ(program.state().last, &program.state().all.front()) << "what was made is kept";
}

TEST(Program, KeepsItsCodeInTheFolderOfItsContext) {
  const test::TemporaryDirectory folder;
  const Context context = Context().with(options::kCacheDir, (folder / "code").string());
  std::string reason;
  if (engine::cpu_compiler_name(&reason).empty()) GTEST_SKIP() << reason;
  const std::vector inputs{row({0, 1}, DType::kF32)};
  (void)Program::from_text(sample()).run(inputs);
  EXPECT_FALSE(std::filesystem::exists(folder / "code"));
  (void)Program::from_text(sample()).run(inputs, {.context = context});
  EXPECT_FALSE(std::filesystem::is_empty(folder / "code"));
}

TEST(Program, ContextsThatMeanTheSameShareAnExecutable) {
  const test::TemporaryDirectory folder;
  const Program program = Program::from_text(sample());
  const auto run = [&](const Context& with) {
    expect_values(program.run(std::vector{row({0, 1}, DType::kF32)}, {.context = with})[0],
                  {2, 2 * std::exp(1.0)}, 1e-6);
  };
  for (int i = 1; i <= 4; ++i) {
    const Context context = Context()
                                .with(options::kThreads, std::int64_t{i})
                                .with(options::kCacheDir, (folder / std::to_string(i)).string());
    run(context);
    EXPECT_EQ(program.state().pool.size(), i);
    run(context.with(options::kBackend, std::string("loops")));
    run(context.with(options::kCheckStreams, true));
  }
  EXPECT_EQ(program.state().all.size(), 3U);
}

TEST(Program, ManyShareTheThreadsOfTheProcess) {
  const auto threads_of_process = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  const auto before = threads_of_process();
  const std::vector inputs{row({0, 1}, DType::kF32)};
  std::vector<Program> programs;
  for (int i = 0; i < 100; ++i) {
    programs.push_back(Program::from_text(sample()));
    expect_values(programs.back().run(inputs, {.threads = 8})[0], {2, 2 * std::exp(1.0)}, 1e-6);
  }
  EXPECT_LE(threads_of_process() - before, 8);
}

TEST(Program, EmitsItsSegmentsAndWhatPassesDo) {
  const Program program = Program::from_file(SEGFUSE_SOURCE_DIR "/examples/layer_norm.sf");
  const std::string segments = program.emit("segments");
  EXPECT_THAT(segments, HasSubstr("1 groups, 1 of them kernels"));
  EXPECT_THAT(segments, HasSubstr("group 0: RowNorm over [B, T, 256 reduced]"));
  const std::string before = program.emit("ir");
  EXPECT_EQ(program.after_pass("dead-code"), before);
  const std::vector<PassInfo> passes = program.passes();
  ASSERT_FALSE(passes.empty());
  EXPECT_EQ(passes[0].name, "dead-code");
  for (const PassInfo& pass : passes) {
    EXPECT_FALSE(program.after_pass(pass.name).empty()) << pass.name;
    EXPECT_GE(pass.runs, 1);
    EXPECT_GE(pass.milliseconds, 0);
  }
  EXPECT_EQ(program.emit("ir"), before) << "a copy is compiled";
  EXPECT_THROW((void)program.after_pass("fuse"), UsageError);
}

TEST(Program, FilesAreNamedInErrors) {
  const test::TemporaryDirectory folder;
  const auto path = folder / "segfuse_program_test.sf";
  std::ofstream(path) << sample();
  EXPECT_EQ(Program::from_file(path).emit("ir"), sample());
  std::ofstream(path) << "no program";
  try {
    (void)Program::from_file(path);
    FAIL() << "nonsense was read";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("segfuse_program_test.sf:1:"));
  }
  std::filesystem::remove(path);
  EXPECT_THROW((void)Program::from_file(path), DataError);
}

}  // namespace
}  // namespace segfuse
