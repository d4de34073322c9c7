#pragma once
// The run-time compiler in tests: it needs no GPU.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/cuda/nvrtc.h"
#include "segfuse/error.h"
#include "support/source_dir.h"

namespace segfuse::testing {

/// NVRTC as tools/setup installs it with the Python tests' packages, if nothing else is named.
/// Empty if it is there; else why not.
inline std::string missing_nvrtc() {
#ifdef __SANITIZE_ADDRESS__
  return "the same texts are compiled in the plain build";
#endif
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path root = fs::path(SEGFUSE_SOURCE_DIR) / ".venv-python/lib";
  if (std::getenv("SEGFUSE_NVRTC") == nullptr && fs::exists(root))
    for (const auto& entry : fs::recursive_directory_iterator(root, error))
      if (entry.path().filename() == "libnvrtc.so.13")
        setenv("SEGFUSE_NVRTC", entry.path().c_str(), 1);
  try {
    runtime::cuda::nvrtc_version();
  } catch (const DeviceError& failure) {
    return failure.what();
  }
  return "";
}

/// Of each kernel in an assembler's report the line about its memory: "0 bytes stack frame, 0 bytes
/// spill stores, 0 bytes spill loads".
inline std::vector<std::string> memory_of_kernels(const std::string& report) {
  std::vector<std::string> found;
  std::istringstream lines(report);
  for (std::string line; std::getline(lines, line);)
    if (const std::size_t at = line.find(" bytes stack frame, "); at != line.npos)
      found.push_back(line.substr(line.find_last_not_of("0123456789", at - 1) + 1));
  return found;
}

}  // namespace segfuse::testing
