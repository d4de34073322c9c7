#include "learn/data/splits/group_rule.h"

#include <fmt/core.h>

#include <filesystem>

#include "learn/data/text.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

constexpr std::size_t kLongestPattern = 200;
constexpr std::size_t kLongestId = 1000;

/// A model file may bring the expression, and tries of all its ways through a name have no end:
/// libstdc++ has an automaton instead, libc++ counts its tries and gives up (see `searched`).
constexpr std::regex::flag_type how() {
#ifdef __GLIBCXX__
  return std::regex::ECMAScript | std::regex_constants::__polynomial;
#else
  return std::regex::ECMAScript;
#endif
}

std::regex compiled(const std::string& text) {
  if (text.size() > kLongestPattern)
    throw UsageError(fmt::format("data.group: the expression has {} letters; at most {} are read",
                                 text.size(), kLongestPattern));
  try {
    std::regex pattern(text, how());
    if (pattern.mark_count() == 1) return pattern;
    throw UsageError(fmt::format(
        "data.group: {} has {} pairs of parentheses; expected one, around what names the group, as "
        "in \"^(bird[0-9]+)_\"; (?: ) groups without naming",
        shown(text), pattern.mark_count()));
  } catch (const std::regex_error&) {
    throw UsageError(
        fmt::format("data.group: {} is not a regular expression; expected one with a pair of "
                    "parentheses around "
                    "what names the group, as in \"^(bird[0-9]+)_\"",
                    shown(text)));
  }
}

bool searched(const std::string& id, std::smatch& found, const std::regex& pattern,
              const std::string& name, const std::string& text) {
  try {
    return std::regex_search(id, found, pattern);
  } catch (const std::regex_error&) {
    throw DataError(fmt::format(
        "the recording {}: the search for data.group, which is {}, takes too many steps; expected "
        "an expression without a repetition inside a repetition",
        name, shown(text)));
  }
}

}  // namespace

std::optional<Split> split_from_name(const std::string& name) {
  if (name == "train" || name == "training") return Split::kTrain;
  if (name == "dev" || name == "valid" || name == "validation") return Split::kDev;
  if (name == "test") return Split::kTest;
  return std::nullopt;
}

std::string folder_in_corpus(const std::filesystem::path& file, const std::filesystem::path& base) {
  const std::filesystem::path below = file.lexically_relative(base);
  std::filesystem::path folder = (below.empty() ? file : below).lexically_normal().parent_path();
  if (!folder.empty() && split_from_name(lower(folder.begin()->string())))
    folder = folder.lexically_relative(*folder.begin());
  return folder == "." ? "" : folder.generic_string();
}

GroupRule::GroupRule(const std::string& text) : text_(text) {
  if (text.find_first_of("()") != std::string::npos)
    pattern_ = compiled(text);
  else if (text != "folder")
    column_ = lower(text);
}

std::string GroupRule::group_of(const Recording& recording, const CorpusPlace& place) const {
  const std::string name = shown(recording.id);
  if (column_) {
    if (!place.column)
      throw DataError(fmt::format(
          "data.group is {}, a column of a manifest, but there is no manifest; use \"folder\", or "
          "an expression with parentheses, as \"^(bird[0-9]+)_\", that selects a part of the names",
          shown(text_)));
    if (place.column->empty())
      throw DataError(
          fmt::format("the recording {} has nothing in the column {} of the manifest, which "
                      "data.group names",
                      name, shown(text_)));
    return *place.column;
  }
  if (!pattern_) {
    if (place.folder.empty())
      throw DataError(fmt::format(
          "the recording {} lies in no folder of its own in the corpus, and data.group is "
          "\"folder\"; move it into one, or use an expression with parentheses, as "
          "\"^(bird[0-9]+)_\", that selects a part of the names",
          name));
    return place.folder;
  }
  if (recording.id.size() > kLongestId)
    throw DataError(fmt::format(
        "the recording {}: its name has {} letters; data.group looks into names of at most {}",
        name, recording.id.size(), kLongestId));
  std::smatch found;
  const bool fits = searched(recording.id, found, *pattern_, name, text_);
  if (!fits || found.length(1) == 0)
    throw DataError(fmt::format("the recording {} does not fit data.group, which is {}{}", name,
                                shown(text_),
                                fits ? ": nothing stands where the parentheses are" : ""));
  return found.str(1);
}

}  // namespace segfuse::data
