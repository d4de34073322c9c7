#include "learn/train/decode/alternatives.h"

#include <fmt/format.h>

#include <iterator>

#include "base/json/json.h"
#include "base/os/file.h"
#include "learn/data/text.h"
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

}  // namespace

std::vector<std::filesystem::path> recording_files(const std::vector<std::filesystem::path>& inputs,
                                                   bool values) {
  std::vector<std::filesystem::path> files;
  for (const std::filesystem::path& input : inputs) {
    if (!path_exists(input))
      throw DataError(fmt::format("{}: no such file or directory", input.string()));
    if (!path_is_directory(input)) {
      files.push_back(input);
      continue;
    }
    std::vector<std::filesystem::path> inside;
    std::error_code failure;
    const auto is_recording = recordings_of_folder(input, values);
    for (const std::filesystem::path& path : list_directory(input))
      if (is_recording(path) && std::filesystem::is_regular_file(path, failure))
        inside.push_back(path);
    if (inside.empty())
      throw DataError(fmt::format("{}: no {} files ({}) in this directory", input.string(),
                                  values ? "value" : "audio",
                                  fmt::join(values ? value_endings() : audio_endings(), ", ")));
    files.insert(files.end(), inside.begin(), inside.end());
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

std::string posteriors_csv(const Decoded& decoded, const Alphabet& labels, double hop_seconds) {
  const auto classes = static_cast<std::size_t>(labels.size());
  std::string text = decoded.boundary.empty() ? "time" : "time,boundary";
  for (const std::string& label : labels.labels()) text += "," + data::csv_field(label);
  text += "\n";
  for (std::size_t t = 0; t * classes < decoded.label.size(); ++t) {
    auto out = std::back_inserter(text);
    fmt::format_to(out, "{:.4f}", static_cast<double>(t) * hop_seconds);
    if (!decoded.boundary.empty()) fmt::format_to(out, ",{:.6g}", decoded.boundary[t]);
    for (std::size_t c = 0; c < classes; ++c)
      fmt::format_to(out, ",{:.6g}", decoded.label[t * classes + c]);
    text += "\n";
  }
  return text;
}

Annotation to_annotation(const Decoded& decoded, const Alphabet& labels, double hop_seconds,
                         double duration) {
  std::vector<FrameSegment> segments;
  for (const DecodedSegment& d : decoded.segments) segments.push_back(d.segment);
  return segfuse::to_annotation(segments, labels, hop_seconds, duration);
}

}  // namespace segfuse::learn
