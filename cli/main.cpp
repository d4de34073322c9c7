// The command line tool. No logic of its own: options in, library call, result out.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "commands.h"
#include "segfuse/device.h"
#include "segfuse/error.h"
#include "segfuse/options.h"

namespace {

using segfuse::ExitCode;

constexpr const char* kExamples = R"(
Examples:
  segfuse train examples/ecg.toml --data ludb_lead_ii --out out/ecg
  segfuse eval out/ecg --data ludb_lead_ii --split test
  segfuse decode out/ecg recording.wav --out out/labels --format csv
  segfuse compile examples/layer_norm.sf --emit=ir
  segfuse run program.sf --input x=x.npy --out results
  segfuse doctor memory memory.json --html memory.html
  segfuse doctor fork 4711
  segfuse doctor kernel kernels.cu --arch sm_90
  segfuse doctor numerics examples/layer_norm.sf --size B=4
  segfuse doctor streams -- segfuse train examples/ecg.toml --out out/ecg --device cuda

Exit codes: 0 done, 2 usage, 3 data, 4 device or communication, 70 our fault, 130 interrupted;
doctor: 1 a risk, spill, wrong number or race was found.)";

/// One flag for each row of the option table, given before or after the command's name.
void add_options(CLI::App& app, segfuse::Options& values) {
  for (const segfuse::OptionInfo& info : segfuse::option_table()) {
    const std::string name = info.name;
    auto store = [name, &values](const std::string& text) {
      values.set_text(name, text, "--" + name);
    };
    const std::string doc = info.doc + " [" + info.environment + "]";
    if (std::holds_alternative<bool>(info.fallback)) {
      app.add_flag_function(
          "--" + name + ",--no-" + name + "{false}",
          [store](std::int64_t count) { store(count > 0 ? "true" : "false"); }, doc);
    } else if (!info.bare.empty()) {
      const std::string text = fmt::format("{} [={}]", doc, values.text(name));
      app.add_flag(fmt::format("--{0}{{{1}}},--no-{0}{{{2}}}", name, info.bare, info.choices[0]),
                   text)
          ->each(store);
    } else {
      app.add_option_function<std::string>("--" + name, store, doc)->default_str(values.text(name));
    }
  }
}

constexpr const char* kOutOfMemory = "out of memory; use smaller batches or fewer threads";

/// Where an exception cannot come up (in a library without exceptions), memory that runs out is
/// still told apart from a fault of ours.
[[noreturn]] void on_terminate() {
  ExitCode code = ExitCode::kInternal;
  const char* what = "unexpected: the process had to end";
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    code = ExitCode::kDevice;
    what = kOutOfMemory;
  } catch (...) {
  }
  std::fprintf(stderr, "segfuse: %s\n", what);
  std::_Exit(static_cast<int>(code));
}

int fail(const segfuse::cli::Common& common, ExitCode code, const std::string& message) {
  try {
    if (common.json && std::ferror(stdout) == 0)
      segfuse::cli::print_json({{"error", message}, {"exit_code", static_cast<int>(code)}}, -1);
    std::fflush(stdout);
  } catch (const std::exception&) {
    // Nobody reads standard output; the sentence goes to standard error.
  }
  std::fprintf(stderr, "segfuse: %s\n", segfuse::terminal_text(message).c_str());
  return static_cast<int>(code);
}

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> rest = app.remaining();
  if (!app.get_subcommands().empty() || rest.empty())
    return std::string(error.what()) + "; see segfuse --help";
  std::string names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names += (names.empty() ? "" : ", ") + command->get_name();
  return fmt::format("there is no command '{}'; the commands are {}", rest.front(), names);
}

int run(int argc, char** argv, segfuse::cli::Common& common);

int run_command(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  segfuse::cli::Common common;
  return run(static_cast<int>(argv.size()), argv.data(), common);
}

int run(int argc, char** argv, segfuse::cli::Common& common) {
  common.run_command = run_command;
  segfuse::Options options = segfuse::Options::from_environment();
  CLI::App app("segfuse: train, run and explain models that cut sequences into labelled segments",
               "segfuse");
  app.set_version_flag("--version", "segfuse " + segfuse::version());
  app.footer(kExamples);
  app.require_subcommand(1);
  app.fallthrough();
  app.add_flag("--json", common.json, "Print the result as JSON");
  app.add_flag("--overwrite", common.overwrite,
               "Replace files that are in the way and that segfuse did not write");
  bool report_kernels = false;
  app.add_flag("--report-kernels", report_kernels,
               "Print what each kernel needs that is made on the way, as doctor kernel does");
  add_options(app, options);
  app.parse_complete_callback([&] {
    segfuse::set_default_options(options);
    if (report_kernels) common.kernels = std::make_unique<segfuse::Watch>();
  });
  segfuse::cli::add_train(app, common);
  segfuse::cli::add_eval(app, common);
  segfuse::cli::add_decode(app, common);
  segfuse::cli::add_compile(app, common);
  segfuse::cli::add_run(app, common);
  segfuse::cli::add_synth(app, common);
  segfuse::cli::add_info(app, common);
  segfuse::cli::add_doctor(app, common);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return fail(common, ExitCode::kUsage, usage_message(app, error));
  }
  if (!common.json) segfuse::cli::put("{}", segfuse::cli::kernels_text(common));
  return common.status;
}

}  // namespace

int main(int argc, char** argv) {
  segfuse::cli::Common common;
  // Writing then fails with EFBIG, and the sentence for that is printed.
  std::signal(SIGXFSZ, SIG_IGN);
  std::set_terminate(on_terminate);
  try {
    const int status = run(argc, argv, common);
    segfuse::cli::flush_output();
    return status;
  } catch (const segfuse::Error& error) {
    return fail(common, error.exit_code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(common, ExitCode::kDevice, kOutOfMemory);
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(common, ExitCode::kData,
                fmt::format("{}: {}", error.path1().string(), error.code().message()));
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0)
      return fail(common, ExitCode::kData,
                  fmt::format("cannot write to standard output: {}", error.code().message()));
    return fail(common, ExitCode::kDevice,
                fmt::format("the system refuses: {}", error.code().message()));
  } catch (const std::exception& error) {
    return fail(common, ExitCode::kInternal, std::string("unexpected: ") + error.what());
  }
}
