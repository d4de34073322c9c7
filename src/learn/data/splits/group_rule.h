#pragma once
// Which recordings belong together: what data.group says.

#include <filesystem>
#include <optional>
#include <regex>
#include <string>

#include "segfuse/data.h"

namespace segfuse::data {

/// The place of a recording in its corpus.
struct CorpusPlace {
  std::string folder;  ///< below the corpus and below train/ or test/; may be empty
  std::optional<std::string> column{};  ///< what the manifest has in the column of the rule
};

class GroupRule {
 public:
  /// "folder", a regular expression with one pair of parentheses, or else a column of the manifest.
  /// UsageError for expressions that are none or have other parentheses.
  explicit GroupRule(const std::string& text);

  /// The column in lower case; nothing where it is not one.
  const std::optional<std::string>& column() const { return column_; }
  /// DataError naming the recording where the rule does not fit.
  std::string group_of(const Recording& recording, const CorpusPlace& place) const;

 private:
  std::string text_;
  std::optional<std::string> column_;
  std::optional<std::regex> pattern_;  ///< found anywhere in the id
};

/// The folder of a file below that of its corpus, without a first part that names a split.
std::string folder_in_corpus(const std::filesystem::path& file, const std::filesystem::path& base);
/// train, dev or test by one of their names in lower case.
std::optional<Split> split_from_name(const std::string& name);

}  // namespace segfuse::data
