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
      "# Configuration\n"
      "\n"
      "A training's configuration is a TOML file. This page is the reference of its keys, and\n"
      "`segfuse config` prints the same list. You need not write a configuration from the "
      "beginning:\n"
      "`segfuse init FOLDER` writes one for a folder of recordings, with comments.\n"
      "`--set section.key=value` overrides a key of the file, and `segfuse train FILE "
      "--print-config`\n"
      "prints all keys with their values.\n"
      "\n"
      "[data.md](data.md), [features.md](features.md), [training.md](training.md) and\n"
      "[measures.md](measures.md) explain the settings, and [glossary.md](glossary.md) explains "
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
