#pragma once
// The contents of recordings, in files or in memory.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "segfuse/data/formats.h"

namespace segfuse::data {

class FeatureStore;

/// read_values() of its file, or what its caller holds. DataError for audio and commands.
Tensor values_of(const Recording& recording);

/// read_labels() of its file, or what its caller holds: options.recording is set here.
Annotation labels_of(const Recording& recording, LabelOptions options);

/// segfuse::load_examples(), whose features the store keeps. Of long recordings no more than some
/// is in memory at a time where the store has a folder.
std::vector<Example> load_examples(std::span<const Recording> recordings,
                                   const FeatureExtractor& extractor, const LabelOptions& labels,
                                   const FoldingMap& folding, const Context& context,
                                   FeatureStore& store);

/// What a number that is not finite should have been: larger ones become infinite in f32.
std::string_view expected_instead(float value);
/// For messages: the source, or "the recording" where samples came without one.
std::string name_of(const Audio& audio);
/// DataError naming the first that is not finite; they are counted from `first` on.
void check_finite(const Tensor& values, std::string_view name, std::int64_t first_row = 0);
void check_finite(const Audio& audio, std::int64_t first = 0);

/// The times of a segment of frames.
LabelSegment to_seconds(const FrameSegment& segment, const Alphabet& alphabet, double hop_seconds);

}  // namespace segfuse::data
