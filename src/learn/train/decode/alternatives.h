#pragma once
// Files beside the labels of a decoded recording: other segmentations, posteriors of frames.

#include <string>

#include "learn/train/decode/decoder.h"
#include "learn/train/files/model_file.h"

namespace segfuse::learn {

/// JSON: {"best": [{"log_probability", "segments": [[start, end, label], ..]}, ..], "samples": ..},
/// times in seconds.
std::string alternatives_json(const Decoded& decoded, const Alphabet& labels, double hop_seconds,
                              double duration);

/// CSV, a line a frame: its time, P(a segment starts here) where the head knows, P(label) for each.
std::string posteriors_csv(const Decoded& decoded, const Alphabet& labels, double hop_seconds);

}  // namespace segfuse::learn
