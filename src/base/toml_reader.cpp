#include "base/toml_reader.h"

// Its assertions of 3.3 do not hold for all input; what it answers then is right.
#define TOML_ASSERT(condition) static_cast<void>(0)
#include <fmt/core.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "base/os/file.h"
#include "base/text.h"
#include "segfuse/error.h"

namespace segfuse {

struct TomlReader::Document {
  std::string name;
  toml::table root;
  std::map<std::string, std::set<std::string>> known;  // by dotted table name
  std::vector<Setting> given;                          // by getters
};

namespace {

constexpr std::string_view kOverride = "override ";

bool from_override(const toml::source_region& region) {
  return region.path && region.path->starts_with(kOverride);
}

std::string place(const std::string& file, const toml::source_region& region) {
  if (from_override(region)) return *region.path;
  return fmt::format("{}:{}:{}", file, region.begin.line, region.begin.column);
}

/// Throws "place: message" as whose fault it is.
[[noreturn]] void fail(const std::string& file, const toml::source_region& region,
                       const std::string& message) {
  const std::string text = place(file, region) + ": " + message;
  if (from_override(region)) throw UsageError(text);
  throw DataError(text);
}

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

/// Calls dot(at) for each dot of TOML's that is in no string and no comment, and other() for what
/// may not stand in a dotted key.
template <class Dot, class Other>
void walk_keys(std::string_view text, const Dot& dot, const Other& other) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      other();
    } else if (c == '"' || c == '\'') {
      std::string mark(3, c);
      if (text.compare(at, 3, mark) != 0) mark.resize(1);
      std::size_t end = at + mark.size();
      while (end < text.size() && text.compare(end, mark.size(), mark) != 0 &&
             (mark.size() == 3 || text[end] != '\n'))
        end += c == '"' && text[end] == '\\' ? 2 : 1;
      at = end + mark.size() - 1;
    } else if (c == '.') {
      dot(at);
    } else if (c == '\n' || c == '=' || c == ',' || c == '[' || c == '{') {
      other();
    }
  }
}

/// toml++ makes a table within a table of each part of a key, and frees them by recursion.
void check_keys(std::string_view text, const std::string& name) {
  constexpr int kMaxParts = 64;
  int parts = 1;
  walk_keys(
      text,
      [&](std::size_t at) {
        if (++parts <= kMaxParts) return;
        const auto line = 1 + std::ranges::count(text.substr(0, at), '\n');
        throw DataError(
            fmt::format("{}:{}: a key of more than {} parts, or as many dots in a value; expected "
                        "section.key",
                        name, line, kMaxParts));
      },
      [&] { parts = 1; });
}

/// toml++ takes a number for none when memory is refused to it, so what it complains of once may
/// not be the text's fault; memory that is refused again is std::bad_alloc.
toml::table parse_toml(std::string_view text, const std::string& name) {
  try {
    return toml::parse(text, name);
  } catch (const toml::parse_error&) {
  }
  return toml::parse(text, name);
}

toml::table parse_override(const std::string& assignment) {
  const std::string name = fmt::format("{}'{}'", kOverride, assignment);
  const std::size_t equals = assignment.find('=');
  if (equals == std::string::npos)
    throw UsageError(fmt::format("{}: expected the form section.key=value", name));
  try {
    check_keys(assignment, name);
  } catch (const DataError& error) {
    throw UsageError(error.what());
  }
  const std::string key(trim(std::string_view(assignment).substr(0, equals)));
  const std::string_view value = trim(std::string_view(assignment).substr(equals + 1));
  try {
    return parse_toml(fmt::format("{} = {}", key, value), name);
  } catch (const toml::parse_error&) {
    // Not a TOML value: a string without its quotes, or a bad key, which fails again.
  }
  try {
    return parse_toml(fmt::format("{} = {}", key, quoted(value)), name);
  } catch (const toml::parse_error& error) {
    throw UsageError(fmt::format("{}: {}", name, error.description()));
  }
}

/// Moves: copies of nodes forget where they came from.
void merge(toml::table& target, toml::table&& source) {
  for (auto&& [key, node] : source) {
    toml::node* there = target.get(key.str());
    if (there != nullptr && there->is_table() && node.is_table())
      merge(*there->as_table(), std::move(*node.as_table()));
    else
      target.insert_or_assign(key, std::move(node));
  }
}

