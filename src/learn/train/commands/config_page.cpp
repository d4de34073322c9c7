// The reference of the configuration, from the reader's own table.

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

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

namespace {

constexpr std::string_view kIntroduction = R"(# Configuration

The configuration of a training run is a TOML file. It says which recordings to use, how to compute
features from them, and which model to train. A short configuration is:

```toml
title = "Syllables of zebra finches"

[data]
path = "recordings"

[features]
sample_rate = 32000

[model]
width = 64

[training]
epochs = 30
```

This page is the reference of all keys. A key that is not set has its default value, and an unknown
key is an error.

- **To begin a configuration**, let `segfuse init FOLDER` write one for a folder of recordings, with
  comments.
- **To train with it**, run `segfuse train FILE`. `--set section.key=value` overrides a key for one
  run, for example `--set training.epochs=5`.
- **To see the values of all keys**, run `segfuse train FILE --print-config`. `segfuse config`
  prints the list on this page.

In the tables, the default "none" means that the key is not set, and ranges include both ends.
[glossary.md](glossary.md) explains terms such as *tier* and *folding map*.
)";

/// What is written below the headings of the sections.
constexpr std::pair<std::string_view, std::string_view> kSectionTexts[] = {
    {"", "This key is above all sections."},
    {"data",
     "The recordings and labels to read, and how to divide them into training, development and "
     "test\n"
     "sets. [data.md](data.md) explains them."},
    {"features",
     "How to compute the numbers of each frame from a recording. [features.md](features.md) "
     "explains\n"
     "frames and the kinds of features."},
    {"model",
     "The encoder, which computes scores for each frame, and the head, which turns the scores "
     "into\n"
     "segments. [training.md](training.md#how-durations-are-scored) explains the keys for "
     "durations."},
    {"training",
     "How to train the model. [training.md](training.md) explains the choice of the best epoch,\n"
     "fine-tuning, and the precision."},
    {"augmentation",
     "Random changes of the training recordings in each epoch, which are off by default.\n"
     "[features.md](features.md#augmentation) explains them."},
    {"grammar",
     "Rules for which labels may follow each other, and for how long they may last.\n"
     "[training.md](training.md#rules-for-what-is-decoded) explains them."},
    {"evaluation", "How to measure the results. [measures.md](measures.md) defines the measures."},
};

std::string_view section_text(std::string_view section) {
  return std::ranges::find(kSectionTexts, section, [](const auto& text) { return text.first; })
      ->second;
}

}  // namespace

std::string configuration_page() {
  std::string page(kIntroduction);
  std::string section = "none";
  for (const ConfigurationKey& key : configuration_keys()) {
    const std::size_t dot = key.name.find('.');
    const std::string own = dot == std::string::npos ? "" : key.name.substr(0, dot);
    if (own != section)
      page +=
          fmt::format("\n## {}\n\n{}\n\n| key | type | default | meaning |\n|---|---|---|---|\n",
                      own.empty() ? "At the top" : "[" + own + "]", section_text(own));
    section = own;
    page += fmt::format("| `{}` | {} | {} | {} |\n",
                        dot == std::string::npos ? key.name : key.name.substr(dot + 1), key.type,
                        key.fallback.empty() ? "none" : "`" + key.fallback + "`", key.doc);
  }
  return page;
}

}  // namespace segfuse
