#include "doctor/json_place.h"

#include <algorithm>

namespace segfuse::doctor {

namespace {

/// The value as it is written, shortened.
std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 37) + "...";
  return text;
}

}  // namespace

Json parse_json(std::string_view text, const std::string& file) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    const std::size_t end = std::min(error.byte == 0 ? 0 : error.byte - 1, text.size());
    const std::string_view before = text.substr(0, end);
    const auto line = 1 + std::ranges::count(before, '\n');
    const std::size_t start = before.rfind('\n');
    const std::size_t column = end - (start == std::string_view::npos ? 0 : start + 1) + 1;
    if (end >= text.size())
      throw DataError("{}:{}:{}: the JSON ends too early; was it cut off?", file, line, column);
    throw DataError("{}:{}:{}: this is not JSON, at '{}'", file, line, column,
                    text.substr(end, std::min<std::size_t>(12, text.find('\n', end) - end)));
  }
}

std::string JsonPlace::path() const {
  if (parent_ == nullptr) return "the file";
  std::string path = parent_->parent_ == nullptr ? "" : parent_->path();
  if (key_.empty()) return path + fmt::format("[{}]", index_);
  return path + (path.empty() ? "" : ".") + std::string(key_);
}

void JsonPlace::refuse(std::string_view expected) const {
  throw DataError("{}: at {}: expected {}, found {}", *file_, path(), expected, shown(*value_));
}

std::optional<JsonPlace> JsonPlace::find(std::string_view key) const {
  if (!value_->is_object()) refuse("an object");
  const auto found = value_->find(key);
  if (found == value_->end()) return std::nullopt;
  return JsonPlace(*found, *file_, this, key, 0);
}

JsonPlace JsonPlace::at(std::string_view key) const {
  if (auto found = find(key)) return *found;
  throw DataError("{}: at {}: there is no '{}'", *file_, path(), key);
}

std::string JsonPlace::text() const {
  if (!value_->is_string()) refuse("text");
  return value_->get<std::string>();
}

std::uint64_t JsonPlace::count() const {
  if (!value_->is_number_unsigned()) refuse("a whole number from 0 on");
  return value_->get<std::uint64_t>();
}

std::int64_t JsonPlace::integer() const {
  if (!value_->is_number_integer()) refuse("a whole number");
  return value_->get<std::int64_t>();
}

double JsonPlace::number() const {
  if (!value_->is_number()) refuse("a number");
  return value_->get<double>();
}

bool JsonPlace::boolean() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

}  // namespace segfuse::doctor
