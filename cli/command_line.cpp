// The command line: all options of all commands, and the messages for wrong arguments.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "segfuse/context.h"
#include "segfuse/error.h"
#include "segfuse/version.h"

namespace segfuse::cli {

Option Option::required() {
  option_->required();
  return *this;
}
Option Option::shows_default() {
  option_->capture_default_str();
  return *this;
}
Option Option::takes_one_at_a_time() {
  option_->allow_extra_args(false);
  return *this;
}
Option Option::is_one_of(std::vector<std::string> words) {
  option_->check(CLI::IsMember(std::move(words)));
  return *this;
}
Option Option::needs(Option other) {
  option_->needs(other.option_);
  return *this;
}
Option Option::excludes(Option other) {
  option_->excludes(other.option_);
  return *this;
}

Command Command::add(const std::string& name, const std::string& description) {
  return Command(*app_->add_subcommand(name, description));
}

namespace {

/// Refuses `""`: the parser would read a number from it as 0, commands take an empty text as an
/// option that was left out, and an empty path as the current directory.
CLI::Option* without_empty_values(CLI::Option* option) {
  const char* refusal = option->get_positional()
                            ? "the value is empty; expected one"
                            : "the value is empty; give one, or leave the option out";
  return option->check(
      [refusal](const std::string& text) -> std::string { return text.empty() ? refusal : ""; });
}

}  // namespace

template <class T>
Option Command::option(const std::string& name, T& value, const std::string& help) {
  CLI::Option* option = app_->add_option(name, value, help);
  // The words of another program's command may be empty.
  if (std::is_same_v<T, std::vector<std::string>> && option->get_positional())
    return Option(option);
  return Option(without_empty_values(option));
}
template Option Command::option(const std::string&, std::string&, const std::string&);
template Option Command::option(const std::string&, std::filesystem::path&, const std::string&);
template Option Command::option(const std::string&, int&, const std::string&);
template Option Command::option(const std::string&, std::int64_t&, const std::string&);
template Option Command::option(const std::string&, std::uint64_t&, const std::string&);
template Option Command::option(const std::string&, double&, const std::string&);
template Option Command::option(const std::string&, std::vector<std::string>&, const std::string&);
template Option Command::option(const std::string&, std::vector<std::filesystem::path>&,
                                const std::string&);
Option Command::option_to(const std::string& name, std::function<void(const std::string&)> store,
                          const std::string& help) {
  return Option(
      without_empty_values(app_->add_option_function<std::string>(name, std::move(store), help)));
}
Option Command::flag(const std::string& name, bool& value, const std::string& help) {
  return Option(app_->add_flag(name, value, help));
}
void Command::footer(const std::string& text) { app_->footer(text); }
void Command::require_command() { app_->require_subcommand(1); }
void Command::runs(std::function<void()> body) { app_->callback(std::move(body)); }

namespace {

constexpr const char* kExamples = R"(
Examples:
  segfuse train recordings
  segfuse init recordings --out recordings.toml
  segfuse train examples/ecg.toml --data ludb_lead_ii --out out/ecg
  segfuse eval out/ecg --data ludb_lead_ii --split test
  segfuse decode out/ecg recording.wav --out out/labels --format csv
  arecord -t raw -f S16_LE -r 16000 | segfuse stream out/speech
  segfuse compile examples/layer_norm.sf --emit=ir
  segfuse run program.sf --input x=x.npy --out results
  segfuse doctor memory memory.json --html memory.html
  segfuse doctor fork 4711
  segfuse doctor kernel kernels.cu --arch sm_90
  segfuse doctor numerics examples/layer_norm.sf --size B=4
  segfuse doctor streams -- segfuse train examples/ecg.toml --out out/ecg --device cuda
  segfuse doctor numerics -- python train.py

Exit codes: 0 done, 2 usage, 3 data, 4 device or communication, 70 our fault, 130 interrupted;
doctor: 1 a risk, spill, wrong number, race or lost rank was found.)";

/// One flag for each row of the option table, given before or after the command's name.
void add_options(CLI::App& app, Options& values) {
  for (const OptionInfo& info : option_table()) {
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

/// Help of a command, with the options that all commands share.
class Help : public CLI::Formatter {
 public:
  std::string make_footer(const CLI::App* app) const override {
    const CLI::App* root = app;
    while (root->get_parent() != nullptr) root = root->get_parent();
    if (root == app) return CLI::Formatter::make_footer(app);
    std::vector<const CLI::Option*> shared;
    for (const CLI::Option* option : root->get_options())
      if (option != root->get_help_ptr() && option != root->get_version_ptr())
        shared.push_back(option);
    return make_group("Options of all commands", false, shared) + CLI::Formatter::make_footer(app);
  }
};

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

CommandTree tree_of(const CLI::App& app) {
  CommandTree tree{app.get_name(), app.get_description(), {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) continue;
    CommandTree::Option one{{}, option->get_description(), option->get_type_size() != 0};
    for (const std::string& name : option->get_snames()) one.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) one.names.push_back("--" + name);
    if (!one.names.empty()) tree.options.push_back(std::move(one));
  }
  for (const CLI::App* command : commands_of(app)) tree.commands.push_back(tree_of(*command));
  return tree;
}

/// The command that the arguments have come to.
const CLI::App& last_named(const CLI::App& app) {
  const std::vector<CLI::App*> named = app.get_subcommands();
  return named.empty() ? app : last_named(*named.front());
}

/// "doctor numerics ": the names down to a command.
std::string path_of(const CLI::App& command) {
  const CLI::App* const parent = command.get_parent();
  return parent == nullptr ? std::string() : path_of(*parent) + command.get_name() + " ";
}

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = last_named(app);
  const std::vector<std::string> rest = app.remaining(true);
  std::vector<std::string> names;
  for (const CLI::App* below : commands_of(command)) names.push_back(below->get_name());
  if (names.empty() || rest.empty() || rest.front().starts_with("-"))
    return fmt::format("{}; see segfuse {}--help", error.what(), path_of(command));
  return fmt::format("there is no command '{}{}'; {}", path_of(command), rest.front(),
                     command_suggestion(rest.front(), names));
}

/// The commands, where none was named. As git does: the list is the answer, and still an error.
bool list_commands(const CLI::App& app, bool json) {
  const CLI::App& command = last_named(app);
  const std::vector<const CLI::App*> all = commands_of(command);
  if (all.empty() || !app.remaining(true).empty()) return false;
  if (json) return true;
  put("usage: segfuse {}COMMAND ...\n\n", &command == &app ? "" : command.get_name() + " ");
  for (const CLI::App* below : all)
    put("  {:<12} {}\n", below->get_name(), below->get_description());
  return true;
}

int run_command(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  Common common;
  return run(static_cast<int>(argv.size()), argv.data(), common);
}

}  // namespace

