#pragma once
// What is decoded, and the files of a decoded recording: labels, other segmentations, posteriors.

#include <filesystem>
#include <string>
#include <vector>

#include "base/outputs.h"
#include "learn/train/decode/decoder.h"
#include "learn/train/files/model_file.h"

namespace segfuse::learn {

/// A recording, and the folder below a given directory that it was found in (else empty).
struct FoundRecording {
  std::filesystem::path audio;
  std::filesystem::path folder;
};
/// Files as they are, "-" for standard input; of directories the recordings in them and below them,
/// sorted by name. Where decoded files go, `out`, is not looked at, nor folders that are links.
std::vector<FoundRecording> recording_files(const std::vector<std::filesystem::path>& inputs,
                                            bool values, const std::filesystem::path& out);

/// Segments in seconds, on the recording's time axis.
Annotation to_annotation(const Decoded& decoded, const Alphabet& labels, double hop_seconds,
                         double duration);

/// The label file of a recording. UsageError for kAuto.
std::filesystem::path labels_path(const std::filesystem::path& folder,
                                  const std::filesystem::path& recording, LabelFormat format);

/// JSON: {"best": [{"log_probability", "segments": [[start, end, label], ..]}, ..], "samples": ..},
/// times in seconds.
std::string alternatives_json(const Decoded& decoded, const Alphabet& labels, double hop_seconds,
                              double duration);

/// CSV, a line a frame: its time, P(a segment starts here) where the head knows, P(label) for each.
/// Given to `put` some lines at a time.
void posteriors_csv(const Decoded& decoded, const Alphabet& labels, double hop_seconds,
                    const Outputs::Put& put);

}  // namespace segfuse::learn
