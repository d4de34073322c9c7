#include "support/gpu/printed_kernels.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>

#include "support/emulator/device_language.h"
#include "support/gpu/printed_host.h"

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace segfuse::testing {

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
  void* const handle = compile_printed(text_, "-O1");
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
  runner().run(grid, block, entry.launch.shared_bytes(size), 1,
               [&] { entry.call(argument.data()); });
  return status;
}

}  // namespace segfuse::testing
