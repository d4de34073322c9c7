#include "base/json/json.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace segfuse {
namespace {

/// The value as it is written, shortened.
std::string shown(const Json& value) {
  std::string text = json_text(value);
  if (text.size() > 40) text = text.substr(0, 37) + "...";
  return text;
}

/// Puts a value together as the parser comes along. Json's own way looks through all members of an
/// object for each new one.
class Builder {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  Builder(std::string_view text, const std::string& file, const JsonLimits& limits)
      : text_(text), file_(file), limits_(limits) {}

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(number_integer_t value) { return put(value); }
  bool number_unsigned(number_unsigned_t value) { return put(value); }
  bool number_float(number_float_t value, const string_t&) { return put(value); }
  bool string(string_t& value) { return put(std::move(value)); }
  bool binary(binary_t&) { return false; }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool key(string_t& name) {
    key_ = std::move(name);
    return true;
  }
  bool end_object() {
    refuse_doubles(open_.back()->get_ref<const Json::object_t&>());
    open_.pop_back();
    return true;
  }
  bool end_array() {
    open_.pop_back();
    return true;
  }

  /// `position` counts the bytes that were read.
  template <class Error>
  bool parse_error(std::size_t position, const std::string&, const Error& error) {
    constexpr int kNumberOutOfRange = 406;
    const std::size_t end = std::min(position == 0 ? 0 : position - 1, text_.size());
    const std::string_view before = text_.substr(0, end);
    const auto line = 1 + std::ranges::count(before, '\n');
    const std::size_t start = before.rfind('\n');
    const std::size_t column = end - (start == std::string_view::npos ? 0 : start + 1) + 1;
    if (error.id == kNumberOutOfRange)
      throw DataError(fmt::format("{}:{}:{}: the number that ends here is too large for a double",
                                  file_, line, column));
    if (end >= text_.size())
      throw DataError(
          fmt::format("{}:{}:{}: the JSON ends too early; was it cut off?", file_, line, column));
    if (std::string_view(error.what()).find("UTF-8") != std::string_view::npos)
      throw DataError(
          fmt::format("{}:{}:{}: this text is not UTF-8, as JSON has to be", file_, line, column));
    throw DataError(
        fmt::format("{}:{}:{}: this is not JSON, at '{}'", file_, line, column,
                    text_.substr(end, std::min<std::size_t>(12, text_.find('\n', end) - end))));
  }

  Json result() { return std::move(top_); }

 private:
  using Members = std::vector<Json::object_t::value_type>;

  Json& place(Json value) {
    if (open_.empty()) return top_ = std::move(value);
    Json& parent = *open_.back();
    if (parent.is_array()) return parent.get_ref<Json::array_t&>().emplace_back(std::move(value));
    Members& members = parent.get_ref<Json::object_t&>();
    return members.emplace_back(std::move(key_), std::move(value)).second;
  }
  bool put(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() == static_cast<std::size_t>(limits_.depth))
      throw DataError(
          fmt::format("{}: the JSON nests more than {} objects and lists", file_, limits_.depth));
    open_.push_back(&place(std::move(value)));
    return true;
  }
  void refuse_doubles(const Members& members) const {
    std::vector<std::string_view> names;
    names.reserve(members.size());
    for (const auto& member : members) names.push_back(member.first);
    std::ranges::sort(names);
    const auto twice = std::ranges::adjacent_find(names);
    if (twice != names.end())
      throw DataError(
          fmt::format("{}: an object of the JSON has the name {} twice", file_, shown(*twice)));
  }

  std::string_view text_;
  const std::string& file_;
  const JsonLimits& limits_;
  Json top_;
  std::vector<Json*> open_;
  std::string key_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& file, const JsonLimits& limits) {
  if (text.size() > limits.bytes)
    throw DataError(
        fmt::format("{}: {} bytes of JSON; at most {} are read", file, text.size(), limits.bytes));
  Builder builder(text, file, limits);
  Json::sax_parse(text, &builder);
  return builder.result();
}

std::string json_text(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string JsonPlace::path() const {
  if (parent_ == nullptr) return "the file";
  std::string path = parent_->parent_ == nullptr ? "" : parent_->path();
  if (key_.empty()) return path + fmt::format("[{}]", index_);
  return path + (path.empty() ? "" : ".") + std::string(key_);
}

void JsonPlace::refuse(std::string_view expected) const {
  throw DataError(
      fmt::format("{}: at {}: expected {}, found {}", *file_, path(), expected, shown(*value_)));
}

std::optional<JsonPlace> JsonPlace::find(std::string_view key) const {
  if (!value_->is_object()) refuse("an object");
  const auto found = value_->find(key);
  if (found == value_->end()) return std::nullopt;
  return JsonPlace(*found, *file_, this, key, 0);
}

JsonPlace JsonPlace::at(std::string_view key) const {
  if (auto found = find(key)) return *found;
  throw DataError(fmt::format("{}: at {}: there is no '{}'", *file_, path(), key));
}

std::string JsonPlace::text() const {
  if (!value_->is_string()) refuse("text");
  return value_->get<std::string>();
}

std::vector<std::string> JsonPlace::texts() const {
  std::vector<std::string> all;
  for_each([&](const JsonPlace& item) { all.push_back(item.text()); });
  return all;
}

std::uint64_t JsonPlace::count() const {
  if (!value_->is_number_unsigned()) refuse("a whole number from 0 on");
  return value_->get<std::uint64_t>();
}

std::int64_t JsonPlace::integer() const {
  if (!value_->is_number_integer()) refuse("a whole number");
  if (value_->is_number_unsigned() &&
      value_->get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
    refuse("a whole number of 64 bits with its sign");
  return value_->get<std::int64_t>();
}

std::int64_t JsonPlace::integer(std::int64_t least, std::int64_t most) const {
  const std::int64_t found = integer();
  if (found < least || found > most)
    refuse(fmt::format("a whole number from {} to {}", least, most));
  return found;
}

double JsonPlace::number() const {
  if (!value_->is_number()) refuse("a number");
  return value_->get<double>();
}

bool JsonPlace::boolean() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

}  // namespace segfuse
