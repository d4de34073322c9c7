"""The engine on arrays of any library with DLPack. Not a public interface."""

import enum
from typing import Any, TypeAlias, overload

import numpy as np

_Packed: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
_PackedLists: TypeAlias = tuple[
    np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray
]

__version__: str

class Problem:
    def __init__(
        self,
        emission: Any,
        transition: Any,
        duration: Any,
        initial: Any,
        final: Any,
        start: Any,
        end: Any,
        lengths: Any,
        stream: int,
    ) -> None: ...
    @property
    def dtype(self) -> str: ...
    @property
    def batch(self) -> int: ...
    @property
    def frames(self) -> int: ...
    @property
    def classes(self) -> int: ...
    @property
    def max_duration(self) -> int: ...

class Segments:
    def __init__(self, row_pointer: Any, start: Any, duration: Any, label: Any) -> None: ...
    @staticmethod
    def from_labels(
        labels: Any, lengths: Any, max_duration: int, classes: int, ignore: int, split: bool
    ) -> Segments: ...
    @property
    def num_segments(self) -> int: ...
    def arrays(self) -> _Packed: ...
    def frames(self) -> np.ndarray: ...
    def write_labels(self, labels: Any, ignore: int) -> None: ...

class Scope:
    @overload
    def __init__(
        self,
        allowed: Any,
        transition: Any,
        min_duration: Any,
        max_duration: Any,
        label: Any,
        boundary: Any,
        tail: Any,
    ) -> None: ...
    @overload
    def __init__(self, problem: Problem, known: Segments, tail: Any) -> None: ...

class DurationFamily(enum.Enum):
    table = 0
    geometric = 1
    negative_binomial = 2
    poisson = 3
    log_normal = 4
    buckets = 5

class DurationModel:
    def __init__(
        self, family: DurationFamily, longest: int, buckets: int, normalise: bool
    ) -> None: ...

def set_threads(threads: int) -> None: ...
def get_threads() -> int: ...
def log_partition(
    problem: Problem,
    scope: Scope | None,
    log_partition: Any,
    gradients: tuple[Any, ...] | None,
    tail_gradient: Any,
    weights: Any,
) -> None: ...
def loss(
    problem: Problem,
    gold: Segments,
    loss: Any,
    log_partition: Any,
    score: Any,
    gradients: tuple[Any, ...] | None,
    weights: Any,
) -> None: ...
def score(problem: Problem, segments: Segments, score: Any) -> None: ...
def posteriors(
    problem: Problem,
    scope: Scope | None,
    label: Any,
    start: Any,
    end: Any,
    boundary: Any,
    duration: Any,
    entropy: Any,
    log_partition: Any,
) -> None: ...
def segment_posteriors(problem: Problem, segments: Segments, probability: Any) -> None: ...
def viterbi(problem: Problem, scope: Scope | None, score: Any) -> _Packed: ...
def viterbi_on_device(
    problem: Problem, row_pointer: Any, start: Any, duration: Any, label: Any, score: Any
) -> None: ...
def check_device(device: int, stream: int) -> None: ...
def sample_prior(
    initial: Any, transition: Any, duration: Any, rows: int, min_frames: int, seed: int
) -> _Packed: ...
def partial_loss(
    problem: Problem,
    scope: Scope,
    loss: Any,
    gradients: tuple[Any, ...] | None,
    tail_gradient: Any,
    weights: Any,
) -> None: ...
def sample(problem: Problem, scope: Scope, n: int, seed: int) -> _PackedLists: ...
def k_best(problem: Problem, scope: Scope, n: int) -> _PackedLists: ...
def cross_entropy(p: Problem, q: Problem, result: Any) -> None: ...
def kl(p: Problem, q: Problem, result: Any) -> None: ...
def boundary_within(
    problem: Problem, scope: Scope, tolerance: int, probability: Any
) -> None: ...
def expected_durations(problem: Problem, scope: Scope, counts: Any) -> None: ...
def max_marginal(problem: Problem, scope: Scope, labels: Any, ignore: int) -> None: ...
def minimum_risk(problem: Problem, scope: Scope, tolerance: int, f1: Any) -> _Packed: ...
def duration_layout(model: DurationModel) -> tuple[int, np.ndarray]: ...
def duration_scores(model: DurationModel, parameters: Any, scores: Any) -> None: ...
def duration_gradient(
    model: DurationModel, parameters: Any, score_gradient: Any, parameter_gradient: Any
) -> None: ...
