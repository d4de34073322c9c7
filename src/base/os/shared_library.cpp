#include "base/os/shared_library.h"

#include <dlfcn.h>

namespace segfuse {

SharedLibrary SharedLibrary::open_first(std::initializer_list<std::string> names) {
  return open_first(std::span<const std::string>(names.begin(), names.size()));
}

SharedLibrary SharedLibrary::open_first(std::span<const std::string> names) {
  SharedLibrary library;
  for (const std::string& name : names) {
    library.handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    library.name_ = name;
    if (library.handle_ != nullptr) return library;
    // The first name is the one to be expected; its reason is the one to tell.
    if (library.error_.empty()) library.error_ = dlerror();
  }
  return library;
}

void* SharedLibrary::find(const char* symbol) const {
  void* address = dlsym(handle_, symbol);
  if (address == nullptr)
    throw DeviceError("{} has no function {}; it is older than segfuse needs", name_, symbol);
  return address;
}

}  // namespace segfuse
