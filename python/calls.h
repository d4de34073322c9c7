#pragma once
// The calls of the engines on the caller's arrays. Calls of several Python threads run one after
// another, without the GIL.

#include <optional>

#include "problem.h"
#include "scope.h"
#include "segfuse/semicrf_models.h"

namespace segfuse::python {

/// Threads of the CPU engine; 0 stands for the cores that this process may use.
void set_threads(int threads);
int get_threads();

/// Nine arrays or None, in the order of semicrf::Gradients, to be written.
using GradientArrays = nb::tuple;

// Every output below is an array to be written, or None when it is not wanted. A scope may be null:
// all that the scores allow, without a tail.

void log_partition(const Problem& problem, const Scope* scope, nb::handle log_partition,
                   const std::optional<GradientArrays>& gradients, nb::handle tail_gradient,
                   nb::handle weights);

void loss(const Problem& problem, const Segments& gold, nb::handle loss, nb::handle log_partition,
          nb::handle score, const std::optional<GradientArrays>& gradients, nb::handle weights);

void score(const Problem& problem, const Segments& segments, nb::handle score);

void posteriors(const Problem& problem, const Scope* scope, nb::handle label, nb::handle start,
                nb::handle end, nb::handle boundary, nb::handle duration, nb::handle entropy,
                nb::handle log_partition);

void segment_posteriors(const Problem& problem, const Segments& segments, nb::handle probability);

/// (row_pointer, start, duration, label) of the best segmentations, as NumPy arrays.
nb::tuple viterbi(const Problem& problem, const Scope* scope, nb::handle score);

/// The same into device memory with room for B * T segments; row_pointer says how many there are.
void viterbi_on_device(const Problem& problem, nb::handle row_pointer, nb::handle start,
                       nb::handle duration, nb::handle label, nb::handle score);

/// Gold segmentations from labels (B, T), int32 or int64, in the memory of a CUDA device, into
/// columns with room for B * T segments. Lengths may be None; frames (B), int64, gets the frames of
/// each row, or is None. A row with a fault has no segment.
void segments_on_device(nb::handle labels, nb::handle lengths, const semicrf::LabelRules& rules,
                        std::uintptr_t stream, nb::handle row_pointer, nb::handle start,
                        nb::handle duration, nb::handle label, nb::handle frames);

/// Waits for a stream of a CUDA device; DataError for the first fault that its calls have met.
void check_device(int device, std::uintptr_t stream);

/// As viterbi, for segmentations drawn without emissions; scores are float64 NumPy arrays.
nb::tuple sample_prior(nb::handle initial, nb::handle transition, nb::handle duration,
                       std::int64_t rows, std::int64_t min_frames, std::uint64_t seed);

// Inference within a scope.

/// The first segmentation of each list, in the form of viterbi: an empty list is a row without a
/// path, which is empty and has -inf.
semicrf::Segmentations first_of_each(semicrf::SegmentationLists lists,
                                     const semicrf::View<double, 1>& score);

void partial_loss(const Problem& problem, const Scope& scope, nb::handle loss,
                  const std::optional<GradientArrays>& gradients, nb::handle tail_gradient,
                  nb::handle weights);

/// Eight arrays or None, in the order of semicrf::Gradients, then the tail's, to be read.
using DirectionArrays = nb::tuple;
/// What they are for: semicrf::AlongResult.
void derivatives_along(const Problem& problem, const Scope& scope, bool partial,
                       const DirectionArrays& direction,
                       const std::optional<DirectionArrays>& other, nb::handle derivative,
                       nb::handle curvature, const std::optional<GradientArrays>& product,
                       nb::handle tail_product, nb::handle weights);

/// (list_pointer, row_pointer, start, duration, label, score) as NumPy arrays.
nb::tuple sample(const Problem& problem, const Scope& scope, std::int64_t n, std::uint64_t seed);
nb::tuple k_best(const Problem& problem, const Scope& scope, std::int64_t n);

void cross_entropy(const Problem& p, const Problem& q, nb::handle result);
void kl(const Problem& p, const Problem& q, nb::handle result);

void boundary_within(const Problem& problem, const Scope& scope, std::int64_t tolerance,
                     nb::handle probability);
void expected_durations(const Problem& problem, const Scope& scope, nb::handle counts);
void max_marginal(const Problem& problem, const Scope& scope, nb::handle labels,
                  std::int32_t ignore);
/// As viterbi; f1 (B) is written.
nb::tuple minimum_risk(const Problem& problem, const Scope& scope, std::int64_t tolerance,
                       nb::handle f1);

// Duration scores from a few parameters; arrays are float64.

/// Rows of the parameter matrix, and the first duration of each bucket (buckets only).
nb::tuple duration_layout(const semicrf::DurationModel& model);
void duration_scores(const semicrf::DurationModel& model, nb::handle parameters, nb::handle scores);
void duration_gradient(const semicrf::DurationModel& model, nb::handle parameters,
                       nb::handle score_gradient, nb::handle parameter_gradient);

}  // namespace segfuse::python
