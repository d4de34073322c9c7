// What a trace found, as text and as JSON.

#include <fmt/core.h>

#include "base/json/json.h"
#include "doctor/fork/act/trace.h"
#include "doctor/record.h"

namespace segfuse {

namespace doctor {

namespace {

constexpr std::size_t kMaxShown = 30;
constexpr std::size_t kMaxFrames = 8;

std::string frame_text(const ForkFrame& frame) {
  std::string text = frame.function.empty() ? fmt::format("{:#x}", frame.offset) : frame.function;
  if (!frame.line.empty()) text += " at " + frame.line;
  if (!frame.library.empty()) text += fmt::format(" in {} ({:#x})", frame.library, frame.offset);
  return text;
}

std::string times(std::uint64_t count) {
  return count == 1 ? "once" : fmt::format("{} times", count);
}

std::string place_text(const ForkSite& site) {
  return site.stack.empty() ? "a place without a stack" : frame_text(site.stack[site.caller]);
}

std::string stack_text(const ForkSite& site) {
  std::string text;
  for (std::size_t i = site.caller + 1;
       i < std::min(site.stack.size(), site.caller + 1 + kMaxFrames); ++i)
    text += fmt::format("  {:<9} {}\n", text.empty() ? "from" : "", frame_text(site.stack[i]));
  return text;
}

std::string site_text(const ForkSite& site) {
  std::string text = place_text(site) + "\n";
  text += fmt::format("  calls     {} {}, {} in all", site.call, times(site.calls),
                      in_words(site.bytes));
  if (site.failed > 0) text += fmt::format(", {} of them failed", site.failed);
  text += fmt::format("; {} not released at the end\n", site.live);
  if (!site.worst) {
    text += "  what      children get all of it: fork() copies what is pinned\n";
    return text + stack_text(site);
  }
  const ForkRegion& region = *site.worst;
  text += fmt::format("  what      {} ({:#x}-{:#x}, {}; the call was for {:#x})\n",
                      fork_risk_name(region.risk), region.begin, region.end, region.mechanism,
                      site.first_address);
  text += fmt::format("  owner     {}: {}\n", region.kind, region.owner);
  if (region.live_neighbours)
    text += fmt::format("  beside    {} other live block{}\n", *region.live_neighbours,
                        *region.live_neighbours == 1 ? "" : "s");
  text += fmt::format("  why       {}\n", region.why);
  if (!region.remedy.empty()) text += fmt::format("  remedy    {}\n", region.remedy);
  return text + stack_text(site);
}

std::string fork_text(const ForkSite& site) {
  return fmt::format("fork() {} by {}\n  what      {}\n", times(site.calls), place_text(site),
                     site.forecast.empty() ? "not looked at" : site.forecast) +
         stack_text(site);
}

Json site_json(const ForkSite& site) {
  Json stack = Json::array();
  for (const ForkFrame& frame : site.stack)
    stack.push_back({{"library", frame.library},
                     {"offset", fmt::format("{:#x}", frame.offset)},
                     {"function", frame.function},
                     {"line", frame.line}});
  Json json{{"call", site.call},
            {"caller", site.caller},
            {"stack", stack},
            {"calls", site.calls},
            {"failed", site.failed},
            {"bytes", site.bytes},
            {"live_at_end", site.live},
            {"risk", fork_risk_name(site.risk)},
            {"forecast", site.forecast},
            {"region", nullptr}};
  if (site.worst)
    json["region"] = {{"begin", fmt::format("{:#x}", site.worst->begin)},
                      {"end", fmt::format("{:#x}", site.worst->end)},
                      {"mechanism", site.worst->mechanism},
                      {"kind", site.worst->kind},
                      {"owner", site.worst->owner},
                      {"why", site.worst->why}};
  return json;
}

}  // namespace

std::string fork_trace_text(const ForkTrace& trace) {
  std::string text =
      fmt::format("{}: {} after {:.1f} s; {} process{} heard of\n", trace.command, trace.outcome,
                  trace.seconds, trace.processes, trace.processes == 1 ? "" : "es");
  std::size_t risks = 0;
  for (std::size_t i = 0; i < trace.sites.size(); ++i) {
    if (trace.sites[i].risk != ForkRisk::kBenign) ++risks;
    if (i < kMaxShown) text += "\n" + site_text(trace.sites[i]);
  }
  if (trace.sites.size() > kMaxShown)
    text += fmt::format("\nand {} places more (--json has all)\n", trace.sites.size() - kMaxShown);
  for (std::size_t i = 0; i < std::min(trace.forks.size(), kMaxShown); ++i)
    text += "\n" + fork_text(trace.forks[i]);
  text += "\n";
  for (const std::string& note : trace.notes) text += fmt::format("note: {}\n", note);
  return text + fmt::format("{} place{} that register{} memory, {} of them a risk\n",
                            trace.sites.size(), trace.sites.size() == 1 ? "" : "s",
                            trace.sites.size() == 1 ? "s" : "", risks);
}

std::string fork_trace_json(const ForkTrace& trace) {
  Json sites = Json::array();
  for (const ForkSite& site : trace.sites) sites.push_back(site_json(site));
  Json forks = Json::array();
  for (const ForkSite& site : trace.forks) forks.push_back(site_json(site));
  const Json json{{"command", trace.command},
                  {"outcome", trace.outcome},
                  {"seconds", trace.seconds},
                  {"at_risk", trace.at_risk()},
                  {"processes", trace.processes},
                  {"sites", sites},
                  {"forks", forks},
                  {"notes", trace.notes}};
  return json_text(json, 2) + "\n";
}

}  // namespace doctor

ForkTraced trace_forks(const std::vector<std::string>& command) {
  const doctor::ForkTrace trace = doctor::trace_command(command);
  return {trace.at_risk(), doctor::fork_trace_text(trace), doctor::fork_trace_json(trace)};
}

}  // namespace segfuse