std::string kind_of(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "an array";
    case toml::node_type::string: return "a string";
    case toml::node_type::integer: return "an integer";
    case toml::node_type::floating_point: return "a number";
    case toml::node_type::boolean: return "a boolean";
    case toml::node_type::date:
    case toml::node_type::time:
    case toml::node_type::date_time: return "a date or time";
    case toml::node_type::none: break;
  }
  return "nothing";
}

/// Digits that are no TOML, since they mean a number beyond what it holds.
bool is_too_large(const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789_.eE+-") != std::string::npos) return false;
  std::string digits = text;
  std::erase(digits, '_');
  char* end = nullptr;
  const double value = std::strtod(digits.c_str(), &end);
  return *end == '\0' && std::abs(value) >= 0x1p63;
}

/// What was found where something else was expected. An override has no quotes, so its text says
/// more than that it is one.
std::string found_text(const toml::node& node) {
  const std::optional<std::string> text = node.value_exact<std::string>();
  if (!text || !from_override(node.source())) return kind_of(node);
  if (text->empty()) return "nothing";
  return is_too_large(*text) ? *text + ", which is too large"
                             : "the text " + quoted(std::string_view(*text));
}

std::string joined(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : path + "." + std::string(key);
}

std::string toml_text(bool value) { return value ? "true" : "false"; }
std::string toml_text(std::int64_t value) { return std::to_string(value); }
std::string toml_text(double value) { return fmt::format("{}", value); }
std::string toml_text(const std::string& value) {
  std::string text;
  for (const char c : quoted(std::string_view(value)))
    text += static_cast<unsigned char>(c) < 0x20 || c == 0x7F
                ? fmt::format("\\u{:04X}", static_cast<unsigned>(c))
                : std::string(1, c);
  return text;
}
template <class T>
std::string toml_text(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += (text.empty() ? "" : ", ") + toml_text(value);
  return "[" + text + "]";
}

template <class T>
constexpr std::string_view kWanted = "";
template <>
constexpr std::string_view kWanted<bool> = "true or false";
template <>
constexpr std::string_view kWanted<std::int64_t> = "an integer";
template <>
constexpr std::string_view kWanted<double> = "a finite number";
template <>
constexpr std::string_view kWanted<std::string> = "a string";

template <class T>
std::optional<T> value_of(const toml::node& node) {
  if constexpr (std::is_same_v<T, double>) {
    const std::optional<double> value = node.value<double>();
    return node.is_number() && value && std::isfinite(*value) ? value : std::nullopt;
  } else {
    return node.value_exact<T>();
  }
}

}  // namespace

/// Typed access shared by the getters.
struct TomlReader::Access {
  static const toml::table* table(const TomlReader& reader) {
    return static_cast<const toml::table*>(reader.table_);
  }

  static const toml::node* find(const TomlReader& reader, const std::string& key) {
    reader.document_->known[reader.path_].insert(key);
    return reader.table_ == nullptr ? nullptr : table(reader)->get(key);
  }

  static const toml::node& find_required(const TomlReader& reader, const std::string& key) {
    if (const toml::node* node = find(reader, key)) return *node;
    const std::string holder = reader.path_.empty() ? "" : " in [" + reader.path_ + "]";
    throw DataError(fmt::format("{}: '{}' is missing{}", reader.where(key), key, holder));
  }

  /// Keeps what a getter gives.
  template <class T>
  static T noted(const TomlReader& reader, const std::string& key, T value) {
    const Setting setting{reader.path_, key, toml_text(value)};
    for (Setting& former : reader.document_->given)
      if (former.section == setting.section && former.key == key) {
        former = setting;
        return value;
      }
    reader.document_->given.push_back(setting);
    return value;
  }

  template <class T>
  static T convert(const TomlReader& reader, const std::string& key, const toml::node& node) {
    if (std::optional<T> value = value_of<T>(node)) return *std::move(value);
    fail(reader.document_->name, node.source(),
         fmt::format("'{}' must be {}, found {}", joined(reader.path_, key), kWanted<T>,
                     found_text(node)));
  }

