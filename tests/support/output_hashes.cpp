// Prints a hash of what random programs compute on each back end. Two builds that print the same
// compute the same bits: for changes that must not change results.
//
//     segfuse_output_hashes [programs] [backend...]

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "engine/executable.h"
#include "support/gpu/program_gpu.h"
#include "support/random/random_fusion.h"

namespace {

using segfuse::Tensor;
using segfuse::engine::Executable;
using segfuse::engine::ExecutableOptions;
using segfuse::testing::Numbers;

void add(std::uint64_t& hash, const void* data, std::size_t bytes) {  // FNV-1a
  const auto* const begin = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ begin[i]) * 0x100000001b3;
}

std::uint64_t hash_of(std::uint64_t seed, Numbers numbers, const ExecutableOptions& options) {
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto program = segfuse::testing::random_fusion(seed, numbers);
  segfuse::ThreadPool pool(2);
  Executable executable(program.fusion, pool, options);
  for (const auto& [b, t] : {std::pair<std::int64_t, std::int64_t>{2, 5}, {3, 70}, {0, 4}}) {
    const auto inputs = segfuse::testing::random_inputs(program, seed, b, t);
    for (const Tensor& output : executable.run(inputs)) {
      for (const std::int64_t size : output.shape()) add(hash, &size, sizeof(size));
      add(hash, output.data(), output.bytes());
    }
  }
  return hash;
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t programs = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 500;
  std::vector<std::string> backends(argv + std::min(argc, 2), argv + argc);
  if (backends.empty()) backends = {"reference", "loops", "compiled", "simulated"};
  static constexpr std::pair<const char*, Numbers> kNumbers[] = {
      {"f64", Numbers::kSmooth}, {"f32", Numbers::kSmooth32}, {"exact", Numbers::kExact}};
  for (const std::string& backend : backends) {
    ExecutableOptions options;
    if (backend == "simulated")
      options.accelerator = segfuse::testing::make_sim_accelerator().accelerator;
    else
      options.backend = backend;
    for (std::uint64_t i = 0; i < programs; ++i) {
      const auto& [name, numbers] = kNumbers[i % 3];
      std::printf("%s %s %" PRIu64 " %016" PRIx64 "\n", backend.c_str(), name, 70000 + i,
                  hash_of(70000 + i, numbers, options));
      std::fflush(stdout);
    }
  }
}
