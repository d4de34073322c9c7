"""segfuse: exact semi-Markov conditional random fields.

The functions work on NumPy, JAX and PyTorch arrays; `segfuse.torch` has autograd and a module.
`help(segfuse.semicrf)` has the model, `help(segfuse.log_partition)` the inputs and their shapes.
"""

from ._errors import DataError, DeviceError, Error, InternalError, UsageError
from ._native import __version__
from ._segmentations import IGNORE, Segmentations
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
    "IGNORE",
    "DataError",
    "DeviceError",
    "Error",
    "Gradients",
    "InternalError",
    "Posteriors",
    "Segmentations",
    "UsageError",
    "__version__",
    "entropy",
    "get_threads",
    "log_partition",
    "log_partition_and_gradients",
    "loss",
    "loss_and_gradients",
    "posteriors",
    "sample_prior",
    "score",
    "segment_posteriors",
    "set_threads",
    "viterbi",
]
