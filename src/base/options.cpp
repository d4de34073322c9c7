#include "segfuse/context.h"

#include <fmt/core.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/text.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

constexpr std::string_view kPrefix = "SEGFUSE_";
constexpr double kMaxThreads = 4096;
constexpr double kMaxCacheMib = 1 << 20;

std::string environment_name(std::string_view option) {
  std::string name(kPrefix);
  for (const char c : option)
    name += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name;
}

std::vector<OptionInfo> make_table() {
  std::vector<OptionInfo> table = {
      {"threads",
       "",
       std::int64_t{0},
       "number of worker threads; 0: all cores of this process",
       {},
       0,
       kMaxThreads},
      {"log",
       "",
       std::string("info"),
       "lowest level of messages on stderr",
       {"debug", "info", "warning", "error", "off"}},
      {"quiet", "", false, "no progress on stderr"},
      {"check-numerics",
       "",
       std::string("step"),
       "find the operation that makes a NaN or an infinity: off, never; step, when the loss or "
       "gradient of a training step is not finite; op, by checking every operation (slow)",
       {"off", "step", "op"},
       0,
       0,
       "op"},
      {"backend", "", std::string("compiled"),
       "how programs run: compiled, as machine code (as loops if there is no compiler); loops, as "
       "built-in loops; or reference, in the interpreter with double precision"},
      {"device", "", std::string("cpu"),
       "where programs run and models are trained: cpu, cuda, or cuda:N for the N-th GPU"},
      {"check-streams", "", false,
       "check all work on streams for missing waits; a race is an error that names both sides. On "
       "the CPU, programs then run on two streams"},
      {"cache-dir", "", std::string(),
       "folder of compiled code, which only you may write to; empty: $XDG_CACHE_HOME/segfuse or "
       "~/.cache/segfuse"},
      {"cache-size",
       "",
       std::int64_t{1024},
       "limit of the compiled code on disk, in MiB; the least recently used code is removed first",
       {},
       1,
       kMaxCacheMib},
  };
  for (OptionInfo& info : table) info.environment = environment_name(info.name);
  return table;
}

std::vector<std::string> option_names() {
  std::vector<std::string> names;
  for (const OptionInfo& info : option_table()) names.push_back(info.name);
  return names;
}

std::size_t row_of(std::string_view name) {
  std::string wanted(name);
  std::ranges::replace(wanted, '_', '-');
  const auto table = option_table();
  const auto row = std::ranges::find(table, wanted, &OptionInfo::name);
  if (row == table.end())
    throw UsageError(
        fmt::format("unknown option '{}'; {}", name, suggestion(name, option_names())));
  return static_cast<std::size_t>(row - table.begin());
}

std::optional<bool> parse_bool(std::string_view text) {
  for (const std::string_view word : {"true", "1", "yes", "on"})
    if (text == word) return true;
  for (const std::string_view word : {"false", "0", "no", "off"})
    if (text == word) return false;
  return std::nullopt;
}

std::optional<OptionValue> parse_value(const OptionInfo& info, std::string_view text) {
  return std::visit(
      [&](const auto& fallback) -> std::optional<OptionValue> {
        using T = std::decay_t<decltype(fallback)>;
        if constexpr (std::is_same_v<T, bool>) return parse_bool(text);
        if constexpr (std::is_same_v<T, std::int64_t>) return parse_int(text);
        if constexpr (std::is_same_v<T, double>) return parse_double(text);
        if constexpr (std::is_same_v<T, NeverHeld>) return std::nullopt;
        if constexpr (std::is_same_v<T, std::string>) {
          const auto word = info.bare.empty() ? std::nullopt : parse_bool(text);
          if (word && text != info.choices.front()) return *word ? info.bare : info.choices.front();
          return std::string(text);
        }
      },
      info.fallback);
}

/// What the option takes, in words.
std::string expectation(const OptionInfo& info) {
  if (std::holds_alternative<bool>(info.fallback)) return "true or false";
  if (!info.choices.empty()) return "one of " + quoted_list(info.choices);
  if (std::holds_alternative<std::string>(info.fallback)) return "a text";
  const bool whole = std::holds_alternative<std::int64_t>(info.fallback);
  return fmt::format("{} in [{}, {}]", whole ? "an integer" : "a number", info.least, info.most);
}

bool fits(const OptionInfo& info, const OptionValue& value) {
  if (value.index() != info.fallback.index()) return false;
  if (const auto* text = std::get_if<std::string>(&value))
    return info.choices.empty() || std::ranges::find(info.choices, *text) != info.choices.end();
  if (const auto* number = std::get_if<double>(&value))
    return *number >= info.least && *number <= info.most;
  if (const auto* whole = std::get_if<std::int64_t>(&value))
    return static_cast<double>(*whole) >= info.least && static_cast<double>(*whole) <= info.most;
  return true;
}

std::string to_text(const OptionValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return std::to_string(*whole);
  if (const auto* number = std::get_if<double>(&value)) return fmt::format("{}", *number);
  return std::get<std::string>(value);
}

}  // namespace

std::span<const OptionInfo> option_table() {
  static const auto& table = *new std::vector<OptionInfo>(make_table());
  return table;
}

Options::Options() {
  for (const OptionInfo& info : option_table()) values_.push_back(info.fallback);
}

Options Options::from_environment() {
  Options options;
  // A program that has rights its caller lacks takes no orders from that one's environment.
  if (::getauxval(AT_SECURE) != 0) return options;
  std::vector<std::string> known;
  for (const OptionInfo& info : option_table()) known.push_back(info.environment);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (!text.starts_with(kPrefix) || equals == std::string_view::npos) continue;
    const std::string name(text.substr(0, equals));
    const auto row = std::ranges::find(known, name);
    if (row != known.end()) {
      const OptionInfo& info = option_table()[static_cast<std::size_t>(row - known.begin())];
      options.set_text(info.name, text.substr(equals + 1), "environment variable " + name);
      continue;
    }
    // Variables of other programs may begin so too; a slip of one of ours may not pass unseen.
    for (const std::string& candidate : known)
      if (edit_distance(name, candidate) <= 2)
        throw UsageError(
            fmt::format("unknown environment variable {}; did you mean {}?", name, candidate));
  }
  return options;
}

void Options::set_text(std::string_view name, std::string_view text, std::string_view origin) {
  const std::size_t row = row_of(name);
  const OptionInfo& info = option_table()[row];
  std::optional<OptionValue> value = parse_value(info, text);
  if (!value || !fits(info, *value))
    throw UsageError(
        fmt::format("{}: '{}' was given, expected {}",
                    origin.empty() ? "option '" + info.name + "'" : std::string(origin), text,
                    expectation(info)));
  values_[row] = *std::move(value);
}

std::string Options::text(std::string_view name) const { return to_text(value(name)); }

const OptionValue& Options::value(std::string_view name) const { return values_[row_of(name)]; }

void Options::assign(std::string_view name, OptionValue value) {
  const std::size_t row = row_of(name);
  const OptionInfo& info = option_table()[row];
  if (!fits(info, value))
    throw UsageError(fmt::format("option '{}': '{}' was given, expected {}", info.name,
                                 to_text(value), expectation(info)));
  values_[row] = std::move(value);
}

}  // namespace segfuse
