#include "learn/train/decode/alternatives.h"

#include <fmt/ranges.h>

#include <iterator>

#include "base/json/json.h"
#include "base/os/file.h"
#include "learn/data/text.h"
#include "learn/train/decode/posterior/frame_rows.h"
#include "segfuse/data/formats.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

Json list_of(const std::vector<Alternative>& alternatives, const Alphabet& labels, double hop,
             double duration) {
  Json list = Json::array();
  for (const Alternative& a : alternatives) {
    Json segments = Json::array();
    for (const LabelSegment& s : to_annotation(a.segments, labels, hop, duration).segments)
      segments.push_back({s.start, s.end, s.label});
    list.push_back({{"log_probability", a.log_probability}, {"segments", segments}});
  }
  return list;
}

/// Whether a link leads to no file, as those of git-annex to files that were not fetched do. Such a
/// recording is not passed over: reading it gives the error.
bool leads_nowhere(const std::filesystem::path& link) {
  std::error_code failure;
  const std::filesystem::file_status status = std::filesystem::status(link, failure);
  return status.type() == std::filesystem::file_type::not_found || failure;
}

/// Those in a folder, then those in the folders in it.
void add_folder(const std::filesystem::path& folder, const std::filesystem::path& below,
                const std::function<bool(const std::filesystem::path&)>& is_recording,
                const std::filesystem::path& out, std::vector<FoundRecording>& files) {
  std::error_code failure;
  std::vector<std::filesystem::path> inside;
  for (const std::filesystem::path& path : list_directory(folder)) {
    const bool link = std::filesystem::is_symlink(std::filesystem::symlink_status(path, failure));
    if (!link && path_is_directory(path)) {
      if (!std::filesystem::equivalent(path, out, failure)) inside.push_back(path);
    } else if (is_recording(path) &&
               (std::filesystem::is_regular_file(path, failure) || (link && leads_nowhere(path)))) {
      files.push_back({path, below});
    }
  }
  for (const std::filesystem::path& path : inside)
    add_folder(path, below / path.filename(), is_recording, out, files);
}

}  // namespace

std::vector<FoundRecording> recording_files(const std::vector<std::filesystem::path>& inputs,
                                            bool values, const std::filesystem::path& out) {
  std::vector<FoundRecording> files;
  for (const std::filesystem::path& input : inputs) {
    if (input == "-") {
      files.push_back({"/dev/stdin", {}});
      continue;
    }
    if (!path_exists(input))
      throw DataError(fmt::format("{}: no such file or directory", input.string()));
    if (!path_is_directory(input)) {
      files.push_back({input, {}});
      continue;
    }
    const std::size_t before = files.size();
    add_folder(input, {}, recordings_of_folder(input, values), out, files);
    if (files.size() == before)
      throw DataError(fmt::format("{}: no {} files ({}) in this directory or below", input.string(),
                                  values ? "value" : "audio",
                                  fmt::join(values ? value_endings() : audio_endings(), ", ")));
  }
  return files;
}

std::filesystem::path labels_path(const std::filesystem::path& folder,
                                  const std::filesystem::path& recording, LabelFormat format) {
  return folder / label_file_name(recording, format);
}

std::string alternatives_json(const Decoded& decoded, const Alphabet& labels, double hop_seconds,
                              double duration) {
  Json json = Json::object();
  if (!decoded.best.empty()) json["best"] = list_of(decoded.best, labels, hop_seconds, duration);
  if (!decoded.samples.empty())
    json["samples"] = list_of(decoded.samples, labels, hop_seconds, duration);
  return json_text(json) + "\n";
}

void posteriors_csv(const Decoded& decoded, const Alphabet& labels, double hop_seconds,
                    const Outputs::Put& put) {
  constexpr std::size_t kPart = 1 << 16;  // bytes that are put at a time
  const auto classes = static_cast<std::size_t>(labels.size());
  const bool boundary = decoded.frames ? decoded.frames->has_boundary() : !decoded.boundary.empty();
  std::string text = boundary ? "time,boundary" : "time";
  for (const std::string& label : labels.labels()) text += "," + data::csv_field(label);
  text += "\n";
  const auto add = [&](std::int64_t t, std::span<const float> of_labels, float starts) {
    auto out = std::back_inserter(text);
    fmt::format_to(out, "{:.4f}", static_cast<double>(t) * hop_seconds);
    if (boundary) fmt::format_to(out, ",{:.6g}", starts);
    for (const float p : of_labels) fmt::format_to(out, ",{:.6g}", p);
    text += "\n";
    if (text.size() < kPart) return;
    put(text);
    text.clear();
  };
  if (decoded.frames) decoded.frames->for_rows(add);
  for (std::size_t t = 0; t * classes < decoded.label.size(); ++t)
    add(static_cast<std::int64_t>(t), std::span(decoded.label).subspan(t * classes, classes),
        boundary ? decoded.boundary[t] : 0);
  put(text);
}

Annotation to_annotation(const Decoded& decoded, const Alphabet& labels, double hop_seconds,
                         double duration) {
  std::vector<FrameSegment> segments;
  for (const DecodedSegment& d : decoded.segments) segments.push_back(d.segment);
  return segfuse::to_annotation(segments, labels, hop_seconds, duration);
}

}  // namespace segfuse::learn
