#pragma once
// Names of C++ as they were written.

#include <string>

namespace segfuse {

/// "tm<32, double>(double*)" of "_Z2tmILi32EdEvPT0_"; a name that is not mangled stays as it is.
std::string demangled(const std::string& name);

}  // namespace segfuse
