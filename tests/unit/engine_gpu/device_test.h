#pragma once
// Tests of programs on a simulated device, and on a CUDA device where there is one.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/exec/semicrf_ops.h"
#include "engine/executable.h"
#include "ir/builder.h"
#include "ir/interpret/interpreter.h"
#include "ir/text.h"
#include "support/gpu/program_gpu.h"
#include "support/tensors.h"

namespace segfuse::engine::testing {

/// What an action throws.
template <class Error, class Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// A program with inputs of given tensors.
struct TestProgram {
  ir::Fusion fusion{"program"};
  ir::Builder b{fusion};
  std::vector<Tensor> inputs;

  ir::ValId input(Tensor value) {
    inputs.push_back(std::move(value));
    const Tensor& t = inputs.back();
    return fusion.add_input("x" + std::to_string(inputs.size()), t.dtype(),
                            ir::Extents(t.shape().begin(), t.shape().end()));
  }
  void output(ir::ValId val) { fusion.add_output(val, ""); }
};

/// "simulated", "cuda".
class OnDevice : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "simulated") {
      accelerator = segfuse::testing::make_sim_accelerator().accelerator;
      return;
    }
    std::string reason;
    if (runtime::cuda_device_count(&reason) == 0) GTEST_SKIP() << reason;
    accelerator = open_accelerator("cuda");
  }
  bool simulated() const { return std::string(GetParam()) == "simulated"; }

  ExecutableOptions on_device() const { return {.accelerator = accelerator}; }

  /// Runs with all inputs on the host, and with all on the device: both as the interpreter.
  void compare(const ir::Fusion& fusion, const std::vector<Tensor>& inputs, double tolerance) {
    SCOPED_TRACE(ir::print(fusion));
    Executable executable(fusion, pool, on_device());
    const std::vector<Tensor> expected = ir::interpret(fusion, inputs, reference_opaque_ops());
    std::vector<Tensor> host;
    std::vector<Tensor> device;
    for (const Tensor& input : inputs) {
      host.push_back(input.clone());
      device.push_back(accelerator->upload(input));
    }
    const std::vector<Tensor> found = executable.run(host);
    const std::vector<Tensor> there = executable.run(device);
    executable.check();
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t o = 0; o < found.size(); ++o) {
      ASSERT_EQ(to_string(found[o].shape()), to_string(expected[o].shape()));
      if (!inputs.empty()) {
        ASSERT_NE(there[o].device_memory(), nullptr);
        EXPECT_TRUE(segfuse::testing::same_bits(found[o], there[o].to_host())) << "output " << o;
      }
      for (std::int64_t i = 0; i < found[o].size(); ++i)
        ASSERT_PRED3(segfuse::testing::near, found[o].at(i), expected[o].at(i), tolerance)
            << "output " << o << ", element " << i;
    }
  }

  ThreadPool pool{2};
  std::shared_ptr<Accelerator> accelerator;
};

}  // namespace segfuse::engine::testing
