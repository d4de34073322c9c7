// Runs a libFuzzer entry point without libFuzzer: every file of the given folders, then mutations
// of them drawn from a fixed seed. usage: fuzz_NAME MUTATIONS FOLDER...

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/os/file.h"
#include "base/rng.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;

const std::string* running = nullptr;

/// Leaves what was run in a file, and dies of the signal.
void leave(int signal) {
  std::signal(signal, SIG_DFL);
  if (std::FILE* file = std::fopen("fuzz_crash", "wb")) {
    std::fwrite(running->data(), 1, running->size(), file);
    std::fclose(file);
    std::fputs("what was run is in fuzz_crash\n", stderr);
  }
  std::raise(signal);
}

void run(const std::string& bytes) {
  running = &bytes;
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

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Where the words of a text are: first byte and length.
std::vector<std::pair<std::size_t, std::size_t>> words_of(const std::string& bytes) {
  std::vector<std::pair<std::size_t, std::size_t>> words;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (!in_word(bytes[i])) continue;
    const std::size_t first = i;
    while (i < bytes.size() && in_word(bytes[i])) ++i;
    words.emplace_back(first, i - first);
  }
  return words;
}

/// A word in place of another of the same text, or a small number: what is left often has a
/// meaning still.
void exchange_word(std::string& bytes, segfuse::Rng& rng) {
  const auto words = words_of(bytes);
  if (words.empty()) return;
  const auto [from, from_size] = words[rng.below(words.size())];
  const auto [to, to_size] = words[rng.below(words.size())];
  const bool number = std::isdigit(static_cast<unsigned char>(bytes[to])) != 0 && rng.below(2) == 0;
  const std::string word = number ? std::to_string(rng.below(9)) : bytes.substr(from, from_size);
  bytes.replace(to, to_size, word);
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
  switch (rng.below(9)) {
    case 0:
      if (at < bytes.size()) bytes[at] = static_cast<char>(rng.bits());
      break;
    case 1: bytes.erase(at, rng.below(9)); break;
    case 2: bytes.insert(at, kPieces[rng.below(kPieces.size())]); break;
    case 3: bytes.resize(at); break;
    case 4:
    case 5:
    case 6: exchange_word(bytes, rng); break;
    case 7: bytes.insert(at, bytes.substr(rng.below(bytes.size() + 1), rng.below(40))); break;
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
  for (const int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGILL, SIGBUS}) std::signal(signal, leave);
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
