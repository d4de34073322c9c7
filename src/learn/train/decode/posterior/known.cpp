#include <fmt/core.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/os/file.h"
#include "base/sizes.h"
#include "learn/data/label_files.h"
#include "learn/train/decode/orders.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

/// Of what no label covers; no name that a label has.
constexpr const char* kNotKnown = "\x1f not known";

std::vector<std::string_view> label_endings() {
  std::vector<std::string_view> endings;
  for (const LabelFormatInfo& format : label_formats())
    for (const std::string_view ending : format.endings)
      if (std::ranges::find(endings, ending) == endings.end()) endings.push_back(ending);
  return endings;
}

/// The file's segments as frames, the unknown ones with the label behind those of the model; empty
/// where there is no file.
std::vector<FrameSegment> segments_in(const std::filesystem::path& folder,
                                      const std::filesystem::path& recording,
                                      const Alphabet& labels, bool any_label,
                                      const RecordingSize& size) {
  std::vector<std::filesystem::path> files =
      data::files_with_endings(folder / recording.stem(), label_endings());
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
  return to_frames(read_labels(file, how), Alphabet(names), size.hop_seconds, size.frames, options)
      .segments;
}

}  // namespace

void check_folders(const KnownFolders& folders) {
  for (const auto& [name, folder] :
       {std::pair("--boundaries", &folders.boundaries), {"--known", &folders.labels}})
    if (!folder->empty() && !path_is_directory(*folder))
      throw UsageError(
          fmt::format("{}: {} is no directory of label files", name, folder->string()));
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
