// Runs programs on a simulated device, and compares each result with that of the loops on the CPU.
//
//     segfuse_simulated_programs FOLDER [device]
//
// Each folder in FOLDER has a program, program.sf, and its inputs: 0.npy, 1.npy, ... The device is
// "simulated" unless another one is named, as "cuda:0". The last line is "N passed, N failed".

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "engine/executable.h"
#include "ir/text.h"
#include "segfuse/ops.h"
#include "segfuse/tensor.h"
#include "support/gpu/program_gpu.h"
#include "support/tensors.h"

namespace {

namespace fs = std::filesystem;
using segfuse::DType;
using segfuse::Tensor;

double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 1e-9;
    case DType::kF32: return 1e-3;
    case DType::kF16:
    case DType::kBF16: return 5e-2;
    default: return 0;
  }
}

segfuse::ir::Fusion program_in(const fs::path& folder) {
  std::ifstream file(folder / "program.sf");
  std::ostringstream text;
  text << file.rdbuf();
  return segfuse::ir::parse(text.str(), (folder / "program.sf").string());
}

/// Where a result is another one; empty where it is not.
std::string difference(const Tensor& found, const Tensor& expected) {
  if (found.dtype() != expected.dtype() || !std::ranges::equal(found.shape(), expected.shape()))
    return fmt::format("{}{} instead of {}{}", name_of(found.dtype()),
                       segfuse::to_string(found.shape()), name_of(expected.dtype()),
                       segfuse::to_string(expected.shape()));
  for (std::int64_t i = 0; i < found.size(); ++i)
    if (!segfuse::testing::near(found.at(i), expected.at(i), tolerance_of(found.dtype())))
      return fmt::format("element {}: {} instead of {}", i, found.at(i), expected.at(i));
  return "";
}

std::string fault_of(const fs::path& folder, const segfuse::engine::ExecutableOptions& options) {
  const segfuse::ir::Fusion fusion = program_in(folder);
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < fusion.inputs().size(); ++i)
    inputs.push_back(segfuse::read_npy(folder / (std::to_string(i) + ".npy")));
  segfuse::ThreadPool pool(1);
  segfuse::engine::Executable executable(fusion, pool, options);
  std::vector<Tensor> given;
  for (const Tensor& input : inputs) given.push_back(input.clone());
  const std::vector<Tensor> found = executable.run(given);
  executable.check();
  segfuse::engine::Executable loops(fusion, pool, {.backend = "loops"});
  const std::vector<Tensor> expected = loops.run(inputs);
  for (std::size_t o = 0; o < expected.size(); ++o)
    if (const std::string what = difference(found[o], expected[o]); !what.empty())
      return fmt::format("output {}, {}", o, what);
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: segfuse_simulated_programs FOLDER [device]\n");
    return 2;
  }
  const std::string device = argc > 2 ? argv[2] : "simulated";
  segfuse::engine::ExecutableOptions options;
  options.accelerator = device == "simulated" ? segfuse::testing::make_sim_accelerator().accelerator
                                              : segfuse::engine::open_accelerator(device);
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(argv[1]))
    if (fs::exists(entry.path() / "program.sf")) folders.push_back(entry.path());
  std::ranges::sort(folders);
  int passed = 0;
  int failed = 0;
  for (const fs::path& folder : folders) {
    std::string fault;
    try {
      fault = fault_of(folder, options);
    } catch (const std::exception& error) {
      fault = error.what();
    }
    ++(fault.empty() ? passed : failed);
    if (!fault.empty()) fmt::print("{}: {}\n", folder.filename().string(), fault);
    std::fflush(stdout);
  }
  fmt::print("{} passed, {} failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
