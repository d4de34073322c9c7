// Products of f32 values in TF32: which products a device's library is asked for, what they give,
// and that a program runs in either precision.

#include <bit>
#include <cmath>

#include "ir/body.h"
#include "segfuse/device_function.h"
#include "segfuse/error.h"
#include "segfuse/program.h"
#include "unit/engine_gpu/device_test.h"

namespace segfuse::engine::testing {
namespace {

using ir::ValId;
using segfuse::testing::uniform;

float rounded_to_tf32(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0xFFF + ((bits >> 13) & 1)) & ~std::uint32_t{0x1FFF});
}

/// A library that multiplies in the host's memory, for f32 operands without gaps.
class HostProduct final : public runtime::GpuMatmul {
 public:
  explicit HostProduct(const runtime::GpuProduct& product) : p_(product) {}
  std::size_t workspace_bytes() const override { return 0; }
  void run(runtime::StreamHandle /*stream*/, const void* a, const void* b, void* out,
           void* /*workspace*/) const override {
    const auto at = [&](const runtime::GpuMatrix& matrix, const void* from, std::int64_t batch,
                        std::int64_t row, std::int64_t column) {
      const float x = static_cast<const float*>(
          from)[batch * matrix.batch_stride + (matrix.by_columns ? column * matrix.leading + row
                                                                 : row * matrix.leading + column)];
      return static_cast<double>(p_.tf32 ? rounded_to_tf32(x) : x);
    };
    for (std::int64_t batch = 0; batch < p_.batch; ++batch)
      for (std::int64_t i = 0; i < p_.m; ++i)
        for (std::int64_t j = 0; j < p_.n; ++j) {
          double sum = 0;
          for (std::int64_t k = 0; k < p_.k; ++k)
            sum += at(p_.a, a, batch, i, k) * at(p_.b, b, batch, k, j);
          static_cast<float*>(out)[(batch * p_.m + i) * p_.n + j] = static_cast<float>(sum);
        }
  }

 private:
  runtime::GpuProduct p_;
};

/// Kernels of programs beside that library, which notes what it is asked for.
class WithLibrary final : public runtime::KernelLoader {
 public:
  int multiprocessors() const override { return kernels_->multiprocessors(); }
  runtime::GpuKernel kernel(const runtime::GpuProgram& program, const std::string& entry) override {
    return kernels_->kernel(program, entry);
  }
  void launch(runtime::StreamHandle stream, runtime::GpuKernel kernel,
              const runtime::GpuLaunch& launch, const void* argument, std::size_t size) override {
    kernels_->launch(stream, kernel, launch, argument, size);
  }
  std::unique_ptr<runtime::GpuMatmul> matmul(const runtime::GpuProduct& product) override {
    asked.push_back(product);
    if (product.dtype != DType::kF32) return nullptr;
    return std::make_unique<HostProduct>(product);
  }

  std::vector<runtime::GpuProduct> asked;

 private:
  std::shared_ptr<runtime::KernelLoader> kernels_ = segfuse::testing::make_program_kernels();
};

struct Device {
  std::shared_ptr<WithLibrary> library = std::make_shared<WithLibrary>();
  std::shared_ptr<Accelerator> accelerator = Accelerator::make(
      "sim:precision", library, std::make_unique<runtime::sim::SimDevice>(runtime::sim::eager()),
      AcceleratorOptions{});
};

double largest_difference(const Tensor& a, const Tensor& b) {
  double largest = 0;
  for (std::int64_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(a.at(i) - b.at(i)));
  return largest;
}

TEST(Precision, TheLibraryIsAskedForTF32AlsoWithinLoops) {
  Rng rng(3);
  TestProgram p;
  const ValId x = p.input(uniform(rng, DType::kF32, {5, 7}));
  const ValId w = p.input(uniform(rng, DType::kF32, {7, 7}));
  const ValId z = p.input(uniform(rng, DType::kF64, {4, 4}));
  ir::Fusion body("step");
  ir::Builder inside(body);
  const ValId h = body.add_input("h", DType::kF32, {5, 7});
  const ValId weight = body.add_input("w", DType::kF32, {7, 7});
  body.add_output(inside.tanh(inside.matmul(h, weight)), "h");
  p.output(p.b.matmul(x, w));
  p.output(p.b.matmul(z, z));
  p.output(p.b.make_all(ir::Op::scan, {x, w},
                        {std::int64_t{1}, std::int64_t{0}, ir::Extents{3}, std::int64_t{0},
                         ir::Body{std::make_shared<const ir::Fusion>(std::move(body))}})[0]);
  const std::vector<Tensor> exact = ir::interpret(p.fusion, p.inputs, reference_opaque_ops());
  for (const bool tf32 : {false, true}) {
    const Device device;
    ThreadPool pool(1);
    Executable executable(p.fusion, pool, {.tf32 = tf32, .accelerator = device.accelerator});
    const std::vector<Tensor> found = executable.run(p.inputs);
    ASSERT_EQ(device.library->asked.size(), 3U);
    for (const runtime::GpuProduct& product : device.library->asked) EXPECT_EQ(product.tf32, tf32);
    for (const std::size_t output : {0, 2}) {
      const double error = largest_difference(found[output], exact[output]);
      EXPECT_LE(error, tf32 ? 2e-2 : 1e-5);
      EXPECT_GE(error, tf32 ? 1e-5 : 0) << "nothing was rounded";
    }
    EXPECT_LE(largest_difference(found[1], exact[1]), 1e-12);
  }
}

