// Builds a program and its gradient in C++, and takes ten steps with it: a value is an operation
// away from the next, and sizes with names stay free.
//   build_program
#include <cmath>
#include <cstdio>

#include "segfuse/error.h"
#include "segfuse/ops.h"

using namespace segfuse::ops;
using segfuse::DType;
using segfuse::Tensor;

int main() try {
  // A line through points by gradient descent; the step overwrites its parameters.
  FusionBuilder f("fit a line");
  const Value x = f.input("x", DType::kF32, {"N"});
  const Value y = f.input("y", DType::kF32, {"N"});
  const Value slope = f.input("slope", DType::kF32, {});
  const Value offset = f.input("offset", DType::kF32, {});
  const Value loss = mean(square(x * slope + offset - y));
  const Value parameters[] = {slope, offset};
  const std::vector<Value> gradients = grad(loss, parameters);
  f.output(loss, "loss");
  for (int i = 0; i < 2; ++i) {
    const Value next = parameters[i] - 0.5 * gradients[static_cast<std::size_t>(i)];
    f.output(next);
    f.alias(next, parameters[i]);
  }
  const segfuse::Program step = f.build();

  const std::vector<Tensor> inputs = {Tensor(DType::kF32, {200}), Tensor(DType::kF32, {200}),
                                      Tensor::zeros(DType::kF32, {}),
                                      Tensor::zeros(DType::kF32, {})};
  for (std::int64_t i = 0; i < 200; ++i) {
    const double at = static_cast<double>(i) / 100 - 1;
    Tensor points = inputs[0];  // shares its storage
    Tensor heights = inputs[1];
    points.set(i, at);
    heights.set(i, 3 * at - 1);
  }
  double last = 0;
  for (int i = 0; i < 40; ++i) last = step.run(inputs)[0].at(0);
  std::printf("loss %.2g, slope %.3f, offset %.3f\n", last, inputs[2].at(0), inputs[3].at(0));
  return std::abs(inputs[2].at(0) - 3) + std::abs(inputs[3].at(0) + 1) < 0.01 ? 0 : 1;
} catch (const segfuse::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.exit_code());
}
