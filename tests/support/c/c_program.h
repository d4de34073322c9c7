#pragma once
// A program in C, compiled by this machine's compiler and called as its header says.

#include <map>
#include <span>
#include <string>
#include <vector>

#include "compiler/codegen/c_program/print_program.h"
#include "ir/fusion.h"
#include "segfuse/tensor.h"
#include "support/c/compiled_c.h"

namespace segfuse::test {

class CProgramLibrary {
 public:
  CProgramLibrary(const compiler::cpu::CProgram& program, std::string_view flags = "-O1");

  /// Names of the sizes, and then of the arrays, in the order of the function's parameters.
  const std::vector<std::string>& sizes() const { return sizes_; }
  const std::vector<std::string>& arrays() const { return arrays_; }

  int workspace(std::span<const std::int64_t> sizes, std::size_t* bytes) const;
  int run(std::span<const std::int64_t> sizes, std::span<void* const> arrays, void* workspace,
          std::size_t bytes) const;

 private:
  std::vector<std::string> sizes_, arrays_;
  CompiledC code_;
};

/// Runs it as a caller would, with what is not given poisoned and the workspace watched: all
/// outputs of `fusion`, those that are written over inputs included. Throws on any code but 0.
std::vector<Tensor> run_c_program(const CProgramLibrary& library, const ir::Fusion& fusion,
                                  const std::map<std::string, std::int64_t>& sizes,
                                  std::span<const Tensor> inputs);

}  // namespace segfuse::test
