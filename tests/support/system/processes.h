#pragma once
// Children of tests: forked on purpose, or this program again as a fresh process.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "segfuse/spawn.h"

namespace segfuse::test {

/// A sanitizer is in this program: its allocator is not the C library's, and its shadow memory
/// makes forks slow.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// Children die here by the hundred. One byte is the limit that stops dumps to programs, too.
inline const bool kNoCoreDumps = [] {
  const rlimit one{1, 1};
  return setrlimit(RLIMIT_CORE, &one) == 0;
}();

/// The status of a forked child that runs `work` and exits with what it returns; it gets a minute.
/// -1 when fork() fails (errno tells).
int forked(auto&& work) {
  const pid_t child = fork();
  if (child < 0) return -1;
  if (child == 0) {
    alarm(60);
    signal(SIGSEGV, SIG_DFL);  // sanitizers have a handler that exits
    _exit(work());
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return status;
}

/// Runs the disabled test `Part.DISABLED_NAME` of this program in a new process. `prefix` is shell
/// in front of it ("echo $$ >group; ").
inline spawn::Result run_part(const std::string& name, const std::string& prefix = "",
                              std::chrono::seconds patience = std::chrono::seconds(300)) {
  char program[4096] = {};
  EXPECT_GT(readlink("/proc/self/exe", program, sizeof program - 1), 0);
  spawn::Request request =
      spawn::shell(prefix + "exec '" + program +
                   "' --gtest_also_run_disabled_tests --gtest_filter=" + "Part.DISABLED_" + name);
  request.timeout = patience;
  request.err = spawn::Merge{};
  return spawn::run(request);
}

inline std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The number behind "NAME:" in a file of /proc; 0 when there is none.
inline std::size_t field_of(const std::string& path, std::string_view name) {
  const std::string text = text_of(path);
  const std::size_t at = text.find(std::string(name) + ":");
  return at == std::string::npos
             ? 0
             : static_cast<std::size_t>(std::atoll(text.c_str() + at + name.size() + 1));
}

/// The part of smaps about the mapping with this address.
inline std::string smaps_of(const void* address) {
  std::ifstream file("/proc/self/smaps");
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::string part;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    std::size_t end = 0;
    const std::size_t dash = line.find('-');
    if (dash != std::string::npos && line.find_first_not_of("0123456789abcdef") == dash) {
      const std::uintptr_t first = std::stoull(line, &end, 16);
      inside = at >= first && at < std::stoull(line.substr(dash + 1), nullptr, 16);
    }
    if (inside) part += line + "\n";
  }
  return part;
}

inline std::string flags_of(const void* address) {
  const std::string part = smaps_of(address);
  const std::size_t at = part.find("VmFlags:");
  return at == std::string::npos ? "" : part.substr(at + 8, part.find('\n', at) - at - 8) + " ";
}

inline bool kept_from_children(const void* address) {
  return flags_of(address).find(" dc ") != std::string::npos;
}

inline std::size_t mappings() {
  const std::string maps = text_of("/proc/self/maps");
  return static_cast<std::size_t>(std::count(maps.begin(), maps.end(), '\n'));
}

inline double seconds_of(auto&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace segfuse::test