  template <class T>
  static T required(const TomlReader& reader, const std::string& key) {
    return noted(reader, key, convert<T>(reader, key, find_required(reader, key)));
  }

  template <class T>
  static T optional(const TomlReader& reader, const std::string& key, T fallback) {
    const toml::node* node = find(reader, key);
    return noted(reader, key,
                 node == nullptr ? std::move(fallback) : convert<T>(reader, key, *node));
  }

  template <class T>
  static T within(const TomlReader& reader, const std::string& key, T fallback, T least, T most) {
    if (!reader.has(key)) return noted(reader, key, fallback);
    const T value = required<T>(reader, key);
    if (value < least || value > most)
      reader.refuse(key, most == std::numeric_limits<T>::max()
                             ? fmt::format("is {}; it must be at least {}", value, least)
                             : fmt::format("is {}; it must lie in [{}, {}]", value, least, most));
    return value;
  }

  template <class T>
  static std::vector<T> list(const TomlReader& reader, const std::string& key,
                             std::vector<T> fallback) {
    const toml::node* node = find(reader, key);
    if (node == nullptr) return noted(reader, key, std::move(fallback));
    const toml::array* array = node->as_array();
    if (array == nullptr) reader.refuse(key, "must be an array, found " + found_text(*node));
    std::vector<T> values;
    for (const toml::node& element : *array) values.push_back(convert<T>(reader, key, element));
    return noted(reader, key, std::move(values));
  }

  static void refuse_unknown(const Document& document, const toml::table& table,
                             const std::string& path) {
    const auto entry = document.known.find(path);
    std::vector<std::string> known;
    if (entry != document.known.end()) known.assign(entry->second.begin(), entry->second.end());
    for (const auto& [key, source, node] : in_file_order(table)) {
      if (!std::ranges::binary_search(known, key))
        fail(document.name, source,
             fmt::format("unknown key '{}'{}; {}", key, path.empty() ? "" : " in [" + path + "]",
                         suggestion(key, known)));
      descend(document, node, joined(path, key));
    }
  }

  static void descend(const Document& document, const toml::node& node, const std::string& path) {
    if (const toml::table* table = node.as_table()) refuse_unknown(document, *table, path);
    if (const toml::array* array = node.as_array())
      for (std::size_t i = 0; i < array->size(); ++i)
        descend(document, (*array)[i], fmt::format("{}[{}]", path, i));
  }

