#pragma once
// The calls of the engine on the caller's arrays. This is the one place that picks the engine by
// device. Calls of several Python threads run one after another, without the GIL.

#include <optional>

#include "problem.h"

namespace segfuse::python {

/// Threads of the CPU engine; 0 stands for the cores that this process may use.
void set_threads(int threads);
int get_threads();

/// Seven arrays or None, in the order of semicrf::Gradients, to be written.
using GradientArrays = nb::tuple;

// Every output below is an array to be written, or None when it is not wanted.

void log_partition(const Problem& problem, nb::handle log_partition,
                   const std::optional<GradientArrays>& gradients, nb::handle weights);

void loss(const Problem& problem, const Segments& gold, nb::handle loss, nb::handle log_partition,
          nb::handle score, const std::optional<GradientArrays>& gradients, nb::handle weights);

void score(const Problem& problem, const Segments& segments, nb::handle score);

void posteriors(const Problem& problem, nb::handle label, nb::handle start, nb::handle end,
                nb::handle boundary, nb::handle duration, nb::handle entropy,
                nb::handle log_partition);

void segment_posteriors(const Problem& problem, const Segments& segments, nb::handle probability);

/// (row_pointer, start, duration, label) of the best segmentations, as NumPy arrays.
nb::tuple viterbi(const Problem& problem, nb::handle score);

/// The same for segmentations drawn without emissions; scores are float64 NumPy arrays.
nb::tuple sample_prior(nb::handle initial, nb::handle transition, nb::handle duration,
                       std::int64_t rows, std::int64_t min_frames, std::uint64_t seed);

}  // namespace segfuse::python
