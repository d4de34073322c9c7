#include "folder.h"

#include <cctype>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "segfuse/error.h"
#include "segfuse/train.h"

namespace segfuse::cli {
namespace {

FolderOptions folder_options(const FolderChoice& choice) {
  FolderOptions options;
  options.preset = choice.preset;
  options.tier = choice.tier;
  options.group = choice.group;
  if (!choice.frame_rate.empty())
    options.frame_rate = number_of("--frame-rate", choice.frame_rate, "the rows of a second");
  return options;
}

/// A manifest is no configuration.
void refuse_table(const std::filesystem::path& path) {
  std::string ending = path.extension().string();
  for (char& letter : ending)
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  if (ending != ".csv" && ending != ".tsv") return;
  throw UsageError(fmt::format(
      "'{}' is a table, and training takes a folder or a TOML file; call a manifest "
      "manifest{} and pass the folder that it is in, or pass a TOML file with --data {}",
      path.string(), ending, path.string()));
}

}  // namespace

void add_folder_choice(Command command, FolderChoice& choice) {
  std::string names;
  for (const std::string& name : preset_names()) names += (names.empty() ? "" : ", ") + name;
  command.option("--preset", choice.preset,
                 "Preset for a folder: " + names + "; default: the one that fits best");
  command.option("--tier", choice.tier, "Tier to read from label files that have several tiers");
  command.option(
      "--group", choice.group,
      "Keep all recordings of one speaker or animal in the same set: folder (those in one "
      "folder belong together), a column of the manifest (those with the same text there), "
      "or a regular expression such as ^(bird[0-9]+)_ (those whose ids have the same text "
      "in its parentheses)");
  command.option(
      "--frame-rate", choice.frame_rate,
      "Rows per second of recordings that are not audio; default: derived from their labels");
}

void prepare(TrainOptions& options, const FolderChoice& choice) {
  std::error_code failure;
  if (!std::filesystem::is_directory(options.config, failure)) {
    refuse_table(options.config);
    if (!choice.preset.empty())
      throw UsageError(
          "--preset is for a folder of recordings; leave it out with a TOML file, which sets what "
          "a preset sets");
    if (!choice.tier.empty()) options.overrides.push_back("data.tier=" + choice.tier);
    if (!choice.group.empty()) options.overrides.push_back("data.group=" + choice.group);
    if (!choice.frame_rate.empty())
      options.overrides.push_back("features.frame_rate=" + choice.frame_rate);
    return;
  }
  if (!options.data.empty())
    throw UsageError(
        fmt::format("two places for the data: '{}' and --data '{}'; pass one of them, or a TOML "
                    "file with --data",
                    options.config.string(), options.data));
  plan_training(options, folder_options(choice));
}

void choose_out(TrainOptions& options, const std::string& kind) {
  if (!options.out.empty()) return;
  if (options.resume)
    throw UsageError("--resume continues the training of a directory: name it with --out");
  options.out = free_output_folder(options.config, kind);
}

void add_init(Command app, Common& common) {
  struct Options {
    std::filesystem::path folder, out;
    FolderChoice choice;
    bool allow_commands = false;
  };
  auto options = std::make_shared<Options>();
  Command command = app.add("init", "Write the configuration that suits a folder of recordings");
  command.option("folder", options->folder, "Folder of recordings and labels").required();
  command.option("--out", options->out, "The TOML file; default: NAME.toml");
  add_folder_choice(command, options->choice);
  add_allow_commands(command, options->allow_commands);
  command.footer(
      "\nExample:\n  segfuse init recordings --out recordings.toml\n"
      "  segfuse train recordings.toml");
  command.runs([options, &common] {
    std::error_code failure;
    const std::filesystem::path& folder = options->folder;
    if (!std::filesystem::is_directory(folder, failure))
      throw UsageError(
          fmt::format("'{}' is not a folder; expected a folder of recordings", folder.string()));
    if (options->out.empty()) options->out = output_name(folder) + ".toml";
    if (!common.overwrite && std::filesystem::exists(options->out, failure))
      throw UsageError(fmt::format(
          "{}: the file exists already; name another one with --out, or pass --overwrite",
          options->out.string()));
    FolderOptions how = folder_options(options->choice);
    how.folder = folder;
    how.allow_commands = options->allow_commands;
    how.context = Context::process_default();
    const FolderPlan plan = plan_folder(how);
    write_outputs({{options->out, plan.configuration}}, common.overwrite);
    if (common.json) {
      print_json({{"configuration", options->out.string()}, {"card", plan.card}});
      return;
    }
    put("{}\nconfiguration: {}\n", plan.card, options->out.string());
  });
}

void add_config(Command app, Common& common) {
  auto markdown = std::make_shared<bool>(false);
  Command command = app.add("config", "Explain the keys of a configuration");
  command.flag("--markdown", *markdown, "Print the page docs/configuration.md");
  command.footer("\nExample:\n  segfuse config");
  command.runs([markdown, &common] {
    if (*markdown) {
      put("{}", configuration_page());
      return;
    }
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const ConfigurationKey& key : configuration_keys()) {
      rows.push_back({{"key", key.name}, {"type", key.type}, {"doc", key.doc}});
      rows.back()["default"] =
          key.fallback.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(key.fallback);
      if (!common.json)
        put("{} ({}; default {})\n    {}\n", key.name, key.type,
            key.fallback.empty() ? "none" : key.fallback, key.doc);
    }
    if (common.json) print_json(rows);
  });
}

}  // namespace segfuse::cli
