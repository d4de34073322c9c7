"""The engine on arrays of any library with DLPack. Not a public interface."""

from typing import Any

import numpy as np

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
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...
    def frames(self) -> np.ndarray: ...
    def write_labels(self, labels: Any, ignore: int) -> None: ...

def set_threads(threads: int) -> None: ...
def get_threads() -> int: ...
def log_partition(
    problem: Problem, log_partition: Any, gradients: tuple[Any, ...] | None, weights: Any
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
    label: Any,
    start: Any,
    end: Any,
    boundary: Any,
    duration: Any,
    entropy: Any,
    log_partition: Any,
) -> None: ...
def segment_posteriors(problem: Problem, segments: Segments, probability: Any) -> None: ...
def viterbi(
    problem: Problem, score: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...
def sample_prior(
    initial: Any, transition: Any, duration: Any, rows: int, min_frames: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]: ...
