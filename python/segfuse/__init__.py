"""segfuse: exact semi-Markov conditional random fields, and compiled functions over arrays.

`segfuse.crf.SemiCRF` is a CRF over arrays of NumPy, JAX and PyTorch; the functions of `segfuse` are
its methods, and `segfuse.torch` has autograd and a module. `help(segfuse.crf)` has the model.
`segfuse.Model` is a trained model; `segfuse.train`, `segfuse.study` and `segfuse.evaluate` are the
commands as functions. `segfuse.compile` and `segfuse.grad` turn functions over arrays into compiled
programs, with the operations of `segfuse.ops`; `segfuse.Fusion` writes such programs value by
value.
"""

from . import crf, ops
from ._compile.compiled import CacheInfo, Compiled, compile  # noqa: A004
from ._compile.grad import grad, value_and_grad
from ._compile.scan import scan
from ._errors import DataError, DeviceError, Error, InternalError, UsageError
from ._models import LiveSegment, LiveStream, Model, Prediction, ScoredSegments, Segment
from ._native import __version__
from ._pretrained import PretrainedModel, models
from ._program.fusion import Fusion
from ._program.program import Program
from ._program.sizes import Size
from ._program.value import Value
from ._threads import get_threads, set_threads
from ._training import evaluate, study, train
from .crf import (
    IGNORE,
    Constraints,
    Gradients,
    Posteriors,
    SegmentationLists,
    Segmentations,
    SemiCRF,
    duration_buckets,
    duration_gradient,
    duration_parameters,
    duration_scores,
    sample_prior,
)
from .crf._functions import (
    boundary_within,
    cross_entropy,
    entropy,
    expected_durations,
    k_best,
    kl,
    log_partition,
    log_partition_and_gradients,
    loss,
    loss_and_gradients,
    max_marginal,
    minimum_risk,
    partial_loss,
    partial_loss_and_gradients,
    posteriors,
    sample,
    score,
    segment_posteriors,
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
    "LiveSegment",
    "LiveStream",
    "Model",
    "Posteriors",
    "Prediction",
    "PretrainedModel",
    "Program",
    "ScoredSegments",
    "Segment",
    "SegmentationLists",
    "Segmentations",
    "SemiCRF",
    "Size",
    "UsageError",
    "Value",
    "__version__",
    "boundary_within",
    "compile",
    "crf",
    "cross_entropy",
    "duration_buckets",
    "duration_gradient",
    "duration_parameters",
    "duration_scores",
    "entropy",
    "evaluate",
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
    "models",
    "ops",
    "partial_loss",
    "partial_loss_and_gradients",
    "posteriors",
    "sample",
    "sample_prior",
    "scan",
    "score",
    "segment_posteriors",
    "set_threads",
    "study",
    "train",
    "value_and_grad",
    "viterbi",
]
