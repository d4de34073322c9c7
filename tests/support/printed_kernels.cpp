#include "support/printed_kernels.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "base/os/file.h"
#include "base/os/spawn.h"
#include "support/device_language.h"
#include "support/files.h"

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace segfuse::testing {

namespace {

/// As printed_language.h has it.
struct Hooks {
  const Index3* thread;
  const Index3* block;
  const Index3* grid;
  void* (*shared)();
  void (*wait_block)();
  std::uint64_t (*across)(std::uint64_t bits, unsigned by);
};

Hooks hooks() {
  return {&runner().thread,
          &runner().block,
          &runner().grid_size,
          [] { return static_cast<void*>(runner().dynamic_shared()); },
          [] { runner().wait_block(true); },
          [](std::uint64_t bits, unsigned by) {
            const std::uint64_t* given = runner().exchange(bits);
            return given[runner().lane() ^ by];
          }};
}

}  // namespace

PrintedKernels::PrintedKernels() : text_("#include \"printed_language.h\"\n") {}
PrintedKernels::~PrintedKernels() = default;

std::size_t PrintedKernels::add(const compiler::loop::Kernel& kernel) {
  compiler::loop::Kernel named = kernel;
  named.name = fmt::format("kernel_{}", entries_.size());
  text_ += fmt::format(
      "namespace n{0} {{\n{1}\nextern \"C\" void call_{2}(const void* argument) {{\n"
      "  {2}(*static_cast<const Arguments*>(argument));\n}}\n}}\n",
      entries_.size(), compiler::cuda::print_cuda_parts(named).code, named.name);
  entries_.push_back({named.name, compiler::cuda::cuda_launch(named), nullptr});
  return entries_.size() - 1;
}

void PrintedKernels::build() {
  const test::TemporaryDirectory directory;
  const std::string source = directory.write("printed.cpp", text_).string();
  const std::string library = (directory / "printed.so").string();
  spawn::Request request;
  request.arguments = {SEGFUSE_CXX_COMPILER,
                       "-std=c++20",
                       "-O1",
                       "-w",
                       "-ffp-contract=off",
                       "-fno-strict-aliasing",
                       "-shared",
                       "-fPIC",
                       "-I",
                       SEGFUSE_SOURCE_DIR "/tests/support",
                       source,
                       "-o",
                       library};
  request.err = spawn::Merge{};
  const spawn::Result result = spawn::run(request);
  if (!result.ok())
    throw std::runtime_error(
        fmt::format("printed kernels do not compile: {}\n{}", result.outcome(), result.out));
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  const Hooks machine = hooks();
  reinterpret_cast<void (*)(const Hooks*)>(dlsym(handle, "set_hooks"))(&machine);
  for (Entry& entry : entries_)
    entry.call =
        reinterpret_cast<void (*)(const void*)>(dlsym(handle, ("call_" + entry.name).c_str()));
}

int PrintedKernels::run(std::size_t number, std::span<Tensor> globals,
                        const compiler::cuda::SizeOf& size, unsigned most_blocks) const {
  const Entry& entry = entries_.at(number);
  std::vector<void*> addresses;
  for (Tensor& tensor : globals) addresses.push_back(tensor.data());
  int status = 0;
  const std::vector<std::uint64_t> argument = entry.launch.argument(addresses, size, &status);
  const Index3 grid{std::min(entry.launch.blocks(size), most_blocks), 1, 1};
  const Index3 block{entry.launch.threads, entry.launch.rows_at_once, 1};
  runner().run(grid, block, entry.launch.shared_bytes(size), false,
               [&] { entry.call(argument.data()); });
  return status;
}

}  // namespace segfuse::testing
