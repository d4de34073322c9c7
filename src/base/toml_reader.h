#pragma once
// Checked reading of TOML: typed getters that know the place of every value, and a refusal of keys
// that nobody asked for.
//
//   TomlReader config = TomlReader::open(path);
//   const double rate = config.section("optim").number("learning_rate", 1e-3);
//   ...
//   config.refuse_unknown();
//
// All errors are DataErrors that begin with "file:line:column: " (UsageErrors that begin with the
// override, where the value came from one). A getter with a fallback returns
// it when the key is absent; a getter without one then throws.

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace segfuse {

/// A table of a TOML file. Copies and sections share the file and the list of known keys.
class TomlReader {
 public:
  /// Reads and parses a file; throws FileError or DataError. `overrides` are of the form
  /// "section.key=value" and win over the file; a value that is not TOML is taken as a string.
  static TomlReader open(const std::filesystem::path& path,
                         const std::vector<std::string>& overrides = {});
  /// Parses `text`; `name` stands for the file in messages.
  static TomlReader parse(std::string_view text, std::string name,
                          const std::vector<std::string>& overrides = {});

  /// A table inside this one. An absent table reads as an empty one.
  TomlReader section(const std::string& key) const;
  /// An array of tables ([[key]]), in file order; empty when absent.
  std::vector<TomlReader> sections(const std::string& key) const;
  /// Whether the file gives the key; the key becomes known.
  bool has(const std::string& key) const;
  /// Whether the file gives the key, and as a string; the key becomes known.
  bool holds_string(const std::string& key) const;
  /// All keys of this table in the order of the file; all become known. For tables whose keys are
  /// the user's own names, such as a folding map.
  std::vector<std::string> keys() const;

  bool boolean(const std::string& key) const;
  bool boolean(const std::string& key, bool fallback) const;
  /// Integers within [least, most].
  std::int64_t integer(const std::string& key) const;
  std::int64_t integer(const std::string& key, std::int64_t fallback,
                       std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                       std::int64_t most = std::numeric_limits<std::int64_t>::max()) const;
  /// Finite numbers within [least, most]; integers are converted.
  double number(const std::string& key) const;
  double number(const std::string& key, double fallback,
                double least = std::numeric_limits<double>::lowest(),
                double most = std::numeric_limits<double>::max()) const;
  std::string string(const std::string& key) const;
  std::string string(const std::string& key, std::string fallback) const;
  /// One of `choices`; anything else is refused with the nearest one.
  std::string choice(const std::string& key, std::string fallback,
                     const std::vector<std::string>& choices) const;
  std::vector<std::string> strings(const std::string& key,
                                   std::vector<std::string> fallback = {}) const;
  std::vector<double> numbers(const std::string& key, std::vector<double> fallback = {}) const;
  std::vector<std::int64_t> integers(const std::string& key,
                                     std::vector<std::int64_t> fallback = {}) const;

  /// "file:line:column" of a value (its override, if it has one), or of this table when the key is
  /// absent.
  std::string where(const std::string& key) const;
  /// Throws a DataError about a value that its getter could not judge: "file:line:column: 'key'
  /// REASON".
  [[noreturn]] void refuse(const std::string& key, std::string_view reason) const;
  /// Throws on the first key, here or in any table below, that no getter has named; suggests the
  /// nearest known key of that table. Call it after the last getter.
  void refuse_unknown() const;

  /// A value that a getter gave, from the file, an override or its fallback, as TOML.
  struct Setting {
    std::string section;  ///< dotted; empty for the root
    std::string key;
    std::string value;
    std::string name() const { return section.empty() ? key : section + "." + key; }
    bool operator==(const Setting&) const = default;
  };
  /// Of the whole file, in the order of the first calls of the getters.
  std::vector<Setting> settings() const;
  /// A string as TOML writes it.
  static std::string text_of(const std::string& value);

 private:
  struct Document;
  struct Access;
  TomlReader(std::shared_ptr<Document> document, const void* table, std::string path);

  std::shared_ptr<Document> document_;
  const void* table_;  // toml::table, null when absent
  std::string path_;   // dotted name of this table, empty for the root
};

}  // namespace segfuse
