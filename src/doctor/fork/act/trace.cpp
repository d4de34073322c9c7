// Runs a command under the preloaded library and puts together what it tells: see the contract in
// trace.h.

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "base/os/shared_library.h"
#include "base/text.h"
#include "doctor/fork/act/trace.h"
#include "doctor/fork/act/trace_listener.h"
#include "doctor/fork/act/trace_message.h"
#include "doctor/fork/page.h"
#include "segfuse/error.h"
#include "segfuse/spawn.h"

namespace segfuse::doctor {

namespace {

/// A process is looked at so often for one place in the program: each look takes milliseconds.
constexpr std::uint64_t kLooks = 3;
constexpr std::size_t kMaxSites = 4000;
/// Frames from the caller on that tell places apart.
constexpr std::size_t kFramesOfPlace = 3;

/// Registered and not released: ranges of one process.
struct Live {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::size_t site = 0;
  bool seen = false;  ///< children lacked all of its pages at some look
};

class Tracer {
 public:
  void on_message(const TraceSender& sender, std::string_view text) {
    const auto message = parse_trace_message(text);
    if (!message) {
      ++malformed_;
      return;
    }
    senders_.insert(sender.number);
    switch (message->kind) {
      case TraceKind::kKeep:
      case TraceKind::kWipe: return add(sender, *message);
      case TraceKind::kRelease:
      case TraceKind::kUnwipe: return release(sender, *message);
      case TraceKind::kFork: return before_fork(sender, *message);
      case TraceKind::kExit: return last_look(sender);
    }
  }
  void on_end(const TraceSender& sender) {
    for (const Live& live : live_[sender.number]) ++sites_[live.site].live;
    live_.erase(sender.number);
  }

  void report(ForkTrace& trace) {
    trace.processes = senders_.size();
    for (std::size_t i = 0; i < sites_.size(); ++i)
      (sites_[i].call == "fork" ? trace.forks : trace.sites).push_back(std::move(sites_[i]));
    const auto worst_first = [](const ForkSite& a, const ForkSite& b) {
      return a.risk != b.risk ? a.risk > b.risk : a.calls > b.calls;
    };
    std::stable_sort(trace.sites.begin(), trace.sites.end(), worst_first);
    std::stable_sort(trace.forks.begin(), trace.forks.end(), worst_first);
    trace.notes.insert(trace.notes.end(), unseen_.begin(), unseen_.end());
    if (malformed_ > 0)
      trace.notes.push_back(fmt::format("{} messages could not be read.", malformed_));
    if (dropped_ > 0)
      trace.notes.push_back(
          fmt::format("{} calls from more than {} places were not kept.", dropped_, kMaxSites));
    if (senders_.empty())
      trace.notes.push_back(
          "No process was seen to register memory or fork. Calls of programs that are linked "
          "statically, or that run with the rights of another user, cannot be seen.");
  }

 private:
  /// The place that a call came from; nothing when there are too many.
  std::optional<std::size_t> site_of(const TraceMessage& message) {
    const std::size_t caller = caller_in(message.stack);
    std::string key = message.call;
    for (std::size_t i = caller; i < std::min(caller + kFramesOfPlace, message.stack.size()); ++i)
      key += fmt::format("|{}:{:#x}", message.stack[i].library, message.stack[i].offset);
    const auto found = by_place_.find(key);
    if (found != by_place_.end()) return found->second;
    if (sites_.size() >= kMaxSites) {
      ++dropped_;
      return std::nullopt;
    }
    ForkSite site;
    site.call = message.call;
    site.stack = message.stack;
    site.caller = caller;
    site.first_address = message.address;
    sites_.push_back(std::move(site));
    by_place_.emplace(std::move(key), sites_.size() - 1);
    return sites_.size() - 1;
  }

  void add(const TraceSender& sender, const TraceMessage& message) {
    const auto index = site_of(message);
    if (!index) return;
    ForkSite& site = sites_[*index];
    ++site.calls;
    if (message.error != 0) {
      ++site.failed;
      return;
    }
    site.bytes += message.bytes;
    std::vector<Live>& all = live_[sender.number];
    all.push_back({message.address, message.address + message.bytes, *index});
    if (site.calls - site.failed > kLooks) return;
    if (const auto report = look(sender.pid)) judge(*report, all.back());
  }

