// Outputs that overwrite inputs, on a device.

#include "unit/engine_gpu/device_test.h"

#include "segfuse/error.h"

namespace segfuse::engine::testing {
namespace {

using ir::ValId;
using segfuse::testing::row;

/// y = 2 x + n in place of x; z = x + 1 of the old x; w, computed from both, over n.
TestProgram overwriting() {
  TestProgram p;
  const ValId x = p.input(row({1, 2, 3}, DType::kF32));
  const ValId n = p.input(row({10, 20, 30}, DType::kF32));
  const ValId y = p.b.add(p.b.mul(x, p.b.constant(2)), n);
  const ValId z = p.b.add(x, p.b.constant(1));
  const ValId w = p.b.sum(p.b.mul(p.b.unsqueeze(n, 0), p.b.unsqueeze(z, 1)), {1});
  p.output(y);
  p.output(z);
  p.output(w);
  p.fusion.add_alias(y, x);
  p.fusion.add_alias(w, n);
  return p;
}

TEST_P(OnDevice, AliasedInputsAreOverwrittenWhereTheyAre) {
  const TestProgram p = overwriting();
  Executable executable(p.fusion, pool, on_device());
  for (const bool x_there : {false, true})
    for (const bool n_there : {false, true}) {
      std::vector<Tensor> inputs{p.inputs[0].clone(), p.inputs[1].clone()};
      if (x_there) inputs[0] = accelerator->upload(inputs[0]);
      if (n_there) inputs[1] = accelerator->upload(inputs[1]);
      const std::vector<Tensor> outputs = executable.run(inputs);
      EXPECT_EQ(segfuse::testing::values(inputs[0].to_host()), (std::vector<double>{12, 24, 36}));
      EXPECT_EQ(segfuse::testing::values(outputs[0].to_host()), (std::vector<double>{12, 24, 36}));
      EXPECT_EQ(segfuse::testing::values(outputs[1].to_host()), (std::vector<double>{2, 3, 4}));
      EXPECT_EQ(segfuse::testing::values(outputs[2].to_host()),
                (std::vector<double>{120, 180, 240}));
      EXPECT_EQ(segfuse::testing::values(inputs[1].to_host()),
                (std::vector<double>{120, 180, 240}));
      EXPECT_EQ(outputs[1].device_memory() != nullptr, x_there || n_there);
    }
}

/// What a library makes, and a view of an operand, go where an input is that nobody reads.
TEST_P(OnDevice, ResultsOfLibrariesAndViewsOverwriteInputs) {
  TestProgram p;
  const ValId x = p.input(row({1, 2, 3, 4}, DType::kF32).reshaped({2, 2}));
  const ValId product = p.b.matmul(x, x);
  const ValId flat = p.b.reshape(x, {4});
  const ValId one = p.input(Tensor::zeros(DType::kF32, {2, 2}));
  const ValId other = p.input(Tensor::zeros(DType::kF32, {4}));
  p.output(product);
  p.output(flat);
  p.fusion.add_alias(product, one);
  p.fusion.add_alias(flat, other);
  for (const ExecutableOptions& how : {on_device(), ExecutableOptions{}}) {
    std::vector<Tensor> inputs;
    for (const Tensor& input : p.inputs) inputs.push_back(input.clone());
    const std::vector<Tensor> outputs = Executable(p.fusion, pool, how).run(inputs);
    for (const Tensor& there : {inputs[1], outputs[0]})
      EXPECT_EQ(segfuse::testing::values(there), (std::vector<double>{7, 10, 15, 22}));
    for (const Tensor& there : {inputs[2], outputs[1]})
      EXPECT_EQ(segfuse::testing::values(there), (std::vector<double>{1, 2, 3, 4}));
  }
}

/// Parts of one tensor are inputs and are overwritten; the rest stays as it is.
TEST_P(OnDevice, PartsOfATensorAreOverwrittenWhereTheyLie) {
  TestProgram p;
  const ValId a = p.input(row({0, 0}, DType::kF32));
  const ValId c = p.input(row({0, 0, 0}, DType::kF32));
  const ValId doubled = p.b.add(a, a);
  const ValId moved = p.b.add(c, p.b.constant(1));
  p.output(doubled);
  p.output(moved);
  p.fusion.add_alias(doubled, a);
  p.fusion.add_alias(moved, c);
  Executable executable(p.fusion, pool, on_device());
  for (const bool there : {false, true}) {
    Tensor whole = row({1, 2, 3, 4, 5, 6, 7, 8}, DType::kF32);
    if (there) whole = accelerator->upload(whole);
    executable.run(std::vector{part_of(whole, 1, {2}), part_of(whole, 4, {3})});
    EXPECT_EQ(segfuse::testing::values(whole.to_host()),
              (std::vector<double>{1, 4, 6, 4, 6, 7, 8, 8}));
    EXPECT_EQ(segfuse::testing::values(part_of(whole, 3, {2, 2}).to_host()),
              (std::vector<double>{4, 6, 7, 8}));
    EXPECT_THROW(static_cast<void>(part_of(whole, 7, {2})), UsageError);
    EXPECT_THROW(static_cast<void>(part_of(whole, -1, {2})), UsageError);
  }
}

/// Each becomes what the other was; and one result goes over two inputs.
TEST_P(OnDevice, AliasedInputsMayBeSwappedAndShareAResult) {
  TestProgram swap;
  const ValId x = swap.input(row({1, 2, 3}, DType::kF32));
  const ValId y = swap.input(row({10, 20, 30}, DType::kF32));
  swap.output(x);
  swap.output(y);
  swap.fusion.add_alias(x, y);
  swap.fusion.add_alias(y, x);
  TestProgram both;
  const ValId a = both.input(row({1, 2, 3}, DType::kF32));
  const ValId c = both.input(row({10, 20, 30}, DType::kF32));
  const ValId sum = both.b.add(a, c);
  both.output(sum);
  both.fusion.add_alias(sum, a);
  both.fusion.add_alias(sum, c);
  for (const ExecutableOptions& how :
       {on_device(), ExecutableOptions{}, ExecutableOptions{.backend = "loops"},
        ExecutableOptions{.backend = "reference"}}) {
    const auto after = [&](const TestProgram& p) {
      std::vector<Tensor> inputs{p.inputs[0].clone(), p.inputs[1].clone()};
      Executable(p.fusion, pool, how).run(inputs);
      return std::pair(segfuse::testing::values(inputs[0]), segfuse::testing::values(inputs[1]));
    };
    using Values = std::vector<double>;
    EXPECT_EQ(after(swap), std::pair(Values({10, 20, 30}), Values({1, 2, 3})));
    EXPECT_EQ(after(both), std::pair(Values({11, 22, 33}), Values({11, 22, 33})));
  }
}

TEST_P(OnDevice, ChecksAndTheReferenceRunOnTheHost) {
  const TestProgram p = overwriting();
  for (const ExecutableOptions& how :
       {ExecutableOptions{.check_numerics = true, .accelerator = accelerator},
        ExecutableOptions{.backend = "reference", .accelerator = accelerator}}) {
    Executable executable(p.fusion, pool, how);
    const std::vector<Tensor> inputs{accelerator->upload(p.inputs[0]),
                                     accelerator->upload(p.inputs[1])};
    const std::vector<Tensor> outputs = executable.run(inputs);
    EXPECT_EQ(segfuse::testing::values(inputs[0].to_host()), (std::vector<double>{12, 24, 36}));
    EXPECT_EQ(segfuse::testing::values(outputs[2].to_host()), (std::vector<double>{120, 180, 240}));
    EXPECT_NE(outputs[2].device_memory(), nullptr);
  }
}

}  // namespace
}  // namespace segfuse::engine::testing
