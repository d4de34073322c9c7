#include "support/c/c_program.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "ir/bind.h"

namespace segfuse::test {
namespace {

/// "int64_t B", "const float *x", ... of the function's declaration.
std::vector<std::string> parameters(const compiler::cpu::CProgram& program) {
  const std::string begin = "\nint " + program.function + "(";
  const std::size_t at = program.header.find(begin);
  if (at == std::string::npos) throw std::runtime_error("the header declares no function");
  const std::size_t first = at + begin.size();
  std::istringstream text(program.header.substr(first, program.header.find(')', first) - first));
  std::vector<std::string> all;
  for (std::string one; std::getline(text, one, ',');) all.push_back(one);
  return all;
}

bool is_size(const std::string& parameter) {
  return parameter.find('*') == std::string::npos &&
         parameter.find("int64_t ") != std::string::npos;
}

std::string name_of(const std::string& parameter) {
  return parameter.substr(parameter.find_last_of(" *") + 1);
}

/// The program with two functions whose parameters do not depend on it.
std::string with_calls(const compiler::cpu::CProgram& program) {
  std::string sizes;
  std::string arrays;
  int size = 0;
  int array = 0;
  for (const std::string& parameter : parameters(program)) {
    if (is_size(parameter)) {
      sizes += "s[" + std::to_string(size++) + "], ";
    } else if (parameter.find("workspace") == std::string::npos) {
      arrays += "p[" + std::to_string(array++) + "], ";
    }
  }
  return program.source +
         "\nint test_run(const int64_t *s, void *const *p, void *w, size_t b) {\n" +
         "  (void)s;\n  (void)p;\n  return " + program.function + "(" + sizes + arrays +
         "w, b);\n}\nint test_ask(const int64_t *s, size_t *b) {\n  (void)s;\n  return " +
         program.function + "_workspace(" + sizes + "b);\n}\n";
}

}  // namespace

CProgramLibrary::CProgramLibrary(const compiler::cpu::CProgram& program, std::string_view flags)
    : code_(with_calls(program), flags) {
  for (const std::string& parameter : parameters(program)) {
    if (is_size(parameter)) {
      sizes_.push_back(name_of(parameter));
    } else if (parameter.find("workspace") == std::string::npos) {
      arrays_.push_back(name_of(parameter));
    }
  }
}

int CProgramLibrary::workspace(std::span<const std::int64_t> sizes, std::size_t* bytes) const {
  return code_.get<int(const std::int64_t*, std::size_t*)>("test_ask")(sizes.data(), bytes);
}

int CProgramLibrary::run(std::span<const std::int64_t> sizes, std::span<void* const> arrays,
                         void* workspace, std::size_t bytes) const {
  using Run = int(const std::int64_t*, void* const*, void*, std::size_t);
  return code_.get<Run>("test_run")(sizes.data(), arrays.data(), workspace, bytes);
}

std::vector<Tensor> run_c_program(const CProgramLibrary& library, const ir::Fusion& fusion,
                                  const std::map<std::string, std::int64_t>& sizes,
                                  std::span<const Tensor> inputs) {
  std::vector<std::int64_t> numbers;
  for (const std::string& name : library.sizes()) numbers.push_back(sizes.at(name));
  std::vector<Shape> shapes;
  std::vector<Tensor> given;
  std::vector<void*> arrays;
  for (const Tensor& input : inputs) {
    shapes.push_back(input.shape());
    given.push_back(input.clone());
    arrays.push_back(given.back().data());
  }
  const ir::Sizes bound = ir::bind(fusion, shapes);
  std::vector<Tensor> outputs;
  for (const ir::Output& output : fusion.outputs()) {
    const auto alias = std::find_if(fusion.aliases().begin(), fusion.aliases().end(),
                                    [&](const ir::Alias& a) { return a.output == output.val; });
    if (alias != fusion.aliases().end()) {
      std::size_t to = 0;
      while (fusion.inputs()[to].val != alias->input) ++to;
      outputs.push_back(given[to]);  // shares its memory
      continue;
    }
    const ir::Val& val = fusion.val(output.val);
    outputs.emplace_back(val.dtype, bound.of(val.shape));
    std::memset(outputs.back().data(), 0xFF, outputs.back().bytes());
    arrays.push_back(outputs.back().data());
  }
  if (arrays.size() != library.arrays().size())
    throw std::runtime_error("the function takes another number of arrays");
  constexpr std::size_t kMargin = 64;
  constexpr unsigned char kMark = 0xA5;
  std::size_t bytes = 0;
  if (const int code = library.workspace(numbers, &bytes); code != 0)
    throw std::runtime_error("the workspace cannot be asked for: " + std::to_string(code));
  // At an odd address, between marks.
  std::vector<unsigned char> memory(bytes + 2 * kMargin + 1, kMark);
  unsigned char* const workspace = memory.data() + kMargin + 1;
  std::memset(workspace, 0xFF, bytes);
  if (const int code = library.run(numbers, arrays, workspace, bytes); code != 0)
    throw std::runtime_error("the program ended with " + std::to_string(code));
  auto marked = [&](const unsigned char* begin, const unsigned char* end) {
    return std::all_of(begin, end, [](unsigned char c) { return c == kMark; });
  };
  if (!marked(memory.data(), workspace) ||
      !marked(workspace + bytes, memory.data() + memory.size()))
    throw std::runtime_error("the program wrote outside of its workspace");
  return outputs;
}

}  // namespace segfuse::test
