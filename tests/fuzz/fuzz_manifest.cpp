// libFuzzer target: manifests. What they name does not exist, or is the manifest itself.

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "support/fuzz_folder.h"
#include "segfuse/data.h"
#include "segfuse/error.h"

namespace {

/// Files that a manifest may name.
struct Recordings : segfuse::fuzz::Folder {
  Recordings() {
    const std::uint8_t byte = 'x';
    for (const char* name : {"a.wav", "a.phn", "b.wav", "b.phn"}) write(name, &byte, 1);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace segfuse;
  static const Recordings recordings;
  const std::filesystem::path path = recordings.write("manifest.tsv", data, size);
  try {
    for (const Recording& recording : load_manifest(path, {.allow_commands = true}))
      if (recording.id.empty()) std::abort();
  } catch (const DataError&) {
  }
  return 0;
}
