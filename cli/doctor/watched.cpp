// Runs a program under segfuse's Python package: see the contract in watched.h.

#include "doctor/watched.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "segfuse/error.h"
#include "segfuse/spawn.h"

namespace segfuse::cli {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr int kSignalBase = 128;  // a shell's exit code of a program that a signal ended

std::atomic<int> pending_signal{0};
void remember_signal(int number) { pending_signal = number; }

/// SIGINT and SIGTERM go to the program while it runs.
class PassedSignals {
 public:
  PassedSignals()
      : interrupt_(std::signal(SIGINT, remember_signal)),
        end_(std::signal(SIGTERM, remember_signal)) {}
  ~PassedSignals() {
    std::signal(SIGINT, interrupt_);
    std::signal(SIGTERM, end_);
  }
  PassedSignals(const PassedSignals&) = delete;
  PassedSignals& operator=(const PassedSignals&) = delete;

 private:
  using Handler = void (*)(int);
  Handler interrupt_;
  Handler end_;
};

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = fs::temp_directory_path() / "segfuse-doctor-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr)
      throw DeviceError(
          fmt::format("cannot make a folder in {}; set TMPDIR to one that is writable",
                      fs::temp_directory_path().string()));
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// The folder of the package that makes a Python process watch itself.
fs::path hook_folder(const std::string& tool) {
  std::error_code error;
  const fs::path command = fs::read_symlink("/proc/self/exe", error);
  const fs::path folder = command.parent_path().parent_path() / "_hook";
  if (fs::exists(folder / "sitecustomize.py", error)) return folder;
  throw DeviceError(fmt::format(
      "doctor {}: {} is not the command of segfuse's Python package, which is needed to watch "
      "PyTorch programs; install the package beside PyTorch and run its segfuse command",
      tool, command.string()));
}

int run_once(const WatchedRun& run, const std::map<std::string, std::string>& variables) {
  const fs::path hook = hook_folder(run.tool);
  const char* const paths = std::getenv("PYTHONPATH");
  spawn::Request request{.arguments = run.command};
  request.environment.change["PYTHONPATH"] = paths == nullptr || *paths == '\0'
                                                 ? hook.string()
                                                 : fmt::format("{}:{}", hook.string(), paths);
  request.environment.change["SEGFUSE_WATCH"] = run.tool;
  request.environment.change["SEGFUSE_WATCH_OPTIONS"] = run.options;
  for (const auto& [name, value] : variables) request.environment.change[name] = value;
  request.in = spawn::Inherit{};
  request.out = spawn::Descriptor{STDERR_FILENO};
  request.err = spawn::Inherit{};
  request.signal = [] { return pending_signal.exchange(0); };
  const PassedSignals passed;
  const spawn::Result result = spawn::run(request);
  if (result.failed != spawn::Stage::kNone)
    throw UsageError(
        fmt::format("doctor {}: {} {}", run.tool, run.command.at(0), result.outcome()));
  return result.exit_code ? *result.exit_code : kSignalBase + result.signal.value_or(0);
}

/// What the processes wrote, by the names of their files.
std::vector<Json> read_reports(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::ranges::sort(files);
  std::vector<Json> reports;
  for (const fs::path& file : files) {
    std::ifstream in(file);
    Json report = Json::parse(in, nullptr, false);
    if (!report.is_object())
      throw InternalError(fmt::format(
          "the report of a watched process cannot be read as JSON: '{}'", file.string()));
    reports.push_back(std::move(report));
  }
  return reports;
}

/// Whether a process was watched, but ran no operation.
bool any_idle(const fs::path& folder) {
  return std::ranges::any_of(fs::directory_iterator(folder), [](const fs::directory_entry& entry) {
    return entry.path().extension() == ".idle";
  });
}

std::map<std::string, std::string> varied(const std::string& vary) {
  if (vary == "threads") return {{"OMP_NUM_THREADS", "1"}, {"MKL_NUM_THREADS", "1"}};
  if (vary == "launch") return {{"CUDA_LAUNCH_BLOCKING", "1"}};
  if (vary == "hash") return {{"PYTHONHASHSEED", "4711"}};
  return {};
}

/// The exit code of the program; its processes' reports lie in `folder`.
int run_all(const WatchedRun& run, const fs::path& folder) {
  if (run.tool != "determinism") return run_once(run, {{"SEGFUSE_WATCH_OUT", folder.string()}});
  const fs::path first = folder / "first";
  fs::create_directory(first);
  const std::map<std::string, std::string> fixed =
      run.vary == "hash" ? std::map<std::string, std::string>{{"PYTHONHASHSEED", "0"}}
                         : std::map<std::string, std::string>{};
  auto variables = fixed;
  variables["SEGFUSE_WATCH_OUT"] = first.string();
  if (const int status = run_once(run, variables); status != 0) return status;
  variables = varied(run.vary);
  variables["SEGFUSE_WATCH_OUT"] = folder.string();
  variables["SEGFUSE_WATCH_FIRST"] = first.string();
  return run_once(run, variables);
}

std::string first_picture(const std::vector<Json>& reports) {
  for (const Json& report : reports) {
    const Json races = report.value("report", Json::object()).value("races", Json::array());
    if (!races.empty()) return races[0].value("picture", "");
  }
  return "";
}

}  // namespace

std::string run_watched(const WatchedRun& run, Common& common) {
  const TemporaryFolder folder;
  const int status = run_all(run, folder.path());
  const std::vector<Json> reports = read_reports(folder.path());
  const bool found =
      std::ranges::any_of(reports, [](const Json& report) { return report.value("found", false); });
  const std::string command = fmt::format("{}", fmt::join(run.command, " "));
  const bool idle = reports.empty() && any_idle(folder.path());
  if (common.json) {
    Json processes = Json::array();
    for (const Json& report : reports) processes.push_back(report.value("report", Json::object()));
    print_json({{"command", command}, {"exit_code", status}, {"processes", processes}});
  } else {
    for (const Json& report : reports) {
      const std::string process = report.value("process", "");
      put("{}{}: {}", command, process.empty() ? "" : " (" + process + ")",
          report.value("text", ""));
    }
    if (idle) put("{}: no operation of PyTorch ran, so nothing was checked\n", command);
    if (status != 0) put("note: the program ended with exit code {}\n", status);
  }
  common.status = found ? 1 : status;
  if (!reports.empty() || idle || status != 0) return first_picture(reports);
  throw DeviceError(
      fmt::format("doctor {}: no process of '{}' ran an operation of PyTorch that could be "
                  "watched; run Python with PyTorch 2.6 or later, and without -I, -E and -S",
                  run.tool, command));
}

}  // namespace segfuse::cli
