#pragma once
// JSON, read and written in one place. What is read is bounded and looked at with suspicion: a
// text comes from a file that anybody may have written.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "segfuse/error.h"

namespace segfuse {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  std::size_t bytes = std::size_t{1} << 30;
  int depth = 64;  ///< objects and lists within each other
};

/// Parses a whole text; `file` stands for it in errors. Takes time in proportion to its length.
/// DataError "file:line:column: ..." for what is not JSON, not UTF-8, ends early, or holds a number
/// beyond a double; "file: ..." for what is too long, nests too deeply or has a name twice.
Json parse_json(std::string_view text, const std::string& file, const JsonLimits& limits = {});

/// As text; `indent` as in Json::dump. Invalid UTF-8 (a path may hold any byte) is replaced by
/// U+FFFD, a number that is not finite by null.
std::string json_text(const Json& value, int indent = -1);

/// A value in a JSON file that is read with suspicion, and where it stands. A place refers to its
/// parent, which has to live on.
class JsonPlace {
 public:
  JsonPlace(const Json& value, const std::string& file) : value_(&value), file_(&file) {}

  const Json& value() const { return *value_; }
  /// "history[3].bytes"; "the file" at the top.
  std::string path() const;
  /// DataError: expected something else here.
  [[noreturn]] void refuse(std::string_view expected) const;

  /// A member that has to be there.
  JsonPlace at(std::string_view key) const;
  std::optional<JsonPlace> find(std::string_view key) const;
  template <class Visit>
  void for_each(const Visit& visit) const {
    if (!value_->is_array()) refuse("a list");
    std::size_t index = 0;
    for (const Json& item : *value_) visit(JsonPlace(item, *file_, this, {}, index++));
  }
  template <class Visit>
  void for_each_member(const Visit& visit) const {
    if (!value_->is_object()) refuse("an object");
    for (const auto& [key, item] : value_->get_ref<const Json::object_t&>())
      visit(key, JsonPlace(item, *file_, this, key, 0));
  }

  std::string text() const;
  std::vector<std::string> texts() const;  ///< a list of them
  std::uint64_t count() const;             ///< an integer from 0 on
  std::int64_t integer() const;
  std::int64_t integer(std::int64_t least, std::int64_t most) const;
  double number() const;
  bool boolean() const;
  /// The index of the text in `names`; DataError names them all.
  template <class Names>
  std::size_t one_of(const Names& names) const {
    const std::string found = text();
    std::string known;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (found == names[i]) return i;
      known += (i == 0 ? "" : ", ") + std::string(names[i]);
    }
    refuse("one of " + known);
  }

 private:
  JsonPlace(const Json& value, const std::string& file, const JsonPlace* parent,
            std::string_view key, std::size_t index)
      : value_(&value), file_(&file), parent_(parent), key_(key), index_(index) {}

  const Json* value_;
  const std::string* file_;
  const JsonPlace* parent_ = nullptr;
  std::string_view key_;  ///< empty: `index_` in a list
  std::size_t index_ = 0;
};

}  // namespace segfuse
