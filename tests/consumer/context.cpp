// Every public function that takes a context, from a program that sees include/ alone.
#include "segfuse/context.h"

#include <cstdio>
#include <filesystem>
#include <vector>

#include "segfuse/data.h"
#include "segfuse/device_function.h"
#include "segfuse/doctor/numerics.h"
#include "segfuse/error.h"
#include "segfuse/model.h"
#include "segfuse/program.h"
#include "segfuse/semicrf.h"
#include "segfuse/semicrf_cuda.h"
#include "segfuse/semicrf_tools.h"
#include "segfuse/train.h"

namespace {

using namespace segfuse;

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("not so: %s\n", what);
  ++failures;
}

/// A call that is refused; what is refused is compiled and linked all the same.
template <class Refusal = Error, class Call>
void refused(const char* what, const Call& call) {
  try {
    call();
  } catch (const Refusal&) {
    return;
  }
  expect(false, what);
}

}  // namespace

int main() {
  const Context context = Context().with(options::kThreads, std::int64_t{2});
  expect(context.threads() == 2, "a context has the threads of its options");
  expect(Context::process_default().options().get(options::kBackend) != "", "the process's");

  const Program program = Program::from_text(
      "fusion \"exp\" {\n  symbols N\n  %0 = input \"x\" : f32[N]\n  %1 = exp(%0)\n  output "
      "%1\n}\n");
  const std::vector<Tensor> inputs{Tensor::full(DType::kF32, {2}, 0)};
  expect(program.run(inputs, {.context = context})[0].at(1) == 1, "exp(0) is 1");
  refused<UsageError>("no device of this name",
                      [&] { DeviceFunction(program, {.context = context, .device = "toaster"}); });

  const std::vector<double> transition(4, 0.0);
  const std::vector<double> duration(4, 0.0);
  const std::vector<double> emission(6, 0.0);
  semicrf::Potentials<double> potentials;
  potentials.emission = semicrf::View<const double, 3>(emission.data(), {1, 3, 2});
  potentials.transition = semicrf::View<const double, 3>(transition.data(), {1, 2, 2});
  potentials.duration = semicrf::View<const double, 2>(duration.data(), {2, 2});
  double first = 0;
  double second = 0;
  semicrf::Engine(context).log_partition(
      potentials, {.log_partition = semicrf::View<double, 1>(&first, {1}), .status = {}});
  semicrf::Inference(context).log_partition(
      potentials, {}, {.log_partition = semicrf::View<double, 1>(&second, {1}), .status = {}});
  expect(first > 0 && first == second, "Engine and Inference agree");

  semicrf::CudaOptions on_device;
  on_device.context = context;
  constexpr int kNoSuchDevice = 99;
  refused("device 99", [&] { semicrf::CudaEngine(kNoSuchDevice, on_device); });
  refused("device 99", [&] { semicrf::CudaInference(kNoSuchDevice, on_device); });
  refused("device 99",
          [&] { semicrf::CudaOnlineDecoder(kNoSuchDevice, potentials, {}, {}, nullptr, context); });

  expect(load_examples({}, FeatureExtractor(FeatureConfig()), {}, {}, context).empty(), "no files");
  refused("no program", [&] { examine_numerics("missing.sf", {.context = context}); });
  TrainOptions training;
  training.config = "missing.toml";
  training.context = context;
  refused("no configuration", [&] { train(training); });
  EvaluateOptions evaluation;
  evaluation.model = "missing";
  evaluation.context = context;
  refused("no model", [&] { evaluate(evaluation); });
  DecodeOptions decoding;
  decoding.model = "missing";
  decoding.context = context;
  refused("no model", [&] { decode(decoding); });
  TrainingNumericsOptions numerics;
  numerics.config = "missing.toml";
  numerics.context = context;
  refused("no configuration", [&] { examine_training_numerics(numerics); });
  return failures;
}
