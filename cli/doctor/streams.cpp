// segfuse doctor streams: another of our commands under the race checker, in this process; a
// program that uses PyTorch in its own.

#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "doctor/watched.h"
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

bool is_ours(const std::string& program) {
  std::error_code error;
  const std::filesystem::path name(program);
  return name.filename() == "segfuse" || std::filesystem::equivalent(name, "/proc/self/exe", error);
}

void write_picture(const std::string& file, const std::string& picture, const Common& common) {
  if (!file.empty() && !picture.empty()) write_outputs({{file, picture}}, common.overwrite);
}

void run_streams(const std::vector<std::string>& command, const std::string& picture,
                 Common& common) {
  if (!is_ours(command.at(0)))
    return write_picture(picture, run_watched({"streams", command}, common), common);
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
  if (!report.races.empty()) write_picture(picture, report.races[0].picture, common);
  put("{}", common.json ? stream_report_json(report) : stream_report_text(report));
  common.status = report.races.empty() ? status : 1;
}

}  // namespace

void add_doctor_streams(Command doctor, Common& common) {
  Command command = doctor.add("streams",
                               "Find work on streams that does not wait for work it depends on, in "
                               "a run of segfuse or PyTorch");
  struct Arguments {
    std::vector<std::string> command;
    std::string picture;
  };
  auto arguments = std::make_shared<Arguments>();
  command.option("command", arguments->command, "The command, after --; its output goes to stderr")
      .required();
  command.option("--picture", arguments->picture,
                 "Write a picture of the first race to this file (SVG)");
  command.footer(
      "\nExample:\n  segfuse doctor streams -- segfuse train examples/ecg.toml --data ludb_lead_ii "
      "--out out/ecg --device cuda\n  segfuse doctor streams --picture race.svg -- python "
      "train.py");
  command.runs(
      [arguments, &common] { run_streams(arguments->command, arguments->picture, common); });
}

}  // namespace segfuse::cli
