#include "completion.h"

#include <fmt/core.h>

#include <memory>

#include "commands.h"

namespace segfuse::cli {
namespace {

std::string in_quotes(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

/// The first line, or the first sentence of it.
std::string short_help(const std::string& help) {
  const std::string line = help.substr(0, help.find('\n'));
  return line.substr(0, line.find("; "));
}

void add_names(const CommandTree& command, std::string& words) {
  for (const CommandTree::Option& option : command.options)
    for (const std::string& name : option.names) words += " " + name;
}

/// "doctor fork" for each command, and what may follow it.
void add_cases(const CommandTree& root, const CommandTree& command, const std::string& path,
               std::string& cases) {
  std::string words;
  for (const CommandTree& below : command.commands) words += " " + below.name;
  add_names(command, words);
  if (!path.empty()) add_names(root, words);
  cases += fmt::format("    {}) follow={} ;;\n", in_quotes(path),
                       in_quotes(words.empty() ? "" : words.substr(1)));
  for (const CommandTree& below : command.commands)
    add_cases(root, below, path.empty() ? below.name : path + " " + below.name, cases);
}

void add_paths(const CommandTree& command, const std::string& path, std::string& patterns) {
  for (const CommandTree& below : command.commands) {
    const std::string own = path.empty() ? below.name : path + " " + below.name;
    patterns += (patterns.empty() ? "" : "|") + in_quotes(own);
    add_paths(below, own, patterns);
  }
}

/// Finds the command that the words before the cursor name, then the words that may follow.
constexpr const char* kBash =
    R"(# segfuse completion bash > ~/.local/share/bash-completion/completions/segfuse
_segfuse() {{
  local path='' next word follow='' i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${{COMP_WORDS[i]}}
    next=${{path:+$path }}$word
    case "$next" in
      {patterns}) path=$next ;;
    esac
  done
  case "$path" in
{cases}  esac
  COMPREPLY=($(compgen -W "$follow" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -o bashdefault -F _segfuse segfuse
)";

constexpr const char* kZsh = R"(#compdef segfuse
# segfuse completion zsh > a file _segfuse in a folder of $fpath
_segfuse() {{
  local path_so_far='' next word i
  for ((i = 2; i < CURRENT; ++i)); do
    word=${{words[i]}}
    next=${{path_so_far:+$path_so_far }}$word
    case "$next" in
      {patterns}) path_so_far=$next ;;
    esac
  done
  local follow=''
  case "$path_so_far" in
{cases}  esac
  compadd -- ${{=follow}}
  _files
}}
compdef _segfuse segfuse
)";

std::string filled(std::string text, const std::string& patterns, const std::string& cases) {
  return fmt::format(fmt::runtime(text), fmt::arg("patterns", patterns), fmt::arg("cases", cases));
}

void add_fish_options(const CommandTree& command, const std::string& condition,
                      std::string& script) {
  for (const CommandTree::Option& option : command.options) {
    std::string line = "complete -c segfuse" + condition;
    for (const std::string& name : option.names)
      line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    if (option.takes_value) line += " -r";
    script += line + " -d " + in_quotes(short_help(option.help)) + "\n";
  }
}

/// `condition` holds when the words so far name the command.
void add_fish(const CommandTree& command, const std::string& condition, std::string& script) {
  std::string names;
  for (const CommandTree& below : command.commands) names += " " + below.name;
  const std::string none_below = condition.empty()
                                     ? "not __fish_seen_subcommand_from" + names
                                     : condition + "; and not __fish_seen_subcommand_from" + names;
  for (const CommandTree& below : command.commands) {
    script += fmt::format("complete -c segfuse -n {} -a {} -d {}\n", in_quotes(none_below),
                          below.name, in_quotes(short_help(below.help)));
    const std::string seen = (condition.empty() ? "" : condition + "; and ") +
                             "__fish_seen_subcommand_from " + below.name;
    add_fish_options(below, " -n " + in_quotes(seen), script);
    add_fish(below, seen, script);
  }
}

}  // namespace

std::string completion_script(const CommandTree& tree, const std::string& shell) {
  if (shell == "fish") {
    std::string script = "# segfuse completion fish > ~/.config/fish/completions/segfuse.fish\n";
    add_fish_options(tree, "", script);
    add_fish(tree, "", script);
    return script;
  }
  std::string patterns, cases;
  add_paths(tree, "", patterns);
  add_cases(tree, tree, "", cases);
  return filled(shell == "zsh" ? kZsh : kBash, patterns, cases);
}

void add_completion(Command app, const Common& common) {
  auto shell = std::make_shared<std::string>();
  Command command = app.add("completion", "Print a shell script that completes commands");
  command.option("shell", *shell, "Your shell: bash, zsh or fish")
      .required()
      .is_one_of({"bash", "zsh", "fish"});
  command.footer("\nExample:\n  source <(segfuse completion bash)");
  command.runs([shell, &common] { put("{}", completion_script(common.tree(), *shell)); });
}

}  // namespace segfuse::cli
