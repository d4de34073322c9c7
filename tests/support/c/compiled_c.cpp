#include "support/c/compiled_c.h"

#include <dlfcn.h>

#include <sstream>

#include "segfuse/spawn.h"

namespace segfuse::test {
namespace {

std::string compile(const std::string& text, std::string_view flags, const TemporaryDirectory& in,
                    std::string_view output) {
  const std::string source = in.write("text.c", text).string();
  std::istringstream words(std::string(SEGFUSE_C_COMPILER " -x c -std=c11 -Wno-psabi ") +
                           std::string(flags) + " " + std::string(output) + " " + source);
  spawn::Request request;
  for (std::string word; words >> word;) request.arguments.push_back(word);
  request.err = spawn::Merge{};
  const spawn::Result result = spawn::run(request);
  if (result.ok() && result.out.empty()) return "";
  return words.str() + "\n" + result.outcome() + "\n" + result.out;
}

}  // namespace

std::string compiler_complaints(const std::string& text, std::string_view flags) {
  const TemporaryDirectory directory;
  return compile(text, flags, directory, "-fsyntax-only");
}

CompiledC::CompiledC(const std::string& text, std::string_view flags) {
  const TemporaryDirectory directory;
  const std::string library = (directory / "text.so").string();
  const std::string said = compile(text, flags, directory, "-shared -fPIC -lm -o " + library);
  if (!said.empty()) throw std::runtime_error(said);
  handle_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) throw std::runtime_error(dlerror());
}

CompiledC::~CompiledC() {
  if (handle_ != nullptr) dlclose(handle_);
}

void* CompiledC::find(const std::string& name) const {
  void* const symbol = dlsym(handle_, name.c_str());
  if (symbol == nullptr) throw std::runtime_error(name + ": the text has no such function");
  return symbol;
}

std::vector<std::string> machine_flags() {
  std::vector<std::string> flags = {""};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    flags.push_back("-mavx2 -mfma");
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    flags.push_back("-mavx2 -mfma -mavx512f -mavx512dq -mavx512bw -mavx512vl");
#endif
  return flags;
}

}  // namespace segfuse::test
