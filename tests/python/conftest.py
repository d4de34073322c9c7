"""What the tests share: random models, and an oracle that lists every segmentation."""

import itertools
import math
import os
import random
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest
from ranks import Groups

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # what most tests expect; test_jax_gpu.py is apart

SCORES = ("emission", "transition", "duration", "initial", "final", "start", "end")


def all_segmentations(length, longest, classes):
    """Every list of (start, duration, label) that tiles [0, length)."""
    if length == 0:
        yield []
        return
    for cuts in itertools.product((False, True), repeat=length - 1):
        bounds = [0] + [t + 1 for t, cut in enumerate(cuts) if cut] + [length]
        durations = np.diff(bounds)
        if max(durations) > longest:
            continue
        for labels in itertools.product(range(classes), repeat=len(durations)):
            yield [(int(s), int(d), c) for s, d, c in zip(bounds, durations, labels, strict=False)]


@dataclass
class Model:
    """Scores of a batch in float64 NumPy, and what they mean by definition."""

    emission: np.ndarray
    transition: np.ndarray
    duration: np.ndarray
    initial: np.ndarray | None = None
    final: np.ndarray | None = None
    start: np.ndarray | None = None
    end: np.ndarray | None = None
    lengths: list = field(default_factory=list)
    tail: np.ndarray | None = None

    def inputs(self, convert=lambda array: array):
        """Keyword arguments for the functions of segfuse."""
        scores = {name: getattr(self, name) for name in SCORES}
        if self.tail is not None:
            scores["tail"] = self.tail
        scores = {name: None if x is None else convert(x) for name, x in scores.items()}
        return scores | {"lengths": convert(np.array(self.lengths))}

    def use(self, name, index):
        """The score with that name and index; 0 where it was not given."""
        array = getattr(self, name)
        return 0.0 if array is None else array[index]

    def score(self, row, segments):
        total = 0.0
        longest = len(self.duration)
        for i, (s, frames, c) in enumerate(segments):
            d = min(frames, longest)
            total += self.emission[row, s : s + frames, c].sum() + self.duration[d - 1, c]
            total += (frames - d) * self.use("tail", c)
            total += self.use("start", (row, s, c)) + self.use("end", (row, s + frames - 1, c))
            if i == 0:
                total += self.use("initial", c)
            else:
                before = segments[i - 1][2]
                by_duration = self.transition.ndim == 3
                total += self.transition[(d - 1, before, c) if by_duration else (before, c)]
        return total + (self.use("final", segments[-1][2]) if segments else 0.0)

    def all(self, row):
        """Every segmentation of a row with its score."""
        longest, classes = self.duration.shape
        longest = longest if self.tail is None else self.lengths[row]
        found = list(all_segmentations(self.lengths[row], longest, classes))
        return found, np.array([self.score(row, segments) for segments in found])

    def log_partition(self):
        return np.array([log_sum_exp(self.all(row)[1]) for row in range(len(self.lengths))])


def log_sum_exp(scores):
    peak = scores.max()
    return peak if peak == -math.inf else peak + math.log(np.exp(scores - peak).sum())


def random_model(seed=0, *, lengths=(5, 0, 3), longest=3, classes=2, by_duration=False, full=True):
    rng = np.random.default_rng(seed)
    batch, frames = len(lengths), max(lengths)
    shape = (longest, classes, classes) if by_duration else (classes, classes)
    frame_scores = (batch, frames, classes)
    return Model(
        emission=rng.normal(size=frame_scores),
        transition=rng.normal(size=shape),
        duration=rng.normal(size=(longest, classes)),
        initial=rng.normal(size=classes) if full else None,
        final=rng.normal(size=classes) if full else None,
        start=rng.normal(size=frame_scores) if full else None,
        end=rng.normal(size=frame_scores) if full else None,
        lengths=list(lengths),
    )


@pytest.fixture(autouse=True)
def the_same_numbers_in_every_run():
    """A test that draws numbers without a seed of its own passes always or never."""
    random.seed(20261125)
    np.random.seed(20261125)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(20261125)


@pytest.fixture(params=["plain", "full", "by_duration"])
def model(request):
    full, by_duration = request.param != "plain", request.param == "by_duration"
    return random_model(full=full, by_duration=by_duration)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture
def jax():
    return pytest.importorskip("jax", reason="JAX is not installed")


@pytest.fixture(scope="session")
def ranks():
    """The processes of tests with several ranks; see ranks.py."""
    groups = Groups()
    yield groups
    groups.close()


@pytest.fixture(params=["mode", "compiled", "bounds"])
def looks(request, monkeypatch):
    """All that look at operations: the compiled one runs on GPUs, and has to find the same; there
    it does not read what a bound proves to be finite."""
    from segfuse.torch._watch import compiled, numerics

    is_compiled = request.param != "mode"
    monkeypatch.setattr(numerics, "wants_compiled", lambda: is_compiled)
    if request.param == "bounds":
        monkeypatch.setattr(compiled, "BOUNDS", compiled.EVERYWHERE)
        # Another test may have compiled kernels of Triton, after which nothing is bounded.
        monkeypatch.delitem(sys.modules, "torch._inductor.runtime.triton_heuristics", raising=False)
    if is_compiled:
        recorder, note = compiled.compiled_here()
        if recorder is None:
            assert "there is no C++ compiler" in note or "uses the dispatch key" in note, note
            pytest.skip(note)
    return is_compiled