int run(int argc, char** argv, Common& common) {
  common.run_command = run_command;
  Options options = Options::from_environment();
  CLI::App app("segfuse: train, run and explain models that cut sequences into labelled segments",
               "segfuse");
  app.set_version_flag("--version", "segfuse " + version());
  app.formatter(std::make_shared<Help>());
  app.footer(kExamples);
  app.require_subcommand(1);
  app.fallthrough();
  app.add_flag("--json", common.json, "Print the result as JSON");
  app.add_flag("--overwrite", common.overwrite,
               "Replace existing files that segfuse did not write");
  bool report_kernels = false;
  app.add_flag("--report-kernels", report_kernels,
               "Print the resources of each kernel that the command compiles, as `segfuse doctor "
               "kernel` does");
  add_options(app, options);
  app.parse_complete_callback([&] {
    Context::set_process_default(options);
    if (report_kernels) common.kernels = std::make_unique<Watch>();
  });
  const Command commands(app);
  add_train(commands, common);
  add_eval(commands, common);
  add_decode(commands, common);
  add_align(commands, common);
  add_stream(commands);
  add_compare(commands, common);
  add_study(commands, common);
  add_learncurve(commands, common);
  add_compile(commands, common);
  add_run(commands, common);
  add_synth(commands, common);
  add_init(commands, common);
  add_config(commands, common);
  add_models(commands, common);
  add_info(commands, common);
  add_doctor(commands, common);
  add_completion(commands, common);
  common.tree = [&app] { return tree_of(app); };
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr &&
        list_commands(app, common.json))
      return fail(common, ExitCode::kUsage,
                  "no command was given; segfuse --help lists commands, options and examples");
    return fail(common, ExitCode::kUsage, usage_message(app, error));
  }
  if (!common.json) put("{}", kernels_text(common));
  return common.status;
}

}  // namespace segfuse::cli
