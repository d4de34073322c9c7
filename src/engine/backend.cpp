#include "engine/backend.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "segfuse/error.h"

namespace segfuse::engine {

// The build writes engine_backends.inc: one row for each file of backends/.
#define SEGFUSE_BACKEND(name) BackendInfo name##_backend();
#include <engine_backends.inc>
#undef SEGFUSE_BACKEND

std::span<const BackendInfo> backends() {
  static const auto& all = *new std::vector<BackendInfo>{
#define SEGFUSE_BACKEND(name) name##_backend(),
#include <engine_backends.inc>
#undef SEGFUSE_BACKEND
  };
  return all;
}

const BackendInfo& find_backend(std::string_view name, bool on_device) {
  const BackendInfo* found = nullptr;
  std::vector<std::string> names;
  for (const BackendInfo& info : backends()) {
    if (std::ranges::find(names, info.name) == names.end()) names.emplace_back(info.name);
    if (info.name == name && (found == nullptr || info.on_device == on_device)) found = &info;
  }
  if (found == nullptr || (found->on_device && !on_device))
    throw UsageError(
        fmt::format("backend '{}' is unknown; known are {}", name, quoted_list(names)));
  return *found;
}

}  // namespace segfuse::engine
