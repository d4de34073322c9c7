#pragma once
// C text compiled by this machine's compiler, as a stranger would.

#include <string>
#include <string_view>
#include <vector>

#include "support/files.h"

namespace segfuse::test {

/// What a compiler said: empty if it liked the text. It runs with -x c -std=c11 and `flags`.
std::string compiler_complaints(const std::string& text, std::string_view flags);

/// A library made of one text. Throws with the compiler's words if it does not compile.
class CompiledC {
 public:
  explicit CompiledC(const std::string& text, std::string_view flags = "-O2");
  ~CompiledC();
  CompiledC(const CompiledC&) = delete;
  CompiledC& operator=(const CompiledC&) = delete;

  template <class Function>
  Function* get(const std::string& name) const {
    return reinterpret_cast<Function*>(find(name));
  }

 private:
  void* find(const std::string& name) const;
  void* handle_ = nullptr;
};

/// The instruction sets of x86 beyond the first that this machine runs, as flags: "", "-mavx2", ...
std::vector<std::string> machine_flags();

}  // namespace segfuse::test
