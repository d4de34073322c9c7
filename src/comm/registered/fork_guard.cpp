#include "comm/registered/fork_guard.h"

#include <fmt/core.h>
#include <pthread.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string_view>

#include "base/console/log.h"
#include "base/text.h"
#include "comm/registered/child.h"
#include "comm/registered/foreign.h"
#include "comm/registered/mapping.h"
#include "comm/registered/registry.h"
#include "segfuse/error.h"

namespace segfuse::comm {
namespace {

// Less than docs/fork.md measured for small pages on a busy virtual machine: about 1 s a GiB.
constexpr double kSecondsPerGiB = 0.4;
constexpr double kGiB = 1 << 30;
constexpr double kLongStall = 1;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::optional<std::size_t> number_in(std::string_view text) {
  text = text.substr(std::min(text.size(), text.find_first_not_of(" \t")));
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

std::size_t pinned_by_all() {
  const std::string status = text_of("/proc/self/status");
  constexpr std::string_view kName = "VmPin:";
  const std::size_t at = status.find(kName);
  if (at == std::string::npos) return 0;
  return number_in(std::string_view(status).substr(at + kName.size())).value_or(0) << 10;
}

/// Bytes left in one control group; nothing when it has no limit.
std::optional<std::size_t> room_in(const std::filesystem::path& group, const char* limit_name,
                                   const char* usage_name) {
  const auto limit = number_in(text_of(group / limit_name));
  const auto usage = number_in(text_of(group / usage_name));
  // The first version of groups says "no limit" by a number near the largest.
  if (!limit || !usage || *limit >= std::size_t{1} << 60) return std::nullopt;
  return *limit - std::min(*limit, *usage);
}

/// The least room of the process's group and those above it.
std::optional<std::size_t> head_room() {
  std::optional<std::size_t> least;
  const std::string groups = text_of("/proc/self/cgroup");
  for (const std::string_view line : split_lines(groups)) {
    const bool unified = line.starts_with("0::");
    const std::size_t memory = line.find(":memory:");
    if (!unified && memory == std::string_view::npos) continue;
    const std::filesystem::path root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    std::filesystem::path path(line.substr(unified ? 3 : memory + 8));
    for (; path.has_relative_path(); path = path.parent_path()) {
      const std::filesystem::path group = root / path.relative_path();
      const auto room = unified ? room_in(group, "memory.max", "memory.current")
                                : room_in(group, "memory.limit_in_bytes", "memory.usage_in_bytes");
      if (room) least = std::min(*room, least.value_or(*room));
    }
  }
  return least;
}

/// Looks at mappings that the kernel keeps from children.
class LostPages {
 public:
  explicit LostPages(ForkRisk& risk) : risk_(risk), maps_(read_maps()) {
    const std::string smaps = text_of("/proc/self/smaps");
    std::size_t index = maps_.size();
    for (const std::string_view line : split_lines(smaps)) {
      if (line.starts_with("VmFlags:"))
        flags(line, index);
      else if (const std::size_t dash = line.find('-'); is_header(line, dash))
        index = find_mapping(maps_, begin_of(line.substr(0, dash)));
    }
  }

 private:
  static bool is_header(std::string_view line, std::size_t dash) {
    return dash != std::string_view::npos && dash > 0 &&
           line.find_first_not_of("0123456789abcdef") == dash;
  }
  static std::uintptr_t begin_of(std::string_view text) {
    std::uintptr_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value, 16);
    return value;
  }
  /// One of the flags, which are two letters each, between blanks.
  static bool has(std::string_view flags, std::string_view one) {
    const std::size_t at = flags.find(one);
    const std::size_t end = at + one.size();
    return at != std::string_view::npos && (end == flags.size() || flags[end] == ' ');
  }

  void flags(std::string_view line, std::size_t index) {
    // Device memory ("io", "pf") never goes to children.
    if (index >= maps_.size() || !has(line, " dc") || has(line, " io") || has(line, " pf")) return;
    const MapLine& mapping = maps_[index];
    if (in_some_slab(mapping.begin, mapping.end)) return;
    const bool arena = begins_arena(index);
    const std::string owner = arena ? "the header of a malloc arena" : owner_of_part(index);
    if (owner.empty()) return;
    risk_.lost_pages += (mapping.end - mapping.begin) / page_bytes();
    if (risk_.lost_where.empty() || (arena && !risk_.certain_crash))
      risk_.lost_where = fmt::format("{:#x} to {:#x}, {}", mapping.begin, mapping.end, owner);
    risk_.certain_crash |= arena;
  }

  /// A mapping at a boundary of 64 MiB that more of the same kind follows.
  bool begins_arena(std::size_t index) const {
    return maps_[index].begin % kArena == 0 && maps_[index].name.empty() &&
           index + 1 < maps_.size() && maps_[index + 1].begin == maps_[index].end &&
           maps_[index + 1].name.empty();
  }

  /// Only what somebody else certainly lives in: other mappings are their owner's business.
  std::string owner_of_part(std::size_t index) const {
    const std::string& name = maps_[index].name;
    if (name == "[heap]") return "the malloc heap";
    if (name.starts_with("[stack")) return "a stack";
    if (name.starts_with('/') && !name.starts_with("/memfd:") && !name.starts_with("/dev/") &&
        maps_[index].writable)
      return "data of " + name;
    return {};
  }

  ForkRisk& risk_;
  std::vector<MapLine> maps_;
};

/// The process-wide guard: fork handlers cannot be removed, so they ask this.
struct Guard {
  std::mutex mutex;
  ForkGuard kind = ForkGuard::kOff;
  std::chrono::milliseconds interval{};
  std::optional<std::chrono::steady_clock::time_point> looked;
  ForkRisk risk;
};
Guard& guard() {
  static Guard& one = *new Guard;
  return one;
}

bool deserves_denial(const ForkRisk& risk) {
  const bool parts = risk.pinned > 0 && risk.copies == CopyOnFork::kNo;
  return risk.certain_crash || parts || risk.exceeds || risk.stall > kLongStall;
}

void before_fork() {
  if (in_forked_child()) return;
  Guard& state = guard();
  const std::unique_lock lock(state.mutex, std::try_to_lock);
  if (!lock || state.kind == ForkGuard::kOff) return;
  const auto now = std::chrono::steady_clock::now();
  if (!state.looked || now - *state.looked >= state.interval) {
    state.looked = now;
    state.risk = fork_risk();
  }
  if (!state.risk.any()) return;
  const bool deny = state.kind == ForkGuard::kDeny && deserves_denial(state.risk);
  log(deny ? LogLevel::kError : LogLevel::kWarning, "{}; start children with spawn instead{}",
      state.risk.sentence(), deny ? " (the fork guard ends this process)" : "");
  if (deny) std::abort();
}

}  // namespace

std::string ForkRisk::sentence() const {
  std::string out;
  const auto add = [&](const std::string& part) { out += (out.empty() ? "" : ", and ") + part; };
  if (pinned > 0 && (exceeds || stall > 0.05))
    add(
        fmt::format("would copy {:.2f} GiB of pinned memory at once, about {:.2f} s in which no "
                    "thread may touch new memory",
                    static_cast<double>(pinned) / kGiB, stall));
  if (parts())
    add(fmt::format("{} leave this process and its devices with different memory, of {:.2f} GiB",
                    copies == CopyOnFork::kNo ? "would" : "may",
                    static_cast<double>(pinned) / kGiB));
  if (exceeds)
    add(fmt::format(
        "would exceed the control group's limit, of which {:.2f} GiB are left, so that a "
        "process of it is killed",
        static_cast<double>(head_room.value_or(0)) / kGiB));
  if (lost_pages > 0)
    add(fmt::format("would leave {} page{} out of the child ({}){}", lost_pages,
                    lost_pages == 1 ? "" : "s", lost_where,
                    certain_crash ? ", so that it crashes" : ""));
  return out.empty() ? out : "fork() " + out;
}

ForkRisk fork_risk() {
  refuse_in_child("fork_risk");
  ForkRisk risk;
  const std::size_t all = pinned_by_all();
  risk.pinned = all - std::min(all, safely_pinned_bytes());
  risk.stall = static_cast<double>(risk.pinned) / kGiB * kSecondsPerGiB;
  if (risk.pinned > 0) risk.copies = copy_on_fork().answer;
  risk.head_room = head_room();
  risk.exceeds = risk.head_room && risk.pinned > *risk.head_room;
  const LostPages look(risk);
  return risk;
}

void set_fork_guard(ForkGuard kind, std::chrono::milliseconds interval) {
  refuse_in_child("set_fork_guard");
  // Tried now, since a handler of fork() is no place for it.
  if (kind != ForkGuard::kOff) static_cast<void>(copy_on_fork());
  static const int installed = pthread_atfork(before_fork, nullptr, nullptr);
  if (installed != 0) throw DeviceError("fork guard: no room for a fork handler");
  Guard& state = guard();
  const std::lock_guard lock(state.mutex);
  state.kind = kind;
  state.interval = interval;
  state.looked.reset();
}

}  // namespace segfuse::comm
