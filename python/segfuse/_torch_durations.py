"""Duration scores of a module: a free table, or a family with few parameters per class."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ._errors import UsageError


class Durations(nn.Module):
    """Base of the duration families; calling one gives (K, C) scores, row d - 1 for duration d."""

    def __init__(self, num_classes: int, max_duration: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.max_duration = max_duration

    def forward(self) -> Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"num_classes={self.num_classes}, max_duration={self.max_duration}"

    def _column(self, values: Tensor) -> Tensor:
        """d - 1 = 0 .. K - 1 as a column of the dtype and device of `values`."""
        count = torch.arange(self.max_duration, dtype=values.dtype, device=values.device)
        return count[:, None]


class TableDurations(Durations):
    """One free score for each duration and class; starts as the uniform distribution over 1..K."""

    def __init__(self, num_classes: int, max_duration: int) -> None:
        super().__init__(num_classes, max_duration)
        self.score = nn.Parameter(torch.full((max_duration, num_classes), -math.log(max_duration)))

    def forward(self) -> Tensor:
        return self.score


class GeometricDurations(Durations):
    """log p + (d - 1) log(1 - p), p = sigmoid(stop) per class; starts with mean (K + 1) / 2."""

    def __init__(self, num_classes: int, max_duration: int) -> None:
        super().__init__(num_classes, max_duration)
        p = 2.0 / (max_duration + 1.0)
        logit = math.log(p) - math.log1p(-min(p, 1.0 - 1e-3))
        self.stop = nn.Parameter(torch.full((num_classes,), logit))

    def forward(self) -> Tensor:
        return F.logsigmoid(self.stop) + self._column(self.stop) * F.logsigmoid(-self.stop)


class PoissonDurations(Durations):
    """d - 1 is Poisson with mean exp(log_mean) per class; starts with mean (K - 1) / 2."""

    def __init__(self, num_classes: int, max_duration: int) -> None:
        super().__init__(num_classes, max_duration)
        mean = max((max_duration - 1) / 2.0, 0.5)
        self.log_mean = nn.Parameter(torch.full((num_classes,), math.log(mean)))

    def forward(self) -> Tensor:
        n = self._column(self.log_mean)
        return n * self.log_mean - self.log_mean.exp() - torch.lgamma(n + 1.0)


class NegativeBinomialDurations(Durations):
    """d - 1 is negative binomial per class: exp(log_shape) = r, sigmoid(stop) = p.

    log G(d - 1 + r) - log G(r) - log G(d) + r log p + (d - 1) log(1 - p), G being the gamma
    function. r = 1 is the geometric family. Starts with r = 2 and mean (K - 1) / 2.
    """

    def __init__(self, num_classes: int, max_duration: int) -> None:
        super().__init__(num_classes, max_duration)
        shape = 2.0
        mean = max((max_duration - 1) / 2.0, 0.5)
        self.log_shape = nn.Parameter(torch.full((num_classes,), math.log(shape)))
        self.stop = nn.Parameter(torch.full((num_classes,), math.log(shape / mean)))

    def forward(self) -> Tensor:
        n, r = self._column(self.stop), self.log_shape.exp()
        ways = torch.lgamma(n + r) - torch.lgamma(r) - torch.lgamma(n + 1.0)
        return ways + r * F.logsigmoid(self.stop) + n * F.logsigmoid(-self.stop)


class LogBucketDurations(Durations):
    """One free score per class for durations 1, 2, 3-4, 5-8, 9-16, ...; all frames of a bucket
    share it, spread evenly. Starts as the uniform distribution over the buckets."""

    bucket: Tensor
    spread: Tensor

    def __init__(self, num_classes: int, max_duration: int) -> None:
        super().__init__(num_classes, max_duration)
        buckets = [(d - 1).bit_length() for d in range(1, max_duration + 1)]
        count = buckets[-1] + 1
        sizes = torch.bincount(torch.tensor(buckets))
        self.register_buffer("bucket", torch.tensor(buckets), persistent=False)
        self.register_buffer("spread", -sizes.log()[self.bucket][:, None], persistent=False)
        self.score = nn.Parameter(torch.full((count, num_classes), -math.log(count)))

    def forward(self) -> Tensor:
        return self.score[self.bucket] + self.spread.to(self.score.dtype)


FAMILIES: dict[str, Callable[[int, int], Durations]] = {
    "table": TableDurations,
    "geometric": GeometricDurations,
    "poisson": PoissonDurations,
    "negative_binomial": NegativeBinomialDurations,
    "log_buckets": LogBucketDurations,
}


def make_durations(family: str, num_classes: int, max_duration: int) -> Durations:
    if family not in FAMILIES:
        raise UsageError(f"durations is {family!r}, expected one of {', '.join(FAMILIES)}")
    return FAMILIES[family](num_classes, max_duration)