  void release(const TraceSender& sender, const TraceMessage& message) {
    if (message.error != 0) return;
    std::vector<Live>& all = live_[sender.number];
    const std::uint64_t end = message.address + message.bytes;
    // madvise gives back all in its pages, the verbs library one registration: the last one.
    if (message.call == "madvise") {
      std::erase_if(all, [&](const Live& live) {
        return live.begin >= page_begin(message.address) && live.end <= end;
      });
      return;
    }
    for (std::size_t i = all.size(); i-- > 0;)
      if (all[i].begin == message.address && all[i].end == end) {
        all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
        return;
      }
  }

  void before_fork(const TraceSender& sender, const TraceMessage& message) {
    if (live_[sender.number].empty()) return;
    const auto index = site_of(message);
    if (!index) return;
    ForkSite& site = sites_[*index];
    if (++site.calls > kLooks) return;
    const auto report = look(sender.pid);
    if (!report) return;
    judge_all(*report, live_[sender.number]);
    const ForkRisk risk = report->regions.empty() ? ForkRisk::kBenign : report->regions[0].risk;
    if (site.forecast.empty() || risk > site.risk) {
      site.forecast = report->forecast.sentence;
      site.risk = risk;
    }
  }

  void last_look(const TraceSender& sender) {
    std::vector<Live>& all = live_[sender.number];
    if (all.empty() && unseen_.size() >= kLooks) return;
    const auto report = look(sender.pid);
    if (!report) return;
    judge_all(*report, all);
    for (const ForkRegion& region : report->regions) {
      if (region.risk == ForkRisk::kBenign || unseen_.size() >= kLooks) continue;
      if (std::none_of(all.begin(), all.end(),
                       [&](const Live& live) { return touches(live, region); }))
        unseen_.push_back(
            fmt::format("{:#x}-{:#x} of process {} ({}) is {} by a call that was not seen: {}.",
                        region.begin, region.end, sender.pid, report->command, region.mechanism,
                        fork_risk_name(region.risk)));
    }
  }

  static std::optional<ForkReport> look(int pid) {
    try {
      return examine_fork(pid);
    } catch (const Error&) {
      return std::nullopt;  // ended, or became somebody else's
    }
  }

  static bool touches(const Live& live, const ForkRegion& region) {
    return page_begin(live.begin) < region.end && std::max(live.end, live.begin + 1) > region.begin;
  }

  /// Of all its pages, from the first to the last.
  static bool covered(const ForkReport& report, const Live& live) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> parts;
    for (const ForkRegion& region : report.regions)
      if (touches(live, region)) parts.emplace_back(region.begin, region.end);
    std::sort(parts.begin(), parts.end());
    std::uint64_t at = page_begin(live.begin);
    for (const auto& [begin, end] : parts)
      if (begin <= at) at = std::max(at, end);
    return at >= std::max(live.end, live.begin + 1);
  }

  /// False: what was there has been unmapped since, and is somebody else's now.
  bool judge(const ForkReport& report, Live& live) {
    ForkSite& site = sites_[live.site];
    if (!covered(report, live)) return !live.seen && !site.worst;
    live.seen = true;
    for (const ForkRegion& region : report.regions) {
      if (!touches(live, region)) continue;
      if (site.worst && site.worst->risk >= region.risk) continue;
      site.worst = region;
      site.risk = region.risk;
      site.first_address = live.begin;
    }
    return true;
  }
  void judge_all(const ForkReport& report, std::vector<Live>& all) {
    std::erase_if(all, [&](Live& live) { return !judge(report, live); });
  }

