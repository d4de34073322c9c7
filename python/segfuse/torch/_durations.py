"""Duration scores of a module: a free table, or a family with few parameters per class."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._errors import UsageError
from .._numbers import whole
from ..crf import duration_buckets


class Durations(nn.Module):
    """Base class of the duration families. A call returns (K, C) scores; row d - 1 has those of
    duration d.

    The parameters `theta` (P, C) are those of `segfuse.duration_scores`.

    Args:
        num_classes: C.
        max_duration: K.
        normalise: whether exp(scores) of each class sum to 1 over durations 1 to K.
    """

    theta: nn.Parameter
    _first: tuple[float, ...] = ()
    """What the rows of `theta` start as; nothing where a class of the user makes it."""

    def __init__(self, num_classes: int, max_duration: int, *, normalise: bool = True) -> None:
        super().__init__()
        self.num_classes = whole("num_classes", num_classes, 1)
        self.max_duration = whole("max_duration", max_duration, 1)
        self.normalise = normalise

    def forward(self) -> Tensor:
        scores = self.raw_scores()
        return F.log_softmax(scores, dim=0) if self.normalise else scores

    def raw_scores(self) -> Tensor:
        """The scores (K, C) before normalisation."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return (
            f"num_classes={self.num_classes}, max_duration={self.max_duration}, "
            f"normalise={self.normalise}"
        )

    def _start(self, *values: float) -> None:
        """Makes `theta`, every class with the same values."""
        self._first = values
        self.theta = nn.Parameter(torch.empty(len(values), self.num_classes))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Sets `theta` to its initial values, also if it was made on the meta device."""
        if not self._first:
            return
        theta = self.theta
        values = torch.tensor(self._first, dtype=theta.dtype, device=theta.device)
        values = values[:, None].repeat(1, self.num_classes)
        if hasattr(theta, "device_mesh"):
            spread = torch.distributed.tensor.distribute_tensor
            values = spread(values, theta.device_mesh, theta.placements)
        theta.copy_(values)

    def _half_range(self) -> float:
        """(K - 1) / 2, the mean of d - 1 that families start from; positive for K = 1 too."""
        return max(self.max_duration - 1, 1) / 2.0

    def _extra_frames(self) -> Tensor:
        """d - 1 = 0 .. K - 1 as a column."""
        theta = self.theta
        return torch.arange(self.max_duration, dtype=theta.dtype, device=theta.device)[:, None]


class TableDurations(Durations):
    """One free score for each duration and class, by default not normalised; starts as the
    uniform distribution over 1..K."""

    def __init__(self, num_classes: int, max_duration: int, *, normalise: bool = False) -> None:
        super().__init__(num_classes, max_duration, normalise=normalise)
        self._start(*[-math.log(max_duration)] * max_duration)

    def raw_scores(self) -> Tensor:
        return self.theta


class GeometricDurations(Durations):
    """Geometric: P(d) = (1 - q) q^(d - 1), theta = logit q; the initial mean, before truncation to
    K, is (K + 1) / 2."""

    def __init__(self, num_classes: int, max_duration: int, *, normalise: bool = True) -> None:
        super().__init__(num_classes, max_duration, normalise=normalise)
        self._start(math.log(self._half_range()))

    def raw_scores(self) -> Tensor:
        return self._extra_frames() * F.logsigmoid(self.theta) + F.logsigmoid(-self.theta)


class NegativeBinomialDurations(Durations):
    """d - 1 is negative binomial, theta = log r, logit q; initially r = 2, and the mean is
    (K + 1) / 2."""

    def __init__(self, num_classes: int, max_duration: int, *, normalise: bool = True) -> None:
        super().__init__(num_classes, max_duration, normalise=normalise)
        self._start(math.log(2.0), math.log(self._half_range() / 2.0))

    def raw_scores(self) -> Tensor:
        x, r, logit = self._extra_frames(), self.theta[0].exp(), self.theta[1]
        ways = torch.lgamma(x + r) - torch.lgamma(r) - torch.lgamma(x + 1.0)
        return ways + r * F.logsigmoid(-logit) + x * F.logsigmoid(logit)


class PoissonDurations(Durations):
    """d - 1 is Poisson, theta = log rate; the initial mean, before truncation to K, is
    (K + 1) / 2."""

    def __init__(self, num_classes: int, max_duration: int, *, normalise: bool = True) -> None:
        super().__init__(num_classes, max_duration, normalise=normalise)
        self._start(math.log(self._half_range()))

    def raw_scores(self) -> Tensor:
        x = self._extra_frames()
        return x * self.theta - self.theta.exp() - torch.lgamma(x + 1.0)


class LogNormalDurations(Durations):
    """The log-normal density at d, theta = mu, log sigma; the initial median is (K + 1) / 2."""

    def __init__(self, num_classes: int, max_duration: int, *, normalise: bool = True) -> None:
        super().__init__(num_classes, max_duration, normalise=normalise)
        self._start(math.log(self._half_range() + 1.0), 0.0)

    def raw_scores(self) -> Tensor:
        log_d = self._extra_frames().log1p()
        mean, log_deviation = self.theta
        z = (log_d - mean) * (-log_deviation).exp()
        return -log_d - log_deviation - 0.5 * math.log(2.0 * math.pi) - 0.5 * z * z


class BucketDurations(Durations):
    """A score for each range of durations; the ranges are equally wide in log d. Initially, all
    durations have the same score."""

    def __init__(
        self, num_classes: int, max_duration: int, *, buckets: int = 8, normalise: bool = True
    ) -> None:
        super().__init__(num_classes, max_duration, normalise=normalise)
        first = duration_buckets(max_duration, buckets=buckets).tolist()
        ends = [*first[1:], max_duration + 1]
        self._bucket = [i for i, end in enumerate(ends) for _ in range(first[i], end)]
        self._index = torch.tensor(self._bucket)
        self._start(*[0.0] * len(first))

    def raw_scores(self) -> Tensor:
        # Not a buffer: DDP would broadcast it in each step, and on the meta device it would be
        # lost.
        if self._index.device != self.theta.device:
            with torch.inference_mode(False):  # training may come later
                self._index = torch.tensor(self._bucket, device=self.theta.device)
        return self.theta[self._index]


FAMILIES: dict[str, type[Durations]] = {
    "table": TableDurations,
    "geometric": GeometricDurations,
    "negative_binomial": NegativeBinomialDurations,
    "poisson": PoissonDurations,
    "log_normal": LogNormalDurations,
    "buckets": BucketDurations,
}


def make_durations(family: str, num_classes: int, max_duration: int) -> Durations:
    if family not in FAMILIES:
        raise UsageError(f"durations is {family!r}, expected one of {', '.join(FAMILIES)}")
    return FAMILIES[family](num_classes, max_duration)