  struct Entry {
    std::string key;
    toml::source_region source;
    const toml::node& node;
  };
  static std::vector<Entry> in_file_order(const toml::table& table) {
    std::vector<std::pair<toml::source_position, const toml::key*>> order;
    for (auto&& [key, node] : table) order.emplace_back(key.source().begin, &key);
    std::ranges::stable_sort(order, [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Entry> entries;
    for (const auto& [position, key] : order)
      entries.push_back({std::string(key->str()), key->source(), *table.get(key->str())});
    return entries;
  }
};

TomlReader::TomlReader(std::shared_ptr<Document> document, const void* table, std::string path)
    : document_(std::move(document)), table_(table), path_(std::move(path)) {}

TomlReader TomlReader::open(const std::filesystem::path& path,
                            const std::vector<std::string>& overrides) {
  return parse(read_file(path), path.string(), overrides);
}

TomlReader TomlReader::parse(std::string_view text, std::string name,
                             const std::vector<std::string>& overrides) {
  auto document = std::make_shared<Document>();
  try {
    check_keys(text, name);
    document->root = parse_toml(text, name);
  } catch (const toml::parse_error& error) {
    throw DataError(fmt::format("{}: {}", place(name, error.source()), error.description()));
  }
  document->name = std::move(name);
  for (const std::string& assignment : overrides) merge(document->root, parse_override(assignment));
  const void* root = &document->root;
  return {std::move(document), root, ""};
}

TomlReader TomlReader::section(const std::string& key) const {
  const toml::node* node = Access::find(*this, key);
  if (node != nullptr && !node->is_table())
    refuse(key, "must be a table, found " + found_text(*node));
  return {document_, node == nullptr ? nullptr : node->as_table(), joined(path_, key)};
}

std::vector<TomlReader> TomlReader::sections(const std::string& key) const {
  const toml::node* node = Access::find(*this, key);
  std::vector<TomlReader> tables;
  if (node == nullptr) return tables;
  const toml::array* array = node->as_array();
  if (array == nullptr || !array->is_homogeneous<toml::table>())
    refuse(key, "must be an array of tables, found " + found_text(*node));
  for (std::size_t i = 0; i < array->size(); ++i)
    tables.push_back(
        {document_, (*array)[i].as_table(), fmt::format("{}[{}]", joined(path_, key), i)});
  return tables;
}

bool TomlReader::has(const std::string& key) const { return Access::find(*this, key) != nullptr; }

bool TomlReader::holds_string(const std::string& key) const {
  const toml::node* node = Access::find(*this, key);
  return node != nullptr && node->is_string();
}

std::string TomlReader::text_of(const std::string& value) { return toml_text(value); }

std::vector<TomlReader::Setting> TomlReader::settings() const { return document_->given; }

std::vector<std::string> TomlReader::keys() const {
  std::vector<std::string> names;
  if (table_ == nullptr) return names;
  for (auto& entry : Access::in_file_order(*Access::table(*this)))
    names.push_back(std::move(entry.key));
  document_->known[path_].insert(names.begin(), names.end());
  return names;
}

bool TomlReader::boolean(const std::string& key) const {
  return Access::required<bool>(*this, key);
}
bool TomlReader::boolean(const std::string& key, bool fallback) const {
  return Access::optional<bool>(*this, key, fallback);
}

std::int64_t TomlReader::integer(const std::string& key) const {
  return Access::required<std::int64_t>(*this, key);
}
std::int64_t TomlReader::integer(const std::string& key, std::int64_t fallback, std::int64_t least,
                                 std::int64_t most) const {
  return Access::within<std::int64_t>(*this, key, fallback, least, most);
}

double TomlReader::number(const std::string& key) const {
  return Access::required<double>(*this, key);
}
double TomlReader::number(const std::string& key, double fallback, double least,
                          double most) const {
  return Access::within<double>(*this, key, fallback, least, most);
}

std::string TomlReader::string(const std::string& key) const {
  return Access::required<std::string>(*this, key);
}
std::string TomlReader::string(const std::string& key, std::string fallback) const {
  return Access::optional<std::string>(*this, key, std::move(fallback));
}

std::string TomlReader::choice(const std::string& key, std::string fallback,
                               const std::vector<std::string>& choices) const {
  std::string value = string(key, std::move(fallback));
  if (has(key) && std::ranges::find(choices, value) == choices.end())
    refuse(key, fmt::format("is '{}', which is not among {}; {}", value, quoted_list(choices),
                            suggestion(value, choices)));
  return value;
}

std::vector<std::string> TomlReader::strings(const std::string& key,
                                             std::vector<std::string> fallback) const {
  return Access::list<std::string>(*this, key, std::move(fallback));
}
std::vector<double> TomlReader::numbers(const std::string& key,
                                        std::vector<double> fallback) const {
  return Access::list<double>(*this, key, std::move(fallback));
}
std::vector<std::int64_t> TomlReader::integers(const std::string& key,
                                               std::vector<std::int64_t> fallback) const {
  return Access::list<std::int64_t>(*this, key, std::move(fallback));
}

std::string TomlReader::where(const std::string& key) const {
  if (table_ == nullptr) return document_->name;
  const toml::table& table = *Access::table(*this);
  const toml::node* node = table.get(key);
  return place(document_->name, node == nullptr ? table.source() : node->source());
}

void TomlReader::refuse(const std::string& key, std::string_view reason) const {
  const toml::node* node = table_ == nullptr ? nullptr : Access::table(*this)->get(key);
  const std::string message = fmt::format("'{}' {}", joined(path_, key), reason);
  if (node != nullptr) fail(document_->name, node->source(), message);
  throw DataError(fmt::format("{}: {}", where(key), message));
}

void TomlReader::refuse_unknown() const {
  if (table_ != nullptr) Access::refuse_unknown(*document_, *Access::table(*this), path_);
}

}  // namespace segfuse
