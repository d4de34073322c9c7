#pragma once
// What recordings hold, in files or in memory.

#include <span>
#include <string_view>

#include "segfuse/data/formats.h"

namespace segfuse::data {

/// read_values() of its file, or what its caller holds. DataError for audio and commands.
Tensor values_of(const Recording& recording);

/// read_labels() of its file, or what its caller holds: options.recording is set here.
Annotation labels_of(const Recording& recording, LabelOptions options);

/// What a number that is not finite should have been: larger ones become infinite in f32.
std::string_view expected_instead(float value);
/// DataError naming the first that is not finite; they are counted from `first` on.
void check_finite(const Tensor& values, std::string_view name, std::int64_t first_row = 0);
void check_finite(const Audio& audio, std::int64_t first = 0);

/// The times of a segment of frames.
LabelSegment to_seconds(const FrameSegment& segment, const Alphabet& alphabet, double hop_seconds);

/// Deals those without a split, by their places; returns whether any had one.
bool deal_splits(std::span<std::optional<Split>> splits);

}  // namespace segfuse::data
