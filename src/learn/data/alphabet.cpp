#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "base/os/file.h"
#include "base/text.h"
#include "base/toml_reader.h"
#include "learn/data/text.h"
#include "segfuse/data.h"
#include "segfuse/error.h"

namespace segfuse {

Alphabet::Alphabet(std::vector<std::string> labels) : labels_(std::move(labels)) {
  for (std::size_t i = 0; i < labels_.size(); ++i) {
    if (labels_[i].empty()) throw UsageError(fmt::format("label {} of the alphabet is empty", i));
    if (!ids_.emplace(labels_[i], static_cast<std::int32_t>(i)).second)
      throw UsageError(fmt::format("the alphabet has label {} twice", data::shown(labels_[i])));
  }
}

Alphabet Alphabet::of(std::span<const Annotation> annotations) {
  std::set<std::string> labels;
  for (const Annotation& annotation : annotations)
    for (const LabelSegment& segment : annotation.segments) labels.insert(segment.label);
  return Alphabet(std::vector<std::string>(labels.begin(), labels.end()));
}

const std::string& Alphabet::label(std::int64_t id) const {
  if (id < 0 || id >= size())
    throw UsageError(fmt::format("label id {}; the alphabet has {} labels", id, size()));
  return labels_[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> Alphabet::find(std::string_view label) const {
  const auto found = ids_.find(std::string(label));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

std::optional<std::string> FoldingMap::fold(const std::string& label) const {
  const auto found = to_.find(label);
  return found == to_.end() ? std::optional<std::string>(label) : found->second;
}

namespace {

std::optional<std::string> folding_target(std::string_view text) {
  if (text.empty()) return std::nullopt;
  return std::string(text);
}

FoldingMap folding_from_toml(const std::string& text, const std::string& name) {
  const TomlReader document = TomlReader::parse(text, name);
  const TomlReader table = document.section("fold");
  FoldingMap map;
  for (const std::string& from : table.keys()) map.set(from, folding_target(table.string(from)));
  document.refuse_unknown();
  if (map.empty()) throw DataError(fmt::format("{}: no table [fold] of from = \"to\"", name));
  return map;
}

FoldingMap folding_from_tsv(const std::string& text, const std::string& name) {
  FoldingMap map;
  std::set<std::string> seen;
  std::int64_t number = 0;
  if (text.find('\t') == std::string::npos)
    throw DataError(fmt::format(
        "{}: no line has a tab; expected \"from TAB to\" (or from alone, to delete it)", name));
  for (const std::string_view line : split_lines(text)) {
    ++number;
    if (trim(line).empty() || line.starts_with('#')) continue;
    const std::vector<std::string_view> fields = split(line, '\t');
    const std::string from(trim(fields[0]));
    if (fields.size() > 2 || from.empty())
      throw DataError(fmt::format("{}:{}: {} fields between tabs; expected \"from TAB to\"", name,
                                  number, fields.size()));
    if (!seen.insert(from).second)
      throw DataError(fmt::format("{}:{}: {} is folded twice", name, number, data::shown(from)));
    map.set(from, fields.size() == 2 ? folding_target(trim(fields[1])) : std::nullopt);
  }
  return map;
}

}  // namespace

FoldingMap read_folding_map(const std::filesystem::path& path) {
  const std::string name = path.string();
  const std::string text = data::to_utf8(read_file(path), name);
  return data::extension_of(name) == ".toml" ? folding_from_toml(text, name)
                                             : folding_from_tsv(text, name);
}

Annotation fold(const Annotation& annotation, const FoldingMap& map, JoinedCounts* joined) {
  Annotation out{{}, annotation.duration, annotation.source};
  const double start = annotation.segments.empty() ? 0 : annotation.segments.front().start;
  const std::string* former = nullptr;  // the label, before folding, of what was kept last
  for (const LabelSegment& segment : annotation.segments) {
    const std::optional<std::string> label = map.fold(segment.label);
    const bool joins = label && former != nullptr && *label == out.segments.back().label &&
                       segment.label != *former;
    if (label) former = &segment.label;
    if (joins && joined != nullptr) ++(*joined)[*label];
    if (!out.segments.empty() && (joins || !label)) out.segments.back().end = segment.end;
    if (joins || !label) continue;
    // At the start of the recording `start` lies before deleted segments.
    out.segments.push_back(
        {out.segments.empty() ? start : segment.start, segment.end, *label, segment.line});
  }
  if (out.segments.empty() && !annotation.segments.empty())
    throw DataError(fmt::format("{}: the folding map deletes every label", annotation.source));
  return out;
}

}  // namespace segfuse
