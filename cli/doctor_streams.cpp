// segfuse doctor streams: another of our commands under the race checker, in this process.

#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "commands.h"
#include "segfuse/error.h"
#include "segfuse/train.h"

namespace segfuse::cli {
namespace {

/// What is printed goes to stderr meanwhile.
class OutputToErrors {
 public:
  OutputToErrors() : kept_(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)) {
    std::fflush(stdout);
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
  }
  ~OutputToErrors() {
    std::fflush(stdout);
    if (kept_ < 0) return;
    ::dup2(kept_, STDOUT_FILENO);
    ::close(kept_);
  }
  OutputToErrors(const OutputToErrors&) = delete;
  OutputToErrors& operator=(const OutputToErrors&) = delete;

 private:
  int kept_;
};

void check_is_ours(const std::string& program) {
  std::error_code error;
  const std::filesystem::path name(program);
  if (name.filename() == "segfuse" || std::filesystem::equivalent(name, "/proc/self/exe", error))
    return;
  throw UsageError(fmt::format(
      "doctor streams: '{}' is not segfuse, and the checker is a part of segfuse's device: it "
      "watches segfuse's own commands (a program that uses the library sets the option "
      "check-streams in its Context)",
      program));
}

void run_streams(const std::vector<std::string>& command, const std::string& picture,
                 Common& common) {
  check_is_ours(command.at(0));
  ::setenv("SEGFUSE_CHECK_STREAMS", "1", 1);
  const Watch watch;
  int status = 0;
  std::optional<std::string> failure;
  try {
    const OutputToErrors quiet;
    status = common.run_command({command.begin(), command.end()});
  } catch (const InternalError& error) {
    failure = error.what();  // a race ends the run
  }
  const StreamReport report = watch.streams(fmt::format("{}", fmt::join(command, " ")));
  if (failure && report.races.empty()) throw InternalError(*failure);
  if (!picture.empty() && !report.races.empty())
    write_outputs({{picture, report.races[0].picture}}, common.overwrite);
  put("{}", common.json ? stream_report_json(report) : stream_report_text(report));
  common.status = report.races.empty() ? status : 1;
}

}  // namespace

void add_doctor_streams(Command doctor, Common& common) {
  Command command = doctor.add(
      "streams", "Work on streams that does not wait for what it depends on, in a run of segfuse");
  struct Arguments {
    std::vector<std::string> command;
    std::string picture;
  };
  auto arguments = std::make_shared<Arguments>();
  command
      .option("command", arguments->command,
              "The command, behind --; what it prints goes to stderr")
      .required();
  command.option("--picture", arguments->picture,
                 "Write a picture of the first race to this file (SVG)");
  command.footer(
      "\nExample:\n  segfuse doctor streams -- segfuse train examples/ecg.toml --data ludb_lead_ii "
      "--out out/ecg --device cuda");
  command.runs(
      [arguments, &common] { run_streams(arguments->command, arguments->picture, common); });
}

}  // namespace segfuse::cli
