#include "comm/launch/oom.h"

#include <fstream>
#include <string>
#include <vector>

namespace segfuse::comm::launch {
namespace {

std::optional<std::int64_t> count_in(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string name;
  std::int64_t count = 0;
  while (in >> name >> count)
    if (name == "oom_kill") return count;
  return {};
}

/// Lines are "4:memory:/path", with two colons in the front; the second form has "0::/path".
std::vector<std::filesystem::path> files_of(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> files;
  std::ifstream in(root / "proc/self/cgroup");
  std::string line;
  while (std::getline(in, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty())
      files.push_back(root / ("sys/fs/cgroup" + path) / "memory.events");
    else if (controllers == "memory")
      files.push_back(root / ("sys/fs/cgroup/memory" + path) / "memory.oom_control");
  }
  // In a container the path may be the host's.
  files.push_back(root / "sys/fs/cgroup/memory.events");
  files.push_back(root / "sys/fs/cgroup/memory/memory.oom_control");
  return files;
}

}  // namespace

std::optional<std::int64_t> oom_kills(const std::filesystem::path& root) {
  for (const std::filesystem::path& file : files_of(root))
    if (const auto count = count_in(file)) return count;
  return {};
}

}  // namespace segfuse::comm::launch
