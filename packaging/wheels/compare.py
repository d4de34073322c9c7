"""Numbers of an installed wheel, to compare between processors.

usage: python compare.py FILE [OTHER]

Writes FILE (an .npz). With OTHER, such a file of another machine, it prints for each array how many
elements have the same bits and the greatest difference, and fails where rounding cannot be the
reason. The inputs are made of whole numbers, so they are the same everywhere.
tools/test_wheels --arch uses it.
"""

import sys

import numpy as np

import segfuse
import segfuse.ops as sf

SIZES = [(3, 40, 3, 7), (2, 400, 17, 24), (1, 3000, 6, 60)]  # batch, frames, classes, durations


def scores(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-4000, 4000, size=shape) / 1000


def crf_numbers(found: dict[str, np.ndarray], dtype: type) -> None:
    rng = np.random.default_rng(7)
    for batch, frames, classes, durations in SIZES:
        name = f"{np.dtype(dtype).name} T={frames} C={classes} K={durations}"
        crf = segfuse.SemiCRF(
            scores(rng, batch, frames, classes).astype(dtype),
            scores(rng, classes, classes).astype(dtype),
            scores(rng, durations, classes).astype(dtype),
        )
        value, gradients = crf.log_partition_and_gradients()
        found[f"{name} log Z"] = value
        for of in ("emission", "transition", "duration"):
            found[f"{name} gradient {of}"] = getattr(gradients, of)
        posteriors = crf.posteriors()
        for of in ("label", "boundary", "duration", "entropy"):
            found[f"{name} posterior {of}"] = getattr(posteriors, of)
        best = crf.viterbi()
        found[f"{name} best score"] = best.score
        found[f"{name} best segments"] = np.stack([best.start, best.duration, best.label])


def program_numbers(found: dict[str, np.ndarray], dtype: type) -> None:
    rng = np.random.default_rng(8)
    x, y = scores(rng, 33, 130).astype(dtype), scores(rng, 130, 40).astype(dtype)
    name = np.dtype(dtype).name
    for of in ("exp", "log1p", "tanh", "sigmoid", "erf", "sqrt"):
        function = getattr(sf, of)
        found[f"{name} {of}"] = segfuse.compile(lambda a, f=function: f(a * a))(x)
    found[f"{name} softmax"] = segfuse.compile(lambda a: sf.softmax(a, axis=-1))(x)
    found[f"{name} product"] = segfuse.compile(lambda a, b: a @ b)(x, y)
    found[f"{name} sum"] = segfuse.compile(lambda a: (a * a + 1).sum(axis=0))(x)
    found[f"{name} gradient"] = segfuse.grad(lambda a: (sf.tanh(a @ y) * sf.exp(-a).mean()).sum())(
        x
    )


def compare(found: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert found.keys() == other.keys(), found.keys() ^ other.keys()
    for name, value in found.items():
        there = other[name]
        assert value.shape == there.shape and value.dtype == there.dtype, name
        same = float(np.mean(value == there))
        scale = max(1.0, float(np.abs(there).max()))
        off = float(np.abs(value.astype(np.float64) - there).max()) / scale
        print(f"{name}: same bits {100 * same:.1f} %, difference {off:.1e}")
        # Sums over all durations and frames: some hundred roundings.
        most = 1e-5 if value.dtype == np.float32 else 1e-12
        assert off <= (0 if name.endswith("segments") else most), f"{name}: {off} is no rounding"


def main() -> None:
    found: dict[str, np.ndarray] = {}
    for dtype in (np.float32, np.float64):
        crf_numbers(found, dtype)
        program_numbers(found, dtype)
    found = {name: np.asarray(value) for name, value in found.items()}
    np.savez(sys.argv[1], **found)
    if len(sys.argv) > 2:
        compare(found, dict(np.load(sys.argv[2])))


main()
