#pragma once
// The subcommands. Each adds itself to the application and runs when it was chosen.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "segfuse/device.h"
#include "segfuse/doctor.h"

namespace segfuse::cli {

/// What every command has.
struct Common {
  bool json = false;       ///< machine-readable output on stdout
  bool overwrite = false;  ///< replace files that segfuse did not write
  int status = 0;          ///< exit code of a command that ran and found what its user asked about
  /// Another command of ours, its program's name first; its exit code.
  std::function<int(std::vector<std::string>)> run_command = nullptr;
  /// With --report-kernels.
  std::unique_ptr<Watch> kernels = nullptr;
};

/// With --report-kernels, what to print below a command's text.
std::string kernels_text(const Common& common);
/// With --report-kernels, adds "kernels" to a command's JSON.
void add_kernels(nlohmann::ordered_json& json, const Common& common);

void add_train(CLI::App& app, Common& common);
void add_eval(CLI::App& app, Common& common);
void add_decode(CLI::App& app, Common& common);
void add_compile(CLI::App& app, Common& common);
void add_run(CLI::App& app, Common& common);
void add_synth(CLI::App& app, Common& common);
void add_info(CLI::App& app, Common& common);
void add_doctor(CLI::App& app, Common& common);
void add_numerics(CLI::App& doctor, Common& common);
void add_doctor_fork(CLI::App& doctor, Common& common);
void add_doctor_streams(CLI::App& doctor, Common& common);

/// To standard output. Everything that commands say goes here: names out of files and processes
/// must not steer a terminal.
template <class... Args>
void put(fmt::format_string<Args...> format, Args&&... args) {
  fmt::print("{}", terminal_text(fmt::format(format, std::forward<Args>(args)...)));
}

/// The flag of every command that reads manifests.
void add_allow_commands(CLI::App* command, bool& allow);

/// NAME=NUMBER, again and again. UsageError for what is none.
std::map<std::string, std::int64_t> parse_sizes(const std::vector<std::string>& texts);

/// To standard output. Text that is not UTF-8 (a path may hold any byte) is replaced.
void print_json(const nlohmann::ordered_json& json, int indent = 2);

/// DataError when what was printed did not arrive (a full disk behind a redirection).
void flush_output();

}  // namespace segfuse::cli
