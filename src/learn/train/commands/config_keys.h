#pragma once
// The table of configuration keys: what parse_train_config() reads, and what
// docs/configuration.md is made of.

#include <functional>
#include <string>
#include <vector>

#include "learn/train/commands/config.h"

namespace segfuse::learn {

struct ConfigKey {
  std::string section;  ///< empty: the root
  std::string key;
  std::string type;  ///< with the values that are allowed, as "integer, 1 to 1000"
  std::string doc;   ///< one or more sentences
  /// Reads the key of its section, or keeps what the configuration has.
  std::function<void(const TomlReader& section, TrainConfig& config)> read;
};

/// All of them in the order in which they are read; sections stay together.
const std::vector<ConfigKey>& config_keys();

}  // namespace segfuse::learn
