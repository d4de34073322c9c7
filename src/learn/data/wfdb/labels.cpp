// The annotators of a WFDB record as the tiers of its labels.

#include <fmt/core.h>

#include <algorithm>

#include "base/os/file.h"
#include "base/text.h"
#include "learn/data/text.h"
#include "learn/data/wfdb/wfdb.h"
#include "segfuse/data/formats.h"
#include "segfuse/error.h"

namespace segfuse::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRhythmSuffix = ".rhythm";

/// Endings of files that stand beside records and are no annotations.
bool is_of_others(const fs::path& path) {
  constexpr std::string_view kOthers[] = {
      ".dat", ".hea",  ".mat",  ".edf", ".txt", ".html", ".htm",   ".pdf",  ".png",
      ".jpg", ".svg",  ".gif",  ".md",  ".ps",  ".zip",  ".gz",    ".json", ".xml",
      ".xws", ".hea-", ".hea~", ".bak", ".key", ".inf",  ".breath"};
  const std::string ending = extension_of(path.string());
  return ending.size() < 2 || ending.ends_with('~') ||
         std::ranges::find(kOthers, ending) != std::end(kOthers) || is_audio_file(path) ||
         is_values_file(path) || is_label_file(path);
}

bool is_text(const fs::path& path) {
  const FileMap file(path);
  const std::string_view head = file.text().substr(0, 512);
  return !head.empty() && std::ranges::all_of(head, [](char c) {
    return (c >= ' ' && c <= '~') || c == '\n' || c == '\r' || c == '\t';
  });
}

/// Those that experts made come first, as the databases of PhysioNet call them.
std::size_t rank_of(const std::string& annotator) {
  constexpr std::string_view kExperts[] = {"atr", "q1c", "q2c", "man", "ii"};
  return static_cast<std::size_t>(std::ranges::find(kExperts, annotator) - std::begin(kExperts));
}

/// Where a file lies; list_directory() and its like refuse an empty path.
fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

double seconds_of(const WfdbHeader& header, std::string_view name, const fs::path& folder) {
  std::int64_t samples = header.samples.value_or(0);
  if (!header.samples)
    for (const WfdbPart& part : header.parts) samples += part.samples;
  if (samples == 0)
    samples = wfdb_length(header, name,
                          [&](const std::string& file) { return WfdbBytes(folder / file); });
  return static_cast<double>(samples) / header.rate;
}

}  // namespace

RawLabels read_wfdb_labels(const LabelText& file) {
  const fs::path path(file.name);
  const WfdbHeader header = parse_wfdb_header(file.bytes, file.name);
  const double seconds = seconds_of(header, file.name, path.parent_path());
  std::vector<std::string> annotators;
  std::string wanted = file.inspect ? "" : file.options.tier;
  if (wanted.ends_with(kRhythmSuffix)) wanted.resize(wanted.size() - kRhythmSuffix.size());
  if (!wanted.empty() && path_exists(fs::path(path).replace_extension(wanted)))
    annotators.push_back(wanted);
  else
    annotators = wfdb_annotators(path);
  RawLabels out;
  for (const std::string& annotator : annotators) {
    const fs::path from = fs::path(path).replace_extension(annotator);
    const WfdbAnnotations annotations = parse_wfdb_annotations(read_file(from), from.string());
    for (RawTier& tier : wfdb_tiers(annotations, annotator, header.rate, seconds, from.string()))
      out.tiers.push_back(std::move(tier));
  }
  return out;
}

std::vector<std::string> wfdb_annotators(const fs::path& header) {
  std::vector<std::string> out;
  const std::string stem = header.stem().string() + ".";
  const std::vector<fs::path> own = wfdb_parts(header);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_of(header))) {
    const fs::path& path = entry.path();
    const std::string name = path.filename().string();
    if (!name.starts_with(stem) || name.find('.', stem.size()) != std::string::npos) continue;
    std::error_code failure;
    if (is_of_others(path) || !entry.is_regular_file(failure)) continue;
    if (std::ranges::find(own, header.parent_path() / name) != own.end() || is_text(path)) continue;
    out.push_back(name.substr(stem.size()));
  }
  std::ranges::sort(out, {},
                    [](const std::string& name) { return std::pair(rank_of(name), name); });
  return out;
}

std::optional<int> wfdb_lead(const fs::path& header, std::string_view tier) {
  const WfdbHeader read = parse_wfdb_header(read_file(header), header.string());
  for (std::size_t i = 0; i < read.signals.size(); ++i)
    if (lower(read.signals[i].description) == lower(tier)) return static_cast<int>(i);
  return std::nullopt;
}

bool is_wfdb(const fs::path& path) { return extension_of(path.string()) == ".hea"; }

bool has_wfdb_annotations(const fs::path& recording) {
  return is_wfdb(recording) && !wfdb_annotators(recording).empty();
}

std::vector<fs::path> wfdb_parts(const fs::path& header) {
  const WfdbHeader read = parse_wfdb_header(read_file(header), header.string());
  std::vector<fs::path> out;
  for (const WfdbSignal& signal : read.signals) out.push_back(header.parent_path() / signal.file);
  for (const WfdbPart& part : read.parts)
    out.push_back(header.parent_path() / (part.name + ".hea"));
  return out;
}

}  // namespace segfuse::data
