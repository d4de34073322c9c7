#include "base/memory/headroom.h"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <vector>

#include "base/text.h"

namespace segfuse {
namespace {

/// What one cgroup still has; nothing where it has no limit.
std::optional<std::uint64_t> room_of(const std::string& folder, bool unified) {
  const auto limit = number_in_file(folder + (unified ? "/memory.max" : "/memory.limit_in_bytes"));
  const auto used =
      number_in_file(folder + (unified ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!limit || !used || *limit >= kUnlimited) return std::nullopt;
  // Pages of files are given back before anybody is killed.
  const std::string stat = read_system_file(folder + "/memory.stat").value_or("");
  const std::string prefix = unified ? "" : "total_";
  const std::uint64_t files = status_value(stat, prefix + "inactive_file").value_or(0) +
                              status_value(stat, prefix + "active_file").value_or(0);
  const std::uint64_t held = *used - std::min(*used, files);
  return *limit - std::min(*limit, held);
}

void tighten(std::optional<Headroom>& best, const std::string& mount, std::string path,
             bool unified) {
  while (true) {
    if (const auto room = room_of(mount + path, unified); room && (!best || *room < best->bytes))
      best = Headroom{*room, path.empty() ? "/" : path};
    if (path.empty()) return;
    path.resize(std::min(path.rfind('/'), path.size()));
  }
}

}  // namespace

std::optional<std::string> read_system_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text;
  std::vector<char> block(std::size_t{1} << 16);
  while (file.read(block.data(), std::ssize(block)) || file.gcount() > 0)
    text.append(block.data(), static_cast<std::size_t>(file.gcount()));
  if (file.bad()) return std::nullopt;
  return text;
}

std::optional<std::uint64_t> number_in_file(const std::string& path) {
  const std::optional<std::string> text = read_system_file(path);
  if (!text) return std::nullopt;
  if (trim(*text) == "max") return kUnlimited;
  const std::optional<std::int64_t> value = parse_int(trim(*text));
  if (!value || *value < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*value);
}

std::optional<std::uint64_t> status_value(std::string_view text, std::string_view key) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (line.substr(0, key.size()) != key) continue;
    line.remove_prefix(key.size());
    if (line.empty() || (line[0] != ':' && line[0] != ' ' && line[0] != '\t')) continue;
    line.remove_prefix(std::min(line.find_first_of("0123456789"), line.size()));
    std::uint64_t value = 0;
    const auto [rest, error] = std::from_chars(line.data(), line.data() + line.size(), value);
    if (error != std::errc{}) return std::nullopt;
    const std::string_view unit(rest, static_cast<std::size_t>(line.data() + line.size() - rest));
    return unit.find("kB") == std::string_view::npos ? value : value << 10;
  }
  return std::nullopt;
}

std::optional<Headroom> memory_headroom(const std::string& cgroup_text, const std::string& root) {
  std::optional<Headroom> best;
  for (const std::string_view line : split_lines(cgroup_text)) {
    const std::vector<std::string_view> parts = split(line, ':');
    if (parts.size() < 3) continue;
    std::string path(line.substr(parts[0].size() + parts[1].size() + 2));
    if (path == "/") path.clear();
    if (parts[1].empty()) {
      tighten(best, root + "/sys/fs/cgroup", path, true);
      tighten(best, root + "/sys/fs/cgroup/unified", path, true);
    } else {
      for (const std::string_view controller : split(parts[1], ','))
        if (controller == "memory") tighten(best, root + "/sys/fs/cgroup/memory", path, false);
    }
  }
  if (best) best->of = "memory cgroup " + best->of;
  const std::string memory = read_system_file(root + "/proc/meminfo").value_or("");
  const auto available = status_value(memory, "MemAvailable");
  if (available && (!best || *available < best->bytes)) best = Headroom{*available, "the machine"};
  return best;
}

std::optional<Headroom> memory_headroom() {
  std::optional<Headroom> room =
      memory_headroom(read_system_file("/proc/self/cgroup").value_or(""), "");
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return room;
  const std::string status = read_system_file("/proc/self/status").value_or("");
  const std::uint64_t used = status_value(status, "VmSize").value_or(0);
  const std::uint64_t left = limit.rlim_cur - std::min<std::uint64_t>(limit.rlim_cur, used);
  if (!room || left < room->bytes) room = Headroom{left, "this process (ulimit -v)"};
  return room;
}

}  // namespace segfuse
