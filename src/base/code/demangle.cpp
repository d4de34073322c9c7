#include "base/code/demangle.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace segfuse {

std::string demangled(const std::string& name) {
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  // Without the prefix "i" would be the name of a type.
  if (!name.starts_with("_Z")) return name;
  int status = 0;
  const std::unique_ptr<char, Free> plain(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status));
  return status == 0 ? std::string(plain.get()) : name;
}

}  // namespace segfuse
