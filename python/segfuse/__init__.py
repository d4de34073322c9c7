"""segfuse: exact semi-Markov conditional random fields, and compiled functions over arrays.

The functions of the CRF work on NumPy, JAX and PyTorch arrays; `segfuse.torch` has autograd and a
module. `help(segfuse.semicrf)` has the model, `help(segfuse.log_partition)` the inputs and shapes.
`segfuse.compile` and `segfuse.grad` turn functions over arrays into compiled programs, with the
operations of `segfuse.ops`; `segfuse.Fusion` writes such programs value by value.
"""

from . import ops
from ._compile import CacheInfo, Compiled, compile  # noqa: A004
from ._constraints import Constraints
from ._errors import DataError, DeviceError, Error, InternalError, UsageError
from ._fusion import Fusion, Program
from ._grad import grad, value_and_grad
from ._native import __version__
from ._segmentations import IGNORE, Segmentations
from ._sizes import Size
from ._value import Value
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
    "CacheInfo",
    "Compiled",
    "Constraints",
    "DataError",
    "DeviceError",
    "Error",
    "Fusion",
    "Gradients",
    "IGNORE",
    "InternalError",
    "Posteriors",
    "Program",
    "SegmentationLists",
    "Segmentations",
    "Size",
    "UsageError",
    "Value",
    "__version__",
    "boundary_within",
    "compile",
    "cross_entropy",
    "duration_buckets",
    "duration_gradient",
    "duration_parameters",
    "duration_scores",
    "entropy",
    "expected_durations",
    "get_threads",
    "grad",
    "k_best",
    "kl",
    "log_partition",
    "log_partition_and_gradients",
    "loss",
    "loss_and_gradients",
    "max_marginal",
    "minimum_risk",
    "ops",
    "partial_loss",
    "partial_loss_and_gradients",
    "posteriors",
    "sample",
    "sample_prior",
    "score",
    "segment_posteriors",
    "set_threads",
    "value_and_grad",
    "viterbi",
]
