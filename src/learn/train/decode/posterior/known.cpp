#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "base/os/file.h"
#include "base/sizes.h"
#include "learn/data/label_files.h"
#include "learn/data/text.h"
#include "learn/train/decode/orders.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

/// Of what no label covers; no name that a label has.
constexpr const char* kNotKnown = "\x1f not known";

/// Gaps between whose ends no boundary of frames lies are none.
void close_gaps(Annotation& annotation, double hop_seconds) {
  const auto boundary = [&](double seconds) {  // as to_frames() rounds
    return std::floor(seconds / hop_seconds + 0.5 + 1e-6);
  };
  std::erase_if(annotation.segments, [&](const LabelSegment& s) {
    return s.label == kNotKnown && boundary(s.start) == boundary(s.end);
  });
}

/// What no label covers at the ends is as little known as a gap. The recording may end anywhere in
/// its last frame.
void mark_ends(Annotation& annotation, const RecordingSize& size) {
  std::vector<LabelSegment>& segments = annotation.segments;
  if (segments.empty()) return;
  const double end = static_cast<double>(size.frames) * size.hop_seconds;
  if (segments.front().label == kNotKnown)
    segments.front().start = 0;
  else if (segments.front().start >= size.hop_seconds / 2)
    segments.insert(segments.begin(), {0, segments.front().start, kNotKnown, 0});
  const double last = segments.back().end;
  if (segments.back().label == kNotKnown)
    segments.back().end = std::max(last, end);
  else if (end - last >= size.hop_seconds * (1 - 1e-6))
    segments.push_back({last, end, kNotKnown, 0});
}

/// The file's segments as frames, the unknown ones with the label behind those of the model; empty
/// where there is no file.
std::vector<FrameSegment> segments_in(const std::filesystem::path& folder,
                                      const std::filesystem::path& recording,
                                      const Alphabet& labels, bool any_label,
                                      const RecordingSize& size) {
  std::vector<std::filesystem::path> files =
      data::files_with_endings(folder / recording.stem(), data::label_endings());
  std::erase(files, recording);
  const std::filesystem::path file =
      data::choose_label_file(std::move(files), "", false, recording.string()).labels;
  if (file.empty()) return {};
  LabelOptions how;
  how.sample_rate = size.sample_rate;
  how.recording = recording.filename().string();
  how.fill_label = kNotKnown;
  FrameOptions options;
  options.fill_label = kNotKnown;
  options.allow_unknown = any_label;
  std::vector<std::string> names = labels.labels();
  names.push_back(kNotKnown);
  Annotation annotation = read_labels(file, how);
  for (const LabelSegment& s : annotation.segments)
    if (!any_label && s.label != kNotKnown && !labels.find(s.label))
      throw DataError(fmt::format("{}:{}: label {} is not among the {} labels of the model",
                                  annotation.source, s.line, data::shown(s.label), labels.size()));
  close_gaps(annotation, size.hop_seconds);
  mark_ends(annotation, size);
  return to_frames(annotation, Alphabet(names), size.hop_seconds, size.frames, options).segments;
}

}  // namespace

void check_folders(const KnownFolders& folders) {
  for (const auto& [name, folder] :
       {std::pair("--boundaries", &folders.boundaries), {"--known", &folders.labels}})
    if (!folder->empty() && !path_is_directory(*folder))
      throw UsageError(
          fmt::format("{}: {} is not a directory of label files", name, folder->string()));
}

Known known_of(const KnownFolders& folders, const std::filesystem::path& recording,
               const Alphabet& labels, const RecordingSize& size) {
  Known known;
  if (!folders.boundaries.empty())
    for (const FrameSegment& s : segments_in(folders.boundaries, recording, labels, true, size)) {
      known.starts.resize(at(size.frames));
      if (s.start > 0) known.starts[at(s.start)] = 1;
    }
  if (folders.labels.empty()) return known;
  for (const FrameSegment& s : segments_in(folders.labels, recording, labels, false, size)) {
    known.label.resize(at(size.frames), -1);
    if (s.label < labels.size()) std::fill_n(known.label.begin() + s.start, s.duration, s.label);
  }
  return known;
}

}  // namespace segfuse::learn
