#pragma once
// Stretches of a recording, and recordings, that nobody has looked at.

#include <vector>

#include "segfuse/data.h"

namespace segfuse::data {

/// The fill label that marks them: no label file can have it.
inline constexpr const char* kUnlabelled = "\x01unlabelled";

/// The recording without its segments of the label kUnlabelled: one example for each stretch
/// between them, whose features begin and end at the nearest frames. Their ids tell where:
/// "a@1.25s". A recording without such segments stays as it is; stretches that are shorter than a
/// frame are left out.
std::vector<Example> labelled_parts(Example example, double hop_seconds);

}  // namespace segfuse::data
