#include "base/os/python_packages.h"

#include <filesystem>
#include <system_error>

#include "base/os/shared_library.h"

namespace segfuse {

std::vector<std::string> files_of_python_packages(std::initializer_list<const char*> paths) {
  static constexpr char kHere = 0;
  std::vector<std::string> found;
  for (const char* path : paths) {
    const std::string name = std::string("../") + path;
    for (const std::filesystem::path& place : places_of_module(&kHere, name.c_str())) {
      std::error_code error;
      if (place.parent_path().empty() || !std::filesystem::exists(place, error)) continue;
      found.push_back(place.string());
      break;
    }
  }
  return found;
}

}  // namespace segfuse
