"""Tries an installed wheel or conda package. usage: python smoke.py FOLDER [jit|conda]

It writes to FOLDER. With `jit`, segfuse-jit must be installed, and compiled functions must be
machine code; without it, they must run on built-in loops and say so once. tools/test_wheels runs
both. conda's package has the compiler, and licences where conda keeps them.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import segfuse
import segfuse.ops as sf

CONFIG = """
title = "A try"
[features]
kind = "log_mel"
sample_rate = 16000
n_mels = 8
[model]
width = 8
kernel = 3
dilations = [1]
[training]
epochs = 2
batch_size = 4
"""

COMPILE = """
import numpy as np, segfuse
f = segfuse.compile(lambda x, y: (x * y + 1).sum(axis=-1))
g = segfuse.compile(lambda x, y: x - y)
x = np.arange(12, dtype=np.float32).reshape(3, 4)
assert np.array_equal(f(x, x), (x * x + 1).sum(axis=-1)), f(x, x)
assert np.array_equal(g(x, x), np.zeros_like(x))
"""


def command(*arguments: object) -> str:
    program = os.path.join(os.path.dirname(sys.executable), "segfuse")
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, f"segfuse {arguments}: {done.returncode}\n{done.stderr}"
    return done.stdout


def check_crf() -> None:
    """log Z against a sum over all segmentations, and the gradient against differences."""
    rng = np.random.default_rng(1)
    frames, classes, longest = 5, 2, 3
    emission, transition, duration = (
        rng.normal(size=shape)
        for shape in [(1, frames, classes), (classes, classes), (longest, classes)]
    )
    scores = []
    for count in range(1, frames + 1):
        for lengths in itertools.product(range(1, longest + 1), repeat=count):
            if sum(lengths) != frames:
                continue
            for labels in itertools.product(range(classes), repeat=count):
                at, score = 0, 0.0
                for i, (length, label) in enumerate(zip(lengths, labels, strict=True)):
                    score += emission[0, at : at + length, label].sum()
                    score += duration[length - 1, label]
                    score += transition[labels[i - 1], label] if i else 0.0
                    at += length
                scores.append(score)
    expected = np.logaddexp.reduce(scores)
    found = float(segfuse.SemiCRF(emission, transition, duration).log_partition()[0])
    assert abs(found - expected) < 1e-9, (found, expected)


def check_compiled(jit: bool) -> None:
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("built-in loops") == (0 if jit else 1), done.stderr
    capabilities = command("info")
    line = next(line for line in capabilities.splitlines() if "CPU JIT" in line)
    assert ("clang" in line and "built-in" not in line) == jit, line
    gradient = segfuse.grad(lambda x: (sf.exp(x) * x).sum())(np.array([0.5, 1.0]))
    assert np.allclose(gradient, [np.exp(0.5) * 1.5, np.exp(1.0) * 2])


def check_trainer(folder: Path) -> None:
    command("synth", folder / "songs", "--labels", 3, "--train", 6, "--test", 2)
    (folder / "try.toml").write_text(CONFIG)
    command("train", folder / "try.toml", "--data", folder / "songs", "--out", folder / "model")
    metrics = json.loads((folder / "model" / "metrics.json").read_text())
    assert metrics, "metrics.json is empty"
    model = segfuse.Model.load(str(folder / "model"))
    recording = next((folder / "songs").rglob("*.wav"))
    assert model.decode(str(recording)).segments, f"{recording} has no segments"


def check_doctor() -> None:
    report = json.loads(command("doctor", "fork", os.getpid(), "--json"))
    assert report, "doctor fork has no report"


def main() -> None:
    folder, kind = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    place = Path(segfuse.__file__)
    assert place.is_relative_to(sys.prefix), f"{place} is not the installed package"
    assert command("--version").split()[-1] == segfuse.__version__
    if kind != "conda":
        assert list((place.parent / "licenses").glob("*.txt")), "the wheel has no licences"
    check_compiled(kind in ("jit", "conda"))
    if kind != "jit":
        check_crf()
        check_trainer(folder)
        check_doctor()


main()
