"""segfuse: exact semi-Markov conditional random fields.

The functions work on NumPy, JAX and PyTorch arrays; `segfuse.torch` has autograd and a module.
`help(segfuse.semicrf)` has the model, `help(segfuse.log_partition)` the inputs and their shapes.
"""

from ._constraints import Constraints
from ._errors import DataError, DeviceError, Error, InternalError, UsageError
from ._native import __version__
from ._segmentations import IGNORE, Segmentations
from .inference import (
    SegmentationLists,
    boundary_within,
    cross_entropy,
    duration_buckets,
    duration_gradient,
    duration_parameters,
    duration_scores,
    expected_durations,
    k_best,
    kl,
    max_marginal,
    minimum_risk,
    partial_loss,
    partial_loss_and_gradients,
    sample,
)
from .semicrf import (
    Gradients,
    Posteriors,
    entropy,
    get_threads,
    log_partition,
    log_partition_and_gradients,
    loss,
    loss_and_gradients,
    posteriors,
    sample_prior,
    score,
    segment_posteriors,
    set_threads,
    viterbi,
)

__all__ = [
    "Constraints",
    "DataError",
    "DeviceError",
    "Error",
    "Gradients",
    "IGNORE",
    "InternalError",
    "Posteriors",
    "SegmentationLists",
    "Segmentations",
    "UsageError",
    "__version__",
    "boundary_within",
    "cross_entropy",
    "duration_buckets",
    "duration_gradient",
    "duration_parameters",
    "duration_scores",
    "entropy",
    "expected_durations",
    "get_threads",
    "k_best",
    "kl",
    "log_partition",
    "log_partition_and_gradients",
    "loss",
    "loss_and_gradients",
    "max_marginal",
    "minimum_risk",
    "partial_loss",
    "partial_loss_and_gradients",
    "posteriors",
    "sample",
    "sample_prior",
    "score",
    "segment_posteriors",
    "set_threads",
    "viterbi",
]
