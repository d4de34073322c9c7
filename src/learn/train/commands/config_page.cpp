// The reference of the configuration, from the reader's own table.

#include <fmt/format.h>

#include <algorithm>

#include "learn/train/commands/config_keys.h"
#include "segfuse/train.h"

namespace segfuse {

std::vector<ConfigurationKey> configuration_keys() {
  const learn::TrainConfig defaults = learn::parse_train_config("", "defaults");
  std::vector<ConfigurationKey> keys;
  for (const learn::ConfigKey& key : learn::config_keys()) {
    const TomlReader::Setting wanted{key.section, key.key, ""};
    const auto found = std::ranges::find_if(
        defaults.settings, [&](const TomlReader::Setting& s) { return s.name() == wanted.name(); });
    keys.push_back(
        {wanted.name(), key.type, found == defaults.settings.end() ? "" : found->value, key.doc});
  }
  return keys;
}

std::string configuration_page() {
  std::string page =
      "# Configuration\n\n"
      "This page lists every key of a training's TOML file. `segfuse config` prints the same list, "
      "and\n"
      "`segfuse config --markdown` this page. `segfuse init FOLDER` writes a file for a folder of\n"
      "recordings, `--set section.key=value` overrides the file, and `segfuse train FILE "
      "--print-config`\n"
      "prints the resulting configuration.\n\n"
      "[data.md](data.md), [features.md](features.md), [training.md](training.md) and\n"
      "[measures.md](measures.md) explain the settings, and [glossary.md](glossary.md) the "
      "terms.\n";
  std::string section = "none";
  for (const ConfigurationKey& key : configuration_keys()) {
    const std::size_t dot = key.name.find('.');
    const std::string own = dot == std::string::npos ? "" : key.name.substr(0, dot);
    if (own != section)
      page += fmt::format("\n## {}\n\n| key | type | default | meaning |\n|---|---|---|---|\n",
                          own.empty() ? "At the top" : "[" + own + "]");
    section = own;
    page += fmt::format("| `{}` | {} | {} | {} |\n",
                        dot == std::string::npos ? key.name : key.name.substr(dot + 1), key.type,
                        key.fallback.empty() ? "none" : "`" + key.fallback + "`", key.doc);
  }
  return page;
}

}  // namespace segfuse
