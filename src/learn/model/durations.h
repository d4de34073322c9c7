#pragma once
// How the CRF's scores of durations follow from its parameters "crf.duration".

#include <cstdint>

#include "ir/id.h"
#include "segfuse/semicrf_models.h"

namespace segfuse::ir {
class Builder;
}

namespace segfuse::learn {

struct ModelConfig;

/// Of the semi-Markov head. Scores of families with a formula are log-probabilities over 1 .. K;
/// those of a table are free.
semicrf::DurationModel duration_model(const ModelConfig& config);

/// (P, C) f32 -> (K, C) f32; the parameters themselves where they are a table.
ir::ValId duration_scores(ir::Builder& builder, const ModelConfig& config, ir::ValId parameters);

}  // namespace segfuse::learn
