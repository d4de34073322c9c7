#pragma once
// Completion of the command line in shells, from the tree of commands.

#include <string>
#include <vector>

namespace segfuse::cli {

struct CommandTree {
  struct Option {
    std::vector<std::string> names;  ///< with dashes
    std::string help;
    bool takes_value = false;
  };
  std::string name;
  std::string help;
  std::vector<Option> options;  ///< of its own
  std::vector<CommandTree> commands;
};

/// "bash", "zsh" or "fish".
std::string completion_script(const CommandTree& tree, const std::string& shell);

}  // namespace segfuse::cli