  std::vector<ForkSite> sites_;
  std::map<std::string, std::size_t> by_place_;
  std::map<std::uint64_t, std::vector<Live>> live_;  ///< by sender
  std::set<std::uint64_t> senders_;
  std::vector<std::string> unseen_;
  std::uint64_t malformed_ = 0;
  std::uint64_t dropped_ = 0;
};

constexpr const char* kLibrary = "libsegfuse_forktrace.so";

std::filesystem::path find_library() {
  std::error_code error;
  if (const char* named = std::getenv("SEGFUSE_FORKTRACE"); named != nullptr && *named != '\0') {
    if (std::filesystem::exists(named, error)) return std::filesystem::absolute(named);
    throw DeviceError(fmt::format("SEGFUSE_FORKTRACE: there is no file {}", named));
  }
  const std::vector<std::filesystem::path> places = places_of_module(&kLibrary, kLibrary);
  for (const std::filesystem::path& path : places)
    if (std::filesystem::exists(path, error)) return std::filesystem::absolute(path);
  throw DeviceError(fmt::format(
      "{} is not beside this program ({}); it is built with it, and SEGFUSE_FORKTRACE may name its "
      "file",
      kLibrary, places.front().parent_path().string()));
}

/// File and line of the calls, where addr2line is installed and knows them.
void find_lines(std::vector<ForkSite>& sites) {
  std::map<std::string, std::vector<ForkFrame*>> frames;
  for (ForkSite& site : sites)
    for (ForkFrame& frame : site.stack)
      if (!frame.library.empty()) frames[frame.library].push_back(&frame);
  for (auto& [library, all] : frames) {
    constexpr std::size_t kAtOnce = 500;
    all.resize(std::min(all.size(), kAtOnce));
    spawn::Request request{.arguments = {"addr2line", "-Cfe", library}};
    for (const ForkFrame* frame : all)
      request.arguments.push_back(fmt::format("{:#x}", frame->offset));
    request.timeout = std::chrono::seconds(20);
    const spawn::Result result = spawn::run(request);
    if (result.failed != spawn::Stage::kNone) return;
    const std::vector<std::string_view> lines = split_lines(result.out);
    for (std::size_t i = 0; i < all.size() && 2 * i + 1 < lines.size(); ++i) {
      const std::string_view function = lines[2 * i];
      std::string_view line = lines[2 * i + 1];
      line = line.substr(0, line.find(" (discriminator"));
      if (all[i]->function.empty() && !function.starts_with("??")) all[i]->function = function;
      if (!line.starts_with("??") && !line.ends_with(":?") && !line.ends_with(":0"))
        all[i]->line = line;
    }
  }
}

}  // namespace

bool ForkTrace::at_risk() const {
  return std::any_of(sites.begin(), sites.end(),
                     [](const ForkSite& site) { return site.risk != ForkRisk::kBenign; });
}

ForkTrace trace_command(const std::vector<std::string>& command) {
  if (command.empty()) throw UsageError("no command to trace; write it after --");
  ForkTrace trace;
  for (const std::string& word : command)
    trace.command += (trace.command.empty() ? "" : " ") + word;
  std::string preload = find_library().string();
  if (const char* others = std::getenv("LD_PRELOAD"); others != nullptr && *others != '\0')
    preload += std::string(":") + others;
  Tracer tracer;
  const auto start = std::chrono::steady_clock::now();
  spawn::Result result;
  {
    const TraceListener listener(
        [&](const TraceSender& sender, std::string_view text) { tracer.on_message(sender, text); },
        [&](const TraceSender& sender) { tracer.on_end(sender); });
    spawn::Request request{.arguments = command};
    request.environment = spawn::Environment::patch(
        {{"LD_PRELOAD", preload}, {"SEGFUSE_FORK_TRACE", listener.name()}});
    request.in = spawn::Inherit{};
    request.out = spawn::Descriptor{STDERR_FILENO};
    request.err = spawn::Inherit{};
    result = spawn::run(request);
  }
  if (result.failed != spawn::Stage::kNone)
    throw UsageError(fmt::format("{}: {}", command[0], result.outcome()));
  trace.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  trace.outcome = result.outcome();
  tracer.report(trace);
  find_lines(trace.sites);
  find_lines(trace.forks);
  return trace;
}

}  // namespace segfuse::doctor
