// Runs a libFuzzer entry point without libFuzzer: every file of the given folders, then mutations
// of them drawn from a fixed seed. usage: fuzz_NAME MUTATIONS FOLDER...

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/os/file.h"
#include "base/rng.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;

void run(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

std::vector<std::string> seeds_of(int count, char** folders) {
  std::vector<fs::path> paths;
  for (int i = 0; i < count; ++i)
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folders[i]))
      if (entry.is_regular_file()) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds = {""};
  for (const fs::path& path : paths) seeds.push_back(segfuse::read_file(path));
  return seeds;
}

/// One random edit.
void mutate(std::string& bytes, const std::vector<std::string>& seeds, segfuse::Rng& rng) {
  static const std::vector<std::string> kPieces = {"\n",
                                                   "\t",
                                                   " ",
                                                   "\"",
                                                   "#",
                                                   "-",
                                                   "0",
                                                   "1e308",
                                                   "nan",
                                                   "inf",
                                                   "99999999999999999999",
                                                   "\xFF",
                                                   std::string(1, '\0'),
                                                   "\xEF\xBB\xBF",
                                                   "\xD8",
                                                   "<exists>",
                                                   "end_head\n",
                                                   "-i",
                                                   "; ",
                                                   "\r"};
  const std::size_t at = rng.below(bytes.size() + 1);
  switch (rng.below(6)) {
    case 0:
      if (at < bytes.size()) bytes[at] = static_cast<char>(rng.bits());
      break;
    case 1: bytes.erase(at, rng.below(9)); break;
    case 2: bytes.insert(at, kPieces[rng.below(kPieces.size())]); break;
    case 3: bytes.resize(at); break;
    case 4: bytes.insert(at, bytes.substr(rng.below(bytes.size() + 1), rng.below(40))); break;
    default: {
      const std::string& other = seeds[rng.below(seeds.size())];
      bytes = bytes.substr(0, at) + other.substr(rng.below(other.size() + 1));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s MUTATIONS FOLDER...\n", argv[0]);
    return 2;
  }
  const std::vector<std::string> seeds = seeds_of(argc - 2, argv + 2);
  for (const std::string& seed : seeds) run(seed);
  const long mutations = std::atol(argv[1]);
  for (long i = 0; i < mutations; ++i) {
    segfuse::Rng rng(1, static_cast<std::uint64_t>(i));
    std::string bytes = seeds[rng.below(seeds.size())];
    for (std::uint64_t edits = 1 + rng.below(4); edits > 0; --edits) mutate(bytes, seeds, rng);
    run(bytes);
  }
  std::printf("%zu seeds, %ld mutations\n", seeds.size(), mutations);
  return 0;
}
