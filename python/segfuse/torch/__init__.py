"""The semi-Markov CRF for PyTorch: a class and functions with autograd, and a module.

They are opaque operations for `torch.compile`, and work under autocast (half precision is converted
to float32). First and second derivatives by every score are exact, in reverse and in forward mode,
and under `torch.func`'s grad, vjp, jvp, jacrev, jacfwd, hessian and vmap. Third derivatives raise
an error, and so do second derivatives on a CUDA device. Models with segment_scores or
transition_scores have first derivatives in reverse mode on the CPU; all others raise an error.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import _native, crf
from .._arrays import need_layout
from .._errors import UsageError
from .._numbers import need_plain, whole
from ..crf import IGNORE, Constraints, Posteriors, Segmentations
from ..crf._segmentations import split_of
from . import _autograd
from ._compile import alive
from ._durations import (
    BucketDurations,
    Durations,
    GeometricDurations,
    LogNormalDurations,
    NegativeBinomialDurations,
    PoissonDurations,
    TableDurations,
    make_durations,
)
from ._ops import DIFFERENTIABLE, KNOWN, NAMES, SEGMENTS, TENSORS
from ._watch.session import check_numerics, watch

__all__ = [
    "BucketDurations",
    "Durations",
    "Explanation",
    "GeometricDurations",
    "LogNormalDurations",
    "NegativeBinomialDurations",
    "PoissonDurations",
    "SemiCRF",
    "SemiMarkovCRF",
    "TableDurations",
    "check",
    "check_numerics",
    "explain",
    "log_partition",
    "loss",
    "partial_loss",
    "watch",
]

if TYPE_CHECKING:
    from ._compile.explain import Explanation, explain


def __getattr__(name: str) -> Any:
    """What needs PyTorch's compiler, which takes seconds to import, is imported when it is used."""
    if name in ("Explanation", "explain"):
        return getattr(importlib.import_module("._compile.explain", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


Reduction = Literal["mean", "sum", "none"]
Gold: TypeAlias = Any
"""Labels per frame (B, T), `Segmentations`, or a list of (start, duration, label) for each row."""

_HALF = (torch.float16, torch.bfloat16)


def _check_tensor(name: str, score: Any) -> None:
    """UsageError for what no operation here takes."""
    if not isinstance(score, Tensor):
        raise UsageError(
            f"{name} is a {type(score).__name__}, expected a torch.Tensor; pass "
            f"torch.as_tensor({name}), or use the functions of segfuse for arrays of other "
            "libraries"
        )
    need_layout(name, score)


def _needed(scores: tuple[Tensor | None, ...]) -> int:
    """Bit i is set if the backward pass needs the gradient by score i."""
    if not torch.is_grad_enabled() or any(map(_autograd.has_tangent, scores)):
        return 0
    return sum(1 << i for i, s in enumerate(scores) if s is not None and s.requires_grad)


def _integers(name: str, values: Any) -> Tensor | None:
    if values is None or isinstance(values, Tensor):
        return values
    need_plain(name, values)
    try:
        made = torch.as_tensor(values)
        # The backward pass reads an array again, which may have changed by then.
        return made if isinstance(values, (list, tuple)) else made.clone()
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(
            f"{name} is a {type(values).__name__}, expected a tensor, an array or lists of numbers"
        ) from None


def _by_kind(gold: Gold) -> dict[str, Any]:
    """Gold segmentations as the argument of `SemiCRF.loss` that they are."""
    if not isinstance(gold, (Tensor, np.ndarray, Segmentations, Iterable)):
        raise UsageError(
            f"gold is a {type(gold).__name__}, expected labels per frame (a tensor or an array), "
            "Segmentations, or one list of (start, duration, label) a row"
        )
    labels = isinstance(gold, (Tensor, np.ndarray))
    return {"labels": gold} if labels else {"segments": gold}


def _gold_inputs(labels: Any, segments: Any) -> tuple[Tensor | None, ...]:
    """labels, row_pointer and the three columns of the segments."""
    if (labels is None) == (segments is None):
        raise UsageError("expected either labels or segments, not both and not neither")
    if labels is not None:
        return _integers("labels", labels), None, None, None, None
    if not isinstance(segments, Segmentations):
        segments = Segmentations.from_rows(segments)
    columns = (segments.row_pointer, segments.start, segments.duration, segments.label)
    return None, *map(_integers, NAMES[SEGMENTS], columns)


def _constraint_inputs(constraints: Constraints | None) -> tuple[Tensor | None, ...]:
    c = Constraints() if constraints is None else constraints
    if not isinstance(c, Constraints):
        raise UsageError(f"constraints is of type {type(c).__name__}, expected Constraints")
    known = (c.allowed, c.transitions, c.min_duration, c.max_duration, c.labels, c.boundaries)
    return tuple(map(_integers, NAMES[KNOWN], known))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SemiCRF(crf.SemiCRF):
    """`segfuse.crf.SemiCRF` for tensors; half precision is converted to float32.

    `log_partition`, `loss` and `partial_loss` are differentiable by every score, and do not wait
    for a CUDA device (see `check`). Their `reduction` is ``"none"``, or ``"sum"`` or ``"mean"``
    over the rows; the last two compute the gradients together with the value. The other methods
    record no derivatives.
    """

    def __post_init__(self) -> None:
        for name in DIFFERENTIABLE:
            score = getattr(self, name)
            if score is not None:
                _check_tensor(name, score)
                if score.dtype in _HALF:
                    object.__setattr__(self, name, score.float())

    def log_partition(self, reduction: Reduction = "none") -> Tensor:
        """The log of the sum of exp(score) over all segmentations.

        Returns:
            (B,) or a scalar, in float64: log-partitions are large, and their differences matter.
        """
        return self._reduced(reduction)

    def loss(
        self,
        labels: Any = None,
        *,
        segments: Any = None,
        reduction: Reduction = "mean",
        ignore: int = IGNORE,
        long_runs: str = "error",
    ) -> Tensor:
        """-log p(gold segmentation), never negative; arguments as in `segfuse.crf.SemiCRF.loss`.

        Returns:
            A scalar, or (B,), in the dtype of `emission` (float32 for half precision).
        """
        self._need_none("loss", "constraints")
        numbers = (ignore, split_of(long_runs))
        value = self._reduced(reduction, _gold_inputs(labels, segments), numbers)
        return value.to(self.emission.dtype)

    def partial_loss(self, reduction: Reduction = "mean") -> Tensor:
        """-log P(the constraints hold), the loss for partial labels.

        Returns:
            A scalar, or (B,), in the dtype of `emission` (float32 for half precision).
        """
        return self._reduced(reduction, partial=True).to(self.emission.dtype)

    def _reduced(
        self,
        reduction: str,
        gold: tuple[Tensor | None, ...] = (None,) * 5,
        numbers: tuple[Any, ...] = (IGNORE, False),
        *,
        partial: bool = False,
    ) -> Tensor:
        """Value and gradients come from one call of the engine, unless each row may get a weight of
        its own in the backward pass."""
        scores = tuple(getattr(self, name) for name in DIFFERENTIABLE)
        known = _constraint_inputs(self.constraints)
        lengths = _integers("lengths", self.lengths)
        inputs = (*scores, lengths, *gold, *known, *numbers, partial)
        for name, values in zip(NAMES[len(scores) : TENSORS], inputs[len(scores) :], strict=False):
            if values is not None:
                need_layout(name, values)
        # PyTorch would take one tensor without content for a wish to know shapes alone.
        if len({x.is_meta for x in inputs if isinstance(x, Tensor)}) > 1:
            raise UsageError("found tensors on the meta device beside others, expected all or none")
        needed = _needed(scores)
        if reduction not in ("mean", "sum", "none"):
            raise UsageError(f'reduction is {reduction!r}, expected "mean", "sum" or "none"')
        if reduction == "none":
            return _autograd.rows(*inputs)
        batch = self.emission.shape[0]
        if needed == 0:
            rows = _autograd.rows(*inputs)
            return rows.mean() if reduction == "mean" and batch > 0 else rows.sum()
        weight = 1.0 / batch if reduction == "mean" and batch > 0 else 1.0
        weights = torch.full((batch,), weight, dtype=torch.float64, device=self.emission.device)
        return _autograd.weighted(weights, *inputs, needed)


def log_partition(
    emission: Tensor,
    transition: Tensor,
    duration: Tensor,
    *,
    initial: Tensor | None = None,
    final: Tensor | None = None,
    start: Tensor | None = None,
    end: Tensor | None = None,
    lengths: Tensor | None = None,
    constraints: Constraints | None = None,
    tail: Tensor | None = None,
    segment_scores: Tensor | None = None,
    transition_scores: Tensor | None = None,
    reduction: Reduction = "none",
) -> Tensor:
    """The log of the sum of exp(score) over all segmentations, differentiable by every score.

    Args:
        emission, transition, duration, initial, final, start, end, lengths, constraints, tail,
        segment_scores, transition_scores: as in `segfuse.log_partition`; half precision is raised
            to float32.
        reduction: ``"none"``, or ``"sum"`` or ``"mean"`` over the rows, which compute the gradients
            along with the value.

    Returns:
        (B,) or a scalar, in float64: log-partitions are large, and their differences matter.

    Raises:
        UsageError, DataError: see `segfuse.log_partition`.
    """
    scores: dict[str, Any] = {"initial": initial, "final": final, "start": start, "end": end}
    scope: dict[str, Any] = {"lengths": lengths, "constraints": constraints, "tail": tail}
    scope |= {"segment_scores": segment_scores, "transition_scores": transition_scores}
    return SemiCRF(emission, transition, duration, **scores, **scope).log_partition(reduction)


def loss(
    emission: Tensor,
    transition: Tensor,
    duration: Tensor,
    gold: Gold,
    *,
    initial: Tensor | None = None,
    final: Tensor | None = None,
    start: Tensor | None = None,
    end: Tensor | None = None,
    lengths: Tensor | None = None,
    tail: Tensor | None = None,
    segment_scores: Tensor | None = None,
    transition_scores: Tensor | None = None,
    reduction: Reduction = "mean",
    ignore: int = IGNORE,
    long_runs: str = "error",
) -> Tensor:
    """-log p(gold segmentation), never negative, differentiable by every score.

    Args:
        emission, transition, duration, initial, final, start, end, lengths, tail, segment_scores,
        transition_scores: as in `segfuse.log_partition`; half precision is raised to float32.
        gold: (B, T) int32 or int64 labels per frame, or `Segmentations`, or a list of
            (start, duration, label) for each row. Without `lengths`, a row of labels ends at its
            first `ignore`.
        reduction: ``"mean"`` or ``"sum"`` over the rows, which compute the gradients together with
            the value, or ``"none"``.
        ignore: the label of padding.
        long_runs: what to do with a run of labels longer than K: ``"error"`` or ``"split"``; with a
            tail, no run is too long; with K = 1, every frame is a segment.

    Returns:
        A scalar, or (B,), in the dtype of `emission` (float32 for half precision).

    Raises:
        UsageError, DataError: see `segfuse.loss`.
    """
    scores: dict[str, Any] = {"initial": initial, "final": final, "start": start, "end": end}
    scores |= {"segment_scores": segment_scores, "transition_scores": transition_scores}
    model = SemiCRF(emission, transition, duration, **scores, lengths=lengths, tail=tail)
    return model.loss(**_by_kind(gold), reduction=reduction, ignore=ignore, long_runs=long_runs)


def partial_loss(
    emission: Tensor,
    transition: Tensor,
    duration: Tensor,
    constraints: Constraints,
    *,
    initial: Tensor | None = None,
    final: Tensor | None = None,
    start: Tensor | None = None,
    end: Tensor | None = None,
    lengths: Tensor | None = None,
    tail: Tensor | None = None,
    segment_scores: Tensor | None = None,
    transition_scores: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """-log P(the constraints hold), the loss for partial labels, differentiable by every score.

    Args:
        emission, transition, duration, initial, final, start, end, lengths, tail, segment_scores,
        transition_scores: as in `segfuse.log_partition`; half precision is raised to float32.
        constraints: the known labels and boundaries; see `segfuse.Constraints`.
        reduction: as in `loss`.

    Returns:
        A scalar, or (B,), in the dtype of `emission` (float32 for half precision).

    Raises:
        UsageError, DataError: see `segfuse.partial_loss`.
    """
    scores: dict[str, Any] = {"initial": initial, "final": final, "start": start, "end": end}
    scope: dict[str, Any] = {"lengths": lengths, "constraints": constraints, "tail": tail}
    scope |= {"segment_scores": segment_scores, "transition_scores": transition_scores}
    return SemiCRF(emission, transition, duration, **scores, **scope).partial_loss(reduction)


def check(device: Any = None) -> None:
    """Waits for the current stream of a CUDA device, and raises the first error of its calls.

    The functions of this module do not wait for a device. They therefore cannot raise an error at
    once for a NaN score or a gold segment that is too long; the outputs of such a call are
    unspecified. The same applies to an index out of range in a model that is compiled with
    backend="segfuse"; for such models, `check` waits for all devices.

    Raises:
        DataError: a call since the last check had a wrong score or gold segment; the message names
            its place.
        UsageError: an index was out of range.
    """
    for part in list(alive):
        part.compiled.check()
    stream = torch.cuda.current_stream(device)
    _native.check_device(stream.device.index, stream.cuda_stream)


class SemiMarkovCRF(nn.Module):
    """A semi-Markov CRF layer, whose parameters are transition, duration, initial and final scores.

    The encoder computes the emissions: `num_scores` numbers for each frame, which is C, or 3 C with
    boundary scores (label, segment start, segment end).

    Initially the scores are log-probabilities of uniform distributions: over the next label, over
    the first label, and over durations 1 to K (for other families, see `segfuse.torch.Durations`).
    `final` is 0. With zero emissions the layer is therefore a normalised Markov chain over
    segments, and does not prefer segmentations with many short segments.

    Args:
        num_classes: C.
        max_duration: K, the length of the longest segment in frames; 1 gives a linear-chain CRF.
        durations: ``"table"`` (K free scores for each class), ``"geometric"``,
            ``"negative_binomial"``, ``"poisson"``, ``"log_normal"``, ``"buckets"``, or a module
            that returns (K, C) scores.
        tail: whether segments may be longer than K. Every further frame of a segment of class c
            then scores log q_c, where q_c = sigmoid(`tail_logit`) is initially 1/2. Calls are
            slower by a small factor.
        boundary_scores: whether the emissions have start and end scores after the C label scores.
        self_transitions: whether neighbouring segments may have the same label. Labels per frame
            cannot express such neighbours.
        long_runs: what `loss` does with a run of labels longer than K: ``"error"``, or ``"split"``,
            which divides it into as few segments as possible (this needs self transitions).
        device, dtype: the device and type of the parameters.

    Shapes:
        emission: (B, T, num_scores); lengths: (B,); labels: (B, T), -100 in padding;
        segment_scores: (B, T, K, C) and transition_scores: (T, C, C) or (B, T, C, C), which the
        methods add to the layer's own scores (see `segfuse.crf.SemiCRF`).
    """

    def __init__(
        self,
        num_classes: int,
        max_duration: int,
        *,
        durations: str | nn.Module = "table",
        tail: bool = False,
        boundary_scores: bool = False,
        self_transitions: bool = True,
        long_runs: str = "error",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        num_classes, max_duration = (
            whole("num_classes", num_classes, 1),
            whole("max_duration", max_duration, 1),
        )
        if split_of(long_runs) and not self_transitions:
            raise UsageError(
                'long_runs="split" makes neighbouring segments of one label, which '
                "self_transitions=False forbids"
            )
        self.num_classes = num_classes
        self.max_duration = max_duration
        self.boundary_scores = boundary_scores
        self.self_transitions = self_transitions or num_classes == 1
        self.long_runs = long_runs
        own = isinstance(durations, str)
        if own:
            durations = make_durations(durations, num_classes, max_duration)
        elif not isinstance(durations, nn.Module):
            raise UsageError(
                f"durations is a {type(durations).__name__}, expected a module or the name of a "
                "family"
            )
        self.durations = durations
        self.transition = nn.Parameter(torch.empty(num_classes, num_classes))
        self.initial = nn.Parameter(torch.empty(num_classes))
        self.final = nn.Parameter(torch.empty(num_classes))
        self.tail_logit = nn.Parameter(torch.empty(num_classes)) if tail else None
        self.to(device=device, dtype=dtype)
        self.reset_parameters()
        if own:
            self.durations.reset_parameters()  # with all digits of the dtype

    def reset_parameters(self) -> None:
        """Sets the parameters of this module, except those of `durations`, to their initial values.

        Call it if the layer was made on the meta device, as for PyTorch's layers.
        """
        choices = self.num_classes if self.self_transitions else self.num_classes - 1
        nn.init.constant_(self.transition, -math.log(choices))
        nn.init.constant_(self.initial, -math.log(self.num_classes))
        nn.init.zeros_(self.final)
        if self.tail_logit is not None:
            nn.init.zeros_(self.tail_logit)

    @property
    def num_scores(self) -> int:
        """The number of scores that the encoder computes for a frame: C, or 3 C with boundary
        scores."""
        return self.num_classes * (3 if self.boundary_scores else 1)

    def __prepare_scriptable__(self) -> nn.Module:
        """Asked by torch.jit.script, of modules that hold this one, too."""
        raise UsageError(
            "SemiMarkovCRF cannot be scripted, because its engine is not TorchScript; script the "
            "encoder "
            "alone, or use torch.compile or torch.export"
        )

    def extra_repr(self) -> str:
        return (
            f"num_classes={self.num_classes}, max_duration={self.max_duration}, "
            f"boundary_scores={self.boundary_scores}, self_transitions={self.self_transitions}"
        )

    def scores(self, emission: Tensor) -> dict[str, Any]:
        """The scores of the model, as keyword arguments of the functions of `segfuse` and
        `segfuse.torch`.

        `emission` is divided into views of label, start and end scores; `tail` may be None.
        """
        _check_tensor("emission", emission)
        if emission.dim() != 3 or emission.shape[2] != self.num_scores:
            raise UsageError(
                f"emission has shape {tuple(emission.shape)}, expected (B, T, {self.num_scores})"
            )
        if hasattr(self.transition, "device_mesh"):
            raise UsageError(
                f"transition is a {type(self.transition).__name__}, of which each process holds a "
                "part; FSDP gathers it for a call of the module itself, and for the methods that "
                "torch.distributed.fsdp.register_fsdp_forward_method(module, name) registers"
            )
        start = end = None
        if self.boundary_scores:
            emission, start, end = emission.split(self.num_classes, dim=2)
        transition = self.transition
        if not self.self_transitions:
            same = torch.eye(self.num_classes, dtype=torch.bool, device=transition.device)
            transition = transition.masked_fill(same, -torch.inf)
        duration = self.durations()
        table = (self.max_duration, self.num_classes)
        if duration.shape != table:
            raise UsageError(
                f"durations gives scores of shape {tuple(duration.shape)}, expected (K, C) = "
                f"{table}"
            )
        return {
            "emission": emission,
            "transition": transition,
            "duration": duration,
            "initial": self.initial,
            "final": self.final,
            "start": start,
            "end": end,
            "tail": None if self.tail_logit is None else F.logsigmoid(self.tail_logit),
        }

    def distribution(
        self,
        emission: Tensor,
        lengths: Tensor | None = None,
        constraints: Constraints | None = None,
        *,
        segment_scores: Tensor | None = None,
        transition_scores: Tensor | None = None,
    ) -> SemiCRF:
        """The model over the segmentations of these rows, with all methods of `SemiCRF`."""
        tables = {"segment_scores": segment_scores, "transition_scores": transition_scores}
        return self._model(emission, lengths, constraints, **tables)

    def _model(
        self,
        emission: Tensor,
        lengths: Tensor | None,
        constraints: Constraints | None = None,
        **tables: Tensor | None,
    ) -> SemiCRF:
        """As `distribution`, behind which FSDP would free the scores if it knew of it."""
        scope: dict[str, Any] = {"lengths": lengths, "constraints": constraints}
        return SemiCRF(**self.scores(emission), **scope, **tables)

    def forward(
        self,
        emission: Tensor,
        gold: Gold,
        lengths: Tensor | None = None,
        reduction: Reduction = "mean",
        *,
        segment_scores: Tensor | None = None,
        transition_scores: Tensor | None = None,
    ) -> Tensor:
        """The same as `loss`, for wrappers of modules such as DDP and FSDP."""
        tables = {"segment_scores": segment_scores, "transition_scores": transition_scores}
        return self.loss(emission, gold, lengths, reduction, **tables)

    def loss(
        self,
        emission: Tensor,
        gold: Gold,
        lengths: Tensor | None = None,
        reduction: Reduction = "mean",
        *,
        segment_scores: Tensor | None = None,
        transition_scores: Tensor | None = None,
    ) -> Tensor:
        """-log p(gold segmentation), never negative.

        Args:
            emission: (B, T, num_scores).
            gold: (B, T) int32 or int64 labels with -100 in padding, or `Segmentations`, or a list
                of (start, duration, label) for each row.
            lengths: (B,) frames of each row; without it, a row of labels ends at its first -100.
            reduction: ``"mean"`` or ``"sum"`` over rows, or ``"none"``.
            segment_scores, transition_scores: tables that are added to the layer's scores.

        Returns:
            A scalar, or (B,) for ``"none"``.

        Raises:
            UsageError, DataError: see `segfuse.loss`.
        """
        tables = {"segment_scores": segment_scores, "transition_scores": transition_scores}
        model = self._model(emission, lengths, **tables)
        return model.loss(**_by_kind(gold), reduction=reduction, long_runs=self.long_runs)

    def partial_loss(
        self,
        emission: Tensor,
        constraints: Constraints,
        lengths: Tensor | None = None,
        reduction: Reduction = "mean",
        *,
        segment_scores: Tensor | None = None,
        transition_scores: Tensor | None = None,
    ) -> Tensor:
        """-log P(the constraints hold): the loss for partial labels; see `segfuse.Constraints`."""
        tables = {"segment_scores": segment_scores, "transition_scores": transition_scores}
        return self._model(emission, lengths, constraints, **tables).partial_loss(reduction)

    def log_partition(
        self,
        emission: Tensor,
        lengths: Tensor | None = None,
        constraints: Constraints | None = None,
        *,
        segment_scores: Tensor | None = None,
        transition_scores: Tensor | None = None,
    ) -> Tensor:
        """(B,) float64: The log of the sum of exp(score) over all segmentations, differentiable."""
        tables = {"segment_scores": segment_scores, "transition_scores": transition_scores}
        return self._model(emission, lengths, constraints, **tables).log_partition()

    @torch.no_grad()
    def decode(
        self,
        emission: Tensor,
        lengths: Tensor | None = None,
        constraints: Constraints | None = None,
        *,
        segment_scores: Tensor | None = None,
        transition_scores: Tensor | None = None,
    ) -> Segmentations:
        """The best segmentation of each row, with scores; see `segfuse.viterbi`."""
        tables = {"segment_scores": segment_scores, "transition_scores": transition_scores}
        return self._model(emission, lengths, constraints, **tables).viterbi()

    @torch.no_grad()
    def posteriors(
        self,
        emission: Tensor,
        lengths: Tensor | None = None,
        constraints: Constraints | None = None,
        *,
        segment_scores: Tensor | None = None,
        transition_scores: Tensor | None = None,
    ) -> Posteriors:
        """Probabilities of labels, boundaries and durations, and the entropy; no gradients."""
        tables = {"segment_scores": segment_scores, "transition_scores": transition_scores}
        return self._model(emission, lengths, constraints, **tables).posteriors()
