#pragma once
// Ways to make the potentials of semicrf.h: duration scores from a few parameters, and chains
// without durations. docs/semicrf.md has the formulas.

#include <cstdint>
#include <vector>

#include "segfuse/semicrf.h"

namespace segfuse::semicrf {

/// How log scores over durations d = 1 .. K follow from a label's parameters. Every real number is
/// a legal parameter (for table and buckets -inf too).
enum class DurationFamily {
  kTable,             ///< K parameters: the scores themselves
  kGeometric,         ///< logit(q): (1-q) q^(d-1)
  kNegativeBinomial,  ///< log(r), logit(q): of d-1, with r > 0; its mode is away from 1 when r > 1
  kPoisson,           ///< log(rate): of d-1
  kLogNormal,         ///< mu, log(sigma): the log-normal density at d
  kBuckets,           ///< one score for each of some ranges of durations, evenly wide in log(d)
};

struct DurationModel {
  DurationFamily family = DurationFamily::kTable;
  std::int64_t longest = 1;  ///< K
  std::int64_t buckets = 8;  ///< of kBuckets: at most this many; every one has a whole duration
  bool normalise = true;     ///< scores of a label sum to probability 1 over 1 .. K
};

/// Parameters of a label: the rows P of the parameter matrix.
std::int64_t duration_parameters(const DurationModel& model);

/// First duration of each bucket of kBuckets, rising from 1; the last bucket ends at K.
std::vector<std::int64_t> duration_buckets(const DurationModel& model);

/// Scores (K, C), as Potentials::duration takes them, from parameters (P, C). T is float or double;
/// computed in double. A parameter that is NaN or +inf, or (but in table and buckets) -inf, and
/// normalised scores that are all -inf are a DataError.
template <class T>
void duration_scores(const DurationModel& model, const View<const T, 2>& parameters,
                     const View<T, 2>& scores);

/// The chain rule: the gradient by the parameters (P, C) from that by the scores (K, C).
template <class T>
void duration_gradient(const DurationModel& model, const View<const T, 2>& parameters,
                       const View<const std::type_identity_t<T>, 2>& score_gradient,
                       const View<T, 2>& parameter_gradient);

/// A linear-chain CRF, or a hidden Markov model given as log probabilities: every segment is one
/// frame (K = 1). Borrows its inputs.
template <class T>
class LinearChain {
 public:
  LinearChain(const View<const T, 3>& emission, const View<const T, 2>& transition,
              const View<const T, 1>& initial = {}, const View<const T, 1>& final = {},
              const Lengths& lengths = {});
  LinearChain(LinearChain&&) noexcept = default;
  LinearChain& operator=(LinearChain&&) noexcept = default;
  /// For every function of Engine and Inference. Valid while this object and its inputs live.
  const Potentials<T>& potentials() const { return potentials_; }

 private:
  std::vector<T> duration_;
  Potentials<T> potentials_;
};

/// Labels per frame as the segmentations of a linear chain, one segment a frame. As
/// segmentations_from_labels; `rules.max_duration` and `rules.long_runs` are not used.
template <class Int>
Segmentations chain_from_labels(const View<const Int, 2>& labels, const Lengths& lengths,
                                LabelRules rules);

}  // namespace segfuse::semicrf
