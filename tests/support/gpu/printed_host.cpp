#include "support/gpu/printed_host.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <stdexcept>

#include "segfuse/spawn.h"
#include "support/emulator/device_language.h"
#include "support/files.h"
#include "support/source_dir.h"

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
  unsigned (*lane)();
  const std::uint64_t* (*exchange)(std::uint64_t bits);
};

Hooks hooks() {
  return {&runner().thread,
          &runner().block,
          &runner().grid_size,
          [] { return static_cast<void*>(runner().dynamic_shared()); },
          [] { runner().wait_block(true); },
          [] { return runner().lane(); },
          [](std::uint64_t bits) { return runner().exchange(bits); }};
}

}  // namespace

void* compile_printed(const std::string& text, const std::string& optimisation) {
  const test::TemporaryDirectory directory;
  const std::string source = directory.write("printed.cpp", text).string();
  const std::string library = (directory / "printed.so").string();
  spawn::Request request;
  request.arguments = {SEGFUSE_CXX_COMPILER,
                       "-std=c++20",
                       optimisation,
                       "-w",
                       "-ffp-contract=off",
                       "-fno-strict-aliasing",
                       "-shared",
                       "-fPIC",
                       "-I",
                       SEGFUSE_SOURCE_DIR "/tests/support/gpu",
                       source,
                       "-o",
                       library};
  request.err = spawn::Merge{};
  const spawn::Result result = spawn::run(request);
  if (!result.ok())
    throw std::runtime_error(fmt::format("printed kernels do not compile: {}\n{}\n{}",
                                         result.outcome(), result.out, text));
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  const Hooks machine = hooks();
  reinterpret_cast<void (*)(const Hooks*)>(dlsym(handle, "set_hooks"))(&machine);
  return handle;
}

}  // namespace segfuse::testing
