// PyTorch's exception for memory that is out, thrown without PyTorch's headers: c10::Error is made
// by a constructor that libc10 exports, and thrown as the type that PyTorch looks for.

#include <cxxabi.h>
#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <typeinfo>

#include "memory/callbacks.h"

namespace {

/// c10::SourceLocation.
struct SourceLocation {
  const char* function;
  const char* file;
  std::uint32_t line;
};

using Construct = void (*)(void*, SourceLocation, std::string);
constexpr std::size_t kRoom = 2048;  ///< a c10::Error has less than 400 bytes

/// By the names of this C++ library's strings: a PyTorch with others has other names.
constexpr const char* kConstructor =
    "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
constexpr const char* kType = "_ZTIN3c1016OutOfMemoryErrorE";
/// A library has the type only if it throws or catches it: libc10 lacks it in builds for CUDA.
/// libtorch_python turns it into the exception of Python. Types are compared by name, so any copy
/// will do.
constexpr std::array kLibraries = {"libtorch_python.so", "libc10_cuda.so", "libc10.so"};

/// The symbol in a library that the process has loaded, or null.
void* loaded(const char* library, const char* symbol) {
  void* const handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  return handle == nullptr ? nullptr : dlsym(handle, symbol);
}

std::type_info* out_of_memory_type() {
  for (const char* const library : kLibraries)
    if (void* const type = loaded(library, kType)) return static_cast<std::type_info*>(type);
  return nullptr;
}

/// std::exception is the first base of c10::Error, and its destructor is virtual.
void destroy(void* error) { static_cast<std::exception*>(error)->~exception(); }

}  // namespace

void segfuse_torch_out_of_memory(const char* message) {
  const auto construct = reinterpret_cast<Construct>(loaded(kLibraries.back(), kConstructor));
  std::type_info* const type = out_of_memory_type();
  if (construct == nullptr || type == nullptr) return;
  void* const error = abi::__cxa_allocate_exception(kRoom);
  try {
    construct(error, {"allocate", "segfuse.torch.allocator", 0}, message);
  } catch (...) {
    abi::__cxa_free_exception(error);
    throw;
  }
  abi::__cxa_throw(error, type, &destroy);
}
