// Reads a program in its text form, runs it on random numbers and compares with the reference in
// double.
//   run_program examples/layer_norm.sf
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "segfuse/error.h"
#include "segfuse/program.h"

int main(int argc, char** argv) try {
  const segfuse::Program program =
      segfuse::Program::from_file(argc > 1 ? argv[1] : "examples/layer_norm.sf");

  // Sizes are free: this program takes any B and T.
  std::vector<segfuse::Tensor> inputs = {segfuse::Tensor(segfuse::DType::kF32, {4, 100, 256}),
                                         segfuse::Tensor::full(segfuse::DType::kF32, {256}, 1.5),
                                         segfuse::Tensor::full(segfuse::DType::kF32, {256}, 0.25)};
  for (std::int64_t i = 0; i < inputs[0].size(); ++i)
    inputs[0].set(i, std::sin(0.37 * static_cast<double>(i)));

  const segfuse::Tensor y = program.run(inputs)[0];
  const segfuse::Tensor exact = program.run_reference(inputs)[0];
  double worst = 0;
  for (std::int64_t i = 0; i < y.size(); ++i)
    worst = std::max(worst, std::abs(y.at(i) - exact.at(i)));
  std::printf("%s: output %s, largest difference from the reference %.2g\n", program.name().c_str(),
              segfuse::to_string(y.shape()).c_str(), worst);
  return worst < 1e-4 ? 0 : 1;
} catch (const segfuse::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.exit_code());
}