Program product() {
  return Program::from_text(
      "fusion \"product\" {\n  symbols M\n  %0 = input \"a\" : f32[M, 9]\n"
      "  %1 = input \"b\" : f32[9, 6]\n  %2 = matmul(%0, %1) {transpose_a=0, transpose_b=0} : "
      "f32[M, 6]\n  output %2\n}\n");
}

TEST(Precision, OneProgramRunsInEither) {
  Rng rng(4);
  const std::vector<Tensor> inputs{uniform(rng, DType::kF32, {8, 9}),
                                   uniform(rng, DType::kF32, {9, 6})};
  const Device device;
  const Context context;
  keep_in(context, device.accelerator);
  const Program program = product();
  const auto run = [&](const std::string& precision) {
    return program.run(
        inputs,
        {.context = context, .precision = precision, .device = device.accelerator->name()})[0];
  };
  const Tensor exact = run("float32");
  const Tensor rounded = run("tf32");
  EXPECT_GE(largest_difference(exact, rounded), 1e-5);
  EXPECT_TRUE(segfuse::testing::same_bits(run(""), exact));
  EXPECT_TRUE(segfuse::testing::same_bits(run("tf32"), rounded));
  EXPECT_TRUE(segfuse::testing::same_bits(run("float32"), exact));
  for (const char* const precision : {"float32", "tf32"}) {
    DeviceFunction function(
        program,
        {.context = context, .precision = precision, .device = device.accelerator->name()});
    EXPECT_TRUE(segfuse::testing::same_bits(function.run_on_copies(inputs)[0], run(precision)))
        << precision;
  }
  // On the CPU there is no TF32.
  EXPECT_TRUE(segfuse::testing::same_bits(program.run(inputs, {.precision = "tf32"})[0],
                                          program.run(inputs)[0]));
}

TEST(Precision, OthersAreRefused) {
  const std::vector<Tensor> inputs{Tensor::zeros(DType::kF32, {1, 9}),
                                   Tensor::zeros(DType::kF32, {9, 6})};
  const Program program = product();
  const std::string expected =
      "found the precision 'bf16' for matrix products of float32, expected 'float32' or 'tf32'";
  EXPECT_EQ(message_of<UsageError>([&] { program.run(inputs, {.precision = "bf16"}); }), expected);
  EXPECT_EQ(message_of<UsageError>(
                [&] { DeviceFunction(program, {.precision = "bf16", .device = "cuda"}); }),
            expected);
}

/// cuBLASLt: TF32 has 10 bits behind the point, and the same bits twice.
TEST(Precision, OfADevice) {
  std::string reason;
  if (runtime::cuda_device_count(&reason) == 0) GTEST_SKIP() << reason;
  Rng rng(5);
  TestProgram p;
  const ValId x = p.input(uniform(rng, DType::kF32, {300, 500}));
  const ValId w = p.input(uniform(rng, DType::kF32, {500, 200}));
  p.output(p.b.matmul(x, w));
  const std::vector<Tensor> exact = ir::interpret(p.fusion, p.inputs, reference_opaque_ops());
  ThreadPool pool(1);
  const std::shared_ptr<Accelerator> accelerator = open_accelerator("cuda");
  for (const bool tf32 : {false, true}) {
    Executable executable(p.fusion, pool, {.tf32 = tf32, .accelerator = accelerator});
    const Tensor found = executable.run(p.inputs)[0];
    EXPECT_TRUE(segfuse::testing::same_bits(executable.run(p.inputs)[0], found));
    const double error = largest_difference(found, exact[0]);
    EXPECT_LE(error, tf32 ? 0.2 : 1e-3);
    EXPECT_GE(error, tf32 ? 1e-3 : 0) << "nothing was rounded";
  }
}

}  // namespace
}  // namespace segfuse::engine::testing
