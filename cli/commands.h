#pragma once
// The subcommands. Each adds itself to the application and runs when it was chosen.

#include <fmt/core.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "completion.h"
#include "segfuse/capabilities.h"
#include "segfuse/doctor/streams.h"
#include "segfuse/error.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace segfuse::cli {

/// A declared option or flag, to say more of it. A handle of the parser's, which outlives it.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option required();
  Option shows_default();        ///< in the help text: the value that it has now
  Option takes_one_at_a_time();  ///< of a list: `--set a=1 --set b=2`, and not `--set a=1 b=2`
  Option is_one_of(std::vector<std::string> words);
  Option needs(Option other);
  Option excludes(Option other);

 private:
  CLI::Option* option_;
};

/// A command that declares itself; command_line.cpp parses for all of them, so that the parser's
/// header, the slowest to compile of all, is read once.
class Command {
 public:
  explicit Command(CLI::App& app) : app_(&app) {}
  Command add(const std::string& name, const std::string& description);
  /// `name` has dashes ("--out"), or none: then it goes by place. `value` is a text, path or
  /// number, or a list of texts or paths, and lives as long as the parser.
  template <class T>
  Option option(const std::string& name, T& value, const std::string& help);
  /// `store` is called with the text.
  Option option_to(const std::string& name, std::function<void(const std::string&)> store,
                   const std::string& help);
  Option flag(const std::string& name, bool& value, const std::string& help);
  void footer(const std::string& text);
  /// One of its own commands has to be named.
  void require_command();
  /// What it does when it was chosen.
  void runs(std::function<void()> body);

 private:
  CLI::App* app_;
};

/// What every command has.
struct Common {
  bool json = false;       ///< machine-readable output on stdout
  bool overwrite = false;  ///< replace files that segfuse did not write
  int status = 0;          ///< exit code of a command that ran and found what its user asked about
  /// Another command of ours, its program's name first; its exit code.
  std::function<int(std::vector<std::string>)> run_command = nullptr;
  /// All commands and options.
  std::function<CommandTree()> tree = nullptr;
  /// With --report-kernels.
  std::unique_ptr<Watch> kernels = nullptr;
};

/// With --report-kernels, what to print below a command's text.
std::string kernels_text(const Common& common);
/// With --report-kernels, adds "kernels" to a command's JSON.
void add_kernels(nlohmann::ordered_json& json, const Common& common);

void add_train(Command app, Common& common);
void add_eval(Command app, Common& common);
void add_decode(Command app, Common& common);
void add_align(Command app, Common& common);
void add_stream(Command app);
void add_compare(Command app, Common& common);
void add_study(Command app, Common& common);
void add_learncurve(Command app, Common& common);
void add_compile(Command app, Common& common);
void add_run(Command app, Common& common);
void add_synth(Command app, Common& common);
void add_info(Command app, Common& common);
void add_models(Command app, Common& common);
void add_init(Command app, Common& common);
void add_config(Command app, Common& common);
void add_completion(Command app, const Common& common);
void add_doctor(Command app, Common& common);
void add_numerics(Command doctor, Common& common);
void add_doctor_fork(Command doctor, Common& common);
void add_doctor_streams(Command doctor, Common& common);
void add_doctor_determinism(Command doctor, Common& common);
void add_doctor_ranks(Command doctor, Common& common);

/// To standard output. Everything that commands say goes here: names out of files and processes
/// must not steer a terminal.
template <class... Args>
void put(fmt::format_string<Args...> format, Args&&... args) {
  fmt::print("{}", terminal_text(fmt::format(format, std::forward<Args>(args)...)));
}

/// The measures of a metrics.json as a table, with their intervals.
void put_metrics(const std::string& text);
/// The points of a study.json as a table, and its runs where there is one point.
void put_study(const std::string& text);

/// This process's command line as a shell would read it.
std::string command_line();

/// The option --channel of every command that decodes.
inline constexpr const char* kChannel =
    "What to read from files with several channels: the number of one channel (from 0 on), mean, "
    "or stack (the features of all channels, side by side); default: as in training";

/// The model of every command that takes one.
inline constexpr const char* kModel =
    "The model: a model.safetensors, the directory of a training run, or a name from `segfuse "
    "models`";

/// The flag of every command that reads manifests.
void add_allow_commands(Command command, bool& allow);

/// Parses the arguments and runs the command that they name; the exit code. Prints what is wrong
/// with the arguments; throws what the command throws.
int run(int argc, char** argv, Common& common);

/// NAME=NUMBER, again and again. UsageError for what is none.
std::map<std::string, std::int64_t> parse_sizes(const std::vector<std::string>& texts);

/// The number that an option was given; `what` says what it counts, in the UsageError.
double number_of(const char* option, const std::string& text, const char* what);

/// To standard output. Text that is not UTF-8 (a path may hold any byte) is replaced.
void print_json(const nlohmann::ordered_json& json, int indent = 2);

/// Says why a command failed: on standard error, with --json on standard output too. Returns the
/// exit code.
int fail(const Common& common, ExitCode code, const std::string& message);

/// DataError when what was printed did not arrive (a full disk behind a redirection).
void flush_output();

}  // namespace segfuse::cli
