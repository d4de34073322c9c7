#include "base/os/shared_library.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <link.h>

#include <system_error>

namespace segfuse {

SharedLibrary SharedLibrary::open_first(std::initializer_list<std::string> names) {
  return open_first(std::span<const std::string>(names.begin(), names.size()));
}

SharedLibrary SharedLibrary::open_first(std::span<const std::string> names) {
  return open(names, RTLD_NOW | RTLD_LOCAL);
}

SharedLibrary SharedLibrary::open_first_lazily(std::span<const std::string> names) {
  return open(names, RTLD_LAZY | RTLD_LOCAL);
}

SharedLibrary SharedLibrary::open(std::span<const std::string> names, int how) {
  SharedLibrary library;
  for (const std::string& name : names) {
    library.handle_ = dlopen(name.c_str(), how);
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
    throw DeviceError(
        fmt::format("{} has no function {}; it is older than segfuse needs", name_, symbol));
  return address;
}

namespace {

/// Of the program or library that the object at `address` is a part of.
std::filesystem::path folder_of_code(const void* address) {
  Dl_info info{};
  void* map = nullptr;
  // The program itself has an empty name in the list of loaded objects, and may have been found
  // through PATH.
  if (dladdr1(address, &info, &map, RTLD_DL_LINKMAP) != 0 && map != nullptr) {
    const char* name = static_cast<const link_map*>(map)->l_name;
    if (name != nullptr && *name != '\0') return std::filesystem::path(name).parent_path();
  }
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

}  // namespace

std::vector<std::filesystem::path> places_of_module(const void* address, const char* name) {
  const std::filesystem::path folder = folder_of_code(address);
  std::vector<std::filesystem::path> places;
  for (const char* place : {"", "../lib", "../lib/segfuse", ".."})
    places.push_back((folder / place / name).lexically_normal());
  return places;
}

}  // namespace segfuse
