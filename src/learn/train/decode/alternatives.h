#pragma once
// What is decoded, and the files of a decoded recording: labels, other segmentations, posteriors.

#include <filesystem>
#include <string>
#include <vector>

#include "learn/train/decode/decoder.h"
#include "learn/train/files/model_file.h"

namespace segfuse::learn {

/// Files as they are; of directories the recordings in them, sorted by name.
std::vector<std::filesystem::path> recording_files(const std::vector<std::filesystem::path>& inputs,
                                                   bool values);

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
std::string posteriors_csv(const Decoded& decoded, const Alphabet& labels, double hop_seconds);

}  // namespace segfuse::learn
