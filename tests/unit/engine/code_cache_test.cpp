// Machine code of a program: made once for a class of sizes, whatever the extents.

#include <gtest/gtest.h>

#include <thread>

#include "engine/compiled/kernels.h"
#include "ir/bind.h"
#include "ir/builder.h"
#include "support/tensors.h"

namespace segfuse::engine {
namespace {

using testing::uniform;

/// Layer norm over rows of any length, and a compiler of its own that keeps nothing on disk.
class CodeCache : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    compiler_ = jit::open_cpu_compiler(&reason, {.target = {}, .capacity = 64});
    if (!compiler_) GTEST_SKIP() << reason;
  }

  static ir::Fusion layer_norm() {
    ir::Fusion fusion("norm");
    ir::Builder b(fusion);
    const ir::Extent n = fusion.symbol("N");
    const ir::Extent c = fusion.symbol("C");
    const ir::ValId x = fusion.add_input("x", DType::kF32, {n, c});
    const ir::ValId scale = fusion.add_input("scale", DType::kF32, {c});
    const ir::ValId shift = fusion.add_input("shift", DType::kF32, {c});
    fusion.add_output(b.layer_norm(x, scale, shift));
    return fusion;
  }

  /// Asks for the code of every group for inputs of that shape.
  static void prepare(CpuKernels& code, std::int64_t n, std::int64_t c) {
    Rng rng(1);
    const std::vector<Tensor> inputs{uniform(rng, DType::kF32, {n, c}),
                                     uniform(rng, DType::kF32, {c}),
                                     uniform(rng, DType::kF32, {c})};
    ir::Sizes sizes;
    std::vector<Shape> shapes;
    for (const Tensor& input : inputs) shapes.push_back(input.shape());
    for (const CpuGroup* group : code.prepare(shapes, sizes)) {
      if (group == nullptr) continue;
      for (const CpuKernel& kernel : group->kernels) ASSERT_NE(kernel.function, nullptr);
    }
  }
  std::int64_t compiled() const { return compiler_->counters().compiled; }

  std::shared_ptr<jit::CpuCompiler> compiler_;
};

TEST_F(CodeCache, NewExtentsOfAClassCompileNothing) {
  CpuKernels code(layer_norm(), compiler_);
  prepare(code, 100, 512);
  const std::int64_t once = compiled();
  EXPECT_GE(once, 1);
  for (const std::int64_t n : {100, 101, 4000})
    for (const std::int64_t c : {512, 513, 700}) prepare(code, n, c);
  EXPECT_EQ(compiled(), once);
}

TEST_F(CodeCache, AnotherClassIsCompiledOnceAndTheFirstIsStillThere) {
  CpuKernels code(layer_norm(), compiler_);
  prepare(code, 100, 512);
  const std::int64_t once = compiled();
  prepare(code, 100, 3);  // rows that short lie across the lanes
  const std::int64_t twice = compiled();
  EXPECT_GT(twice, once);
  prepare(code, 90, 512);
  prepare(code, 90, 4);
  EXPECT_EQ(compiled(), twice);
}

TEST_F(CodeCache, EqualProgramsShareTheirCode) {
  CpuKernels first(layer_norm(), compiler_);
  prepare(first, 100, 512);
  const std::int64_t once = compiled();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      CpuKernels other(layer_norm(), compiler_);
      prepare(other, 7, 600);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiled(), once);
}

}  // namespace
}  // namespace segfuse::engine
