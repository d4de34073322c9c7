#include "comm/nccl/library.h"

#include <fmt/ranges.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/os/python_packages.h"
#include "base/os/shared_library.h"
#include "segfuse/error.h"

namespace segfuse::comm {
namespace {

constexpr const char* kVariable = "SEGFUSE_NCCL";
constexpr const char* kFile = "libnccl.so.2";
constexpr int kMinVersion = 22000;

std::string version_text(int version) {
  if (version < 10000)  // up to 2.8
    return fmt::format("{}.{}.{}", version / 1000, version / 100 % 10, version % 100);
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void load_optional(const SharedLibrary& library, NcclApi& api) {
  try {
    library.load("ncclGetLastError", api.last_error);
  } catch (const DeviceError&) {
    api.last_error = nullptr;
  }
}

std::vector<std::string> places() {
  if (const char* named = ::secure_getenv(kVariable); named != nullptr && *named != '\0')
    return {named};
  std::vector<std::string> files = {kFile};
  if (const char* home = ::secure_getenv("CUDA_HOME"))
    files.push_back(fmt::format("{}/lib64/{}", home, kFile));
  files.push_back(fmt::format("/usr/local/cuda/lib64/{}", kFile));
  for (std::string& file : files_of_python_packages({"nvidia/nccl/lib/libnccl.so.2"}))
    files.push_back(std::move(file));
  return files;
}

}  // namespace

std::optional<NcclApi> open_nccl(const std::string& file, std::string& reason) {
  // NCCL reads it once, at its first call.
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  const SharedLibrary library = SharedLibrary::open_first({file});
  if (!library) {
    reason = library.error();
    return {};
  }
  NcclApi api;
  int version = 0;
  try {
    library.load("ncclGetVersion", api.get_version);
    if (api.get_version(&version) != NcclResult::kSuccess || version < kMinVersion) {
      reason = fmt::format("{} is NCCL {}, and segfuse needs {} or later", file,
                           version_text(version), version_text(kMinVersion));
      return {};
    }
#define X(member, function, arguments) library.load(#function, api.member);
    SEGFUSE_NCCL_FUNCTIONS(X)
#undef X
    library.load("ncclGetErrorString", api.error_text);
  } catch (const DeviceError& error) {
    reason = error.what();
    return {};
  }
  load_optional(library, api);
  api.where = file;
  api.version = version_text(version);
  return api;
}

const NcclApi& nccl() {
  static Mutex mutex;
  static auto& opened = *new std::optional<NcclApi>();
  const MutexLock lock(mutex);
  if (opened) return *opened;
  std::vector<std::string> tried;
  for (const std::string& file : places()) {
    std::string reason;
    opened = open_nccl(file, reason);
    if (opened) return *opened;
    tried.push_back(reason);
  }
  throw CommError(fmt::format(
      "no NCCL of {} or later can be used (tried: {}); install it (pip install nvidia-nccl-cu13) "
      "and name its {} in {}",
      version_text(kMinVersion), fmt::join(tried, "; "), kFile, kVariable));
}

}  // namespace segfuse::comm
