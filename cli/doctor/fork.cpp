#include <fmt/core.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "commands.h"
#include "segfuse/doctor/fork.h"
#include "segfuse/error.h"
#include "segfuse/train.h"

namespace segfuse::cli {

namespace {

struct ForkArguments {
  std::vector<std::string> target;
  std::string html;
  std::string repair;
  bool all = false;
  bool watch = false;
  bool trace = false;
  double interval = 1;
};

/// Decimal, or hexadecimal after 0x; all of the text.
template <class Number>
std::optional<Number> number_of(std::string_view text) {
  const bool hex = text.starts_with("0x") || text.starts_with("0X");
  if (hex) text.remove_prefix(2);
  Number number{};
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, hex ? 16 : 10);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

int pid_of(const ForkArguments& arguments) {
  if (arguments.target.size() != 1)
    throw UsageError(fmt::format("doctor fork: {} arguments; expected the id of one process",
                                 arguments.target.size()));
  const auto pid = number_of<int>(arguments.target[0]);
  if (!pid)
    throw UsageError(fmt::format("doctor fork: '{}' is not a process id; find one with pgrep NAME",
                                 arguments.target[0]));
  return *pid;
}

void run_report(const ForkArguments& arguments, Common& common) {
  const ForkReport report = examine_fork(pid_of(arguments));
  if (!arguments.html.empty())
    write_outputs({{arguments.html, fork_report_html(report)}}, common.overwrite);
  put("{}", common.json ? fork_report_json(report) : fork_report_text(report, arguments.all));
  common.status = report.at_risk() ? 1 : 0;
}

void run_repair(const ForkArguments& arguments, Common& common) {
  const auto address = number_of<std::uint64_t>(arguments.repair);
  if (!address)
    throw UsageError(fmt::format(
        "--repair {}: expected an address of the report, like 0x7f0012345000", arguments.repair));
  const ForkRepair repair = repair_fork(pid_of(arguments), *address);
  put("{}", common.json ? fork_repair_json(repair) : fork_repair_text(repair));
  // What was requested is done; risks that are left are in the report.
  common.status = 0;
}

void run_watch(const ForkArguments& arguments, Common& common) {
  if (!(arguments.interval >= 0.01 && arguments.interval <= 3600))
    throw UsageError(
        fmt::format("--interval {}: expected 0.01 to 3600 seconds", arguments.interval));
  const bool json = common.json;
  ForkWatch watch;
  watch.interval = std::chrono::milliseconds(static_cast<long>(arguments.interval * 1e3));
  const auto say = [](const std::string& text) {
    put("{}", text);
    std::fflush(stdout);  // a reader of a pipe wants each change at once
  };
  watch.first = [&](const ForkReport& report) {
    say(json ? fork_report_json(report) : fork_report_text(report) + "\n");
  };
  watch.changed = [&](const ForkChange& change, double seconds) {
    say(json ? fork_change_json(change, seconds) : fork_change_text(change, seconds));
  };
  watch.ended = [&](const std::string& why) {
    if (!json) say(why + "\n");
  };
  common.status = watch_fork(pid_of(arguments), watch) ? 1 : 0;
}

void run_trace(const ForkArguments& arguments, Common& common) {
  const ForkTraced trace = trace_forks(arguments.target);
  put("{}", common.json ? trace.json : trace.text);
  common.status = trace.at_risk ? 1 : 0;
}

}  // namespace

void add_doctor_fork(Command doctor, Common& common) {
  Command command = doctor.add(
      "fork",
      "Show what fork() in a running process would do: which memory its children would lack");
  auto arguments = std::make_shared<ForkArguments>();
  command
      .option("pid", arguments->target,
              "One process id; the process is read and not stopped. With --trace, the words of a "
              "command instead")
      .required();
  const Option html = command.option("--html", arguments->html,
                                     "Write a page with a map of the memory to this file");
  command.flag("--all", arguments->all, "Also list benign regions one by one");
  Option watch =
      command.flag("--watch", arguments->watch, "Read the process repeatedly and print changes");
  command.option("--interval", arguments->interval, "Seconds between two readings; default: 1")
      .needs(watch);
  const Option repair =
      command
          .option(
              "--repair", arguments->repair,
              "Give the memory at this address back to children. One thread stops for a moment. "
              "Refused unless the kernel copies pinned memory in fork()")
          .excludes(watch)
          .excludes(html);
  watch.excludes(html);
  command
      .flag("--trace", arguments->trace,
            "Run the command after -- and report which calls register memory; the command's output "
            "goes to stderr")
      .excludes(watch)
      .excludes(html)
      .excludes(repair);
  command.footer(
      "\nExamples:\n  segfuse doctor fork 4242 --html fork.html\n"
      "  segfuse doctor fork 4242 --watch\n"
      "  segfuse doctor fork --trace -- python train.py");
  command.runs([arguments, &common] {
    if (arguments->trace) return run_trace(*arguments, common);
    if (!arguments->repair.empty()) return run_repair(*arguments, common);
    arguments->watch ? run_watch(*arguments, common) : run_report(*arguments, common);
  });
}

}  // namespace segfuse::cli
