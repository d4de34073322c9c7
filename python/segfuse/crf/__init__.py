"""The semi-Markov CRF on NumPy, JAX and PyTorch arrays.

A segmentation of a row of L frames is a list of segments (start s, duration d, label y) that tile
[0, L), with 1 <= d <= K and 0 <= y < C. Its score is

    initial[y_1] + final[y_n] + sum over i >= 2 of transition[y_{i-1}, y_i]
    + sum over i of (emission[s_i : s_i + d_i, y_i].sum() + duration[d_i - 1, y_i]
                     + start[s_i, y_i] + end[s_i + d_i - 1, y_i]
                     + segment_scores[s_i, d_i - 1, y_i])
    + sum over i >= 2 of transition_scores[s_i, y_{i-1}, y_i]

and its probability is exp(score - log_partition). Scores are natural logarithms; a score of -inf
forbids every segmentation that uses it.

`SemiCRF` is such a model over the rows of a batch, with a method for each quantity; the functions
of `segfuse` (`segfuse.viterbi`, ...) are these methods, with the arrays of the model as arguments.
Arrays are read in place with any strides, and results are arrays of the library of `emission`.
Results with one number per row are float64 (float32 in JAX unless it is set to keep 64 bits);
gradients and posteriors have the dtype of the inputs. Calls release the GIL, and results are
bit-identical for any number of threads.

PyTorch tensors may be on a CUDA device. log_partition, loss, score, posteriors, viterbi and the
gradients are computed there, on the current stream. They wait for the stream to report errors;
`segfuse.torch` does not wait, and has autograd. segment_scores and transition_scores need the CPU.

Computations with constraints or a tail, k_best, samples, divergences and minimum_risk run in the
log domain in double precision, and are slower by a small factor.
"""

from ._constraints import Constraints
from ._durations import (
    duration_buckets,
    duration_gradient,
    duration_parameters,
    duration_scores,
    sample_prior,
)
from ._segmentations import IGNORE, SegmentationLists, Segmentations
from ._semicrf import Gradients, Posteriors, SemiCRF

__all__ = [
    "Constraints",
    "Gradients",
    "IGNORE",
    "Posteriors",
    "SegmentationLists",
    "Segmentations",
    "SemiCRF",
    "duration_buckets",
    "duration_gradient",
    "duration_parameters",
    "duration_scores",
    "sample_prior",
]
