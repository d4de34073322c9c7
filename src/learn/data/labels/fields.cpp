#include "learn/data/labels/fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

/// The last part of a path of either kind of system.
std::string_view file_name(std::string_view path) {
  const std::size_t slash = path.find_last_of("/\\");
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

std::string_view without_ending(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos || dot == 0 ? name : name.substr(0, dot);
}

/// Two for each folder above it that has the same name, and one for the same file name.
int likeness(std::string_view entry, std::string_view recording) {
  int points = trim(file_name(entry)) == trim(file_name(recording)) ? 1 : 0;
  const auto up = [](std::string_view& path) {
    path.remove_suffix(std::min(file_name(path).size() + 1, path.size()));
    return trim(file_name(path));
  };
  while (!entry.empty() && !recording.empty()) {
    const std::string_view folder = up(entry);
    if (folder.empty() || folder != up(recording)) break;
    points += 2;
  }
  return points;
}

[[noreturn]] void refuse_second_name(const LabelText& file, std::string_view first,
                                     std::string_view second) {
  throw DataError(
      fmt::format("{}: it has labels of {} and of {}, and either may be the recording {}; give the "
                  "recordings different names",
                  file.name, shown(first), shown(second), shown(file.options.recording)));
}

}  // namespace

void for_lines(std::string_view text,
               const std::function<void(std::string_view, std::int64_t)>& visit) {
  std::int64_t number = 0;
  for (const std::string_view line : split_lines(text)) {
    ++number;
    if (!trim(line).empty()) visit(line, number);
  }
}

double number_in(std::string_view field, std::string_view what, std::string_view name,
                 std::int64_t line) {
  const std::optional<double> value = parse_double(trim(field));
  if (!value)
    throw DataError(fmt::format("{}:{}: {} is {}; expected a number{}", name, line, what,
                                shown(field), is_number(field) ? " with a decimal point" : ""));
  return *value;
}

bool is_number(std::string_view field) {
  std::string text(trim(field));
  std::ranges::replace(text, ',', '.');
  return parse_double(text).has_value();
}

std::int64_t integer_in(std::string_view field, std::string_view what, std::string_view name,
                        std::int64_t line) {
  const std::optional<std::int64_t> value = parse_int(field);
  if (!value)
    throw DataError(
        fmt::format("{}:{}: {} is {}; expected a whole number", name, line, what, shown(field)));
  return *value;
}

std::string label_in(std::string_view field, std::string_view name, std::int64_t line) {
  const std::string_view label = trim(field);
  if (label.empty()) throw DataError(fmt::format("{}:{}: the label is empty", name, line));
  return std::string(label);
}

double rate_of(const LabelText& file) {
  if (file.options.sample_rate > 0) return file.options.sample_rate;
  if (file.inspect) return 1;
  throw UsageError(fmt::format(
      "{}: its times count samples; the sample rate of the audio is needed", file.name));
}

double rate_of(const LabelOutput& output, std::string_view format) {
  if (!(output.sample_rate > 0))
    throw UsageError(
        fmt::format("a {} file counts samples; the sample rate is needed to write it", format));
  return output.sample_rate;
}

void sort_by_start(RawSegments& raw) {
  std::ranges::stable_sort(raw.segments, {}, &LabelSegment::start);
}

std::string name_in_labels(const Recording& recording) {
  if (!recording.part.empty()) return recording.part;
  return recording.command ? recording.id : recording.audio.filename().string();
}

bool same_recording(std::string_view entry, std::string_view recording) {
  // Readers of fields trim, too.
  const std::string_view a = trim(file_name(entry));
  const std::string_view b = trim(file_name(recording));
  const std::string_view stem = trim(without_ending(b));
  return a == b || a == stem || trim(without_ending(a)) == stem;
}

bool Recordings::wants(std::string_view recording) {
  if (!known_.contains(recording)) {
    constexpr std::size_t kMax = 1'000'000;
    if (names_.size() >= kMax)
      throw DataError(fmt::format("{}: it names more than {} recordings", file_.name, kMax));
    names_.emplace_back(recording);
    known_.emplace(recording);
  }
  if (file_.options.recording.empty()) return true;
  if (!same_recording(recording, file_.options.recording)) return false;
  if (is_found_ && found_ != recording && !file_.inspect)
    refuse_second_name(file_, found_, recording);
  is_found_ = true;
  found_ = recording;
  return true;
}

std::optional<std::size_t> find_recording(const std::vector<std::string>& names,
                                          const LabelText& file) {
  const std::string& wanted = file.options.recording;
  std::optional<std::size_t> best, second;
  int most = -1;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!same_recording(names[i], wanted)) continue;
    const int points = likeness(names[i], wanted);
    if (points < most) continue;
    second = points == most ? best : std::nullopt;
    best = i;
    most = points;
  }
  if (second) refuse_second_name(file, names[*second], names[*best]);
  return best;
}

std::vector<std::string> Recordings::finish(std::int64_t line) const {
  if (file_.inspect || names_.empty()) return names_;
  if (file_.options.recording.empty() && names_.size() > 1)
    throw DataError(fmt::format(
        "{}:{}: it has labels of {} recordings, {} and others; name the recording to read",
        file_.name, line, names_.size(), shown(names_[0])));
  if (!is_found_ && !file_.options.recording.empty())
    throw DataError(fmt::format("{}:{}: it has no labels of the recording {}, but of {}{}",
                                file_.name, line, shown(file_name(file_.options.recording)),
                                shown(names_[0]), names_.size() > 1 ? " and others" : ""));
  return names_;
}

const std::string& plain_label(const LabelSegment& segment, std::string_view separators) {
  if (segment.label.empty() || segment.label.find_first_of(separators) != std::string::npos)
    throw UsageError(fmt::format(
        "label {} cannot stand in this label format; write a TextGrid or a CSV file instead",
        shown(segment.label)));
  return segment.label;
}

std::string plain_name(const LabelOutput& output, const char* unnamed,
                       std::string_view separators) {
  std::string name = std::filesystem::path(output.recording).stem().string();
  if (name.empty()) return unnamed;
  if (name.find_first_of(separators) != std::string::npos || trim(name) != name) refuse_name(name);
  return name;
}

void refuse_name(std::string_view name) {
  throw UsageError(
      fmt::format("the recording's name {} cannot stand in this label format; rename the "
                  "recording, or write a TextGrid or a CSV file instead",
                  shown(name)));
}

}  // namespace segfuse::data
