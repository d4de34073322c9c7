"""The semi-Markov CRF on NumPy, JAX and PyTorch arrays.

A segmentation of a row of L frames is a list of segments (start s, duration d, label y) that tile
[0, L), with 1 <= d <= K and 0 <= y < C. Its score is

    initial[y_1] + final[y_n] + sum over i >= 2 of transition[y_{i-1}, y_i]
    + sum over i of (emission[s_i : s_i + d_i, y_i].sum() + duration[d_i - 1, y_i]
                     + start[s_i, y_i] + end[s_i + d_i - 1, y_i]
                     + segment_scores[s_i, d_i - 1, y_i])
    + sum over i >= 2 of transition_scores[s_i, y_{i-1}, y_i]

and its probability exp(score - log_partition). Scores are natural logarithms; -inf forbids.

`SemiCRF` is such a model over the rows of a batch, with a method for each thing that can be asked
of it; the functions of `segfuse` (`segfuse.viterbi`, ...) are these methods, given the model's
arrays. Arrays are read in place whatever their strides, and results are arrays of the library that
`emission` belongs to. Numbers per row are float64 (float32 in JAX unless it is set to keep 64
bits); gradients and posteriors have the dtype of the inputs. The GIL is released while the engine
works, and results are the same bits for any number of threads.

PyTorch tensors may lie on a CUDA device: log_partition, loss, score, posteriors, viterbi and the
gradients work there, on the current stream, and wait for it to report errors (`segfuse.torch` does
not wait, and has autograd); segment_scores and transition_scores are for the CPU.

What needs constraints, a tail, alternatives, samples, divergences or risks runs in the log domain,
in double, and is slower by a small factor.
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
