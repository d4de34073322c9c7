// libFuzzer target: manifests. What they name does not exist, or is the manifest itself.

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "segfuse/data.h"
#include "segfuse/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace segfuse;
  namespace fs = std::filesystem;
  static const fs::path folder = [] {
    fs::path made =
        fs::temp_directory_path() / ("segfuse-fuzz-manifest-" + std::to_string(getpid()));
    fs::create_directories(made);
    for (const char* name : {"a.wav", "a.phn", "b.wav", "b.phn"}) std::ofstream(made / name) << "x";
    return made;
  }();
  const fs::path path = folder / "manifest.tsv";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    for (const Recording& recording : load_manifest(path, {.allow_commands = true}))
      if (recording.id.empty()) std::abort();
  } catch (const DataError&) {
  }
  return 0;
}
