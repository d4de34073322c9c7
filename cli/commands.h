#pragma once
// The subcommands. Each adds itself to the application and runs when it was chosen.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace segfuse::cli {

/// What every command has.
struct Common {
  bool json = false;  ///< machine-readable output on stdout
  int status = 0;     ///< exit code of a command that ran and found what its user asked about
};

void add_train(CLI::App& app, Common& common);
void add_eval(CLI::App& app, Common& common);
void add_decode(CLI::App& app, Common& common);
void add_compile(CLI::App& app, Common& common);
void add_synth(CLI::App& app, Common& common);
void add_info(CLI::App& app, Common& common);
void add_doctor(CLI::App& app, Common& common);
void add_numerics(CLI::App& doctor, Common& common);
void add_doctor_fork(CLI::App& doctor, Common& common);

/// NAME=NUMBER, again and again. UsageError for what is none.
std::map<std::string, std::int64_t> parse_sizes(const std::vector<std::string>& texts);

/// DataError when it cannot be written.
void write_text(const std::filesystem::path& path, const std::string& text);

}  // namespace segfuse::cli
