"""Writes the programs that compiled functions run, and their inputs, for segfuse_simulated_programs.

    python tests/python/captured.py FOLDER --values 100 --gradients 50 --pytorch 50 [--seed 1]
    build/tests/segfuse_simulated_programs FOLDER

The functions are the random ones of traced.py and of torch_programs.py.
"""

import argparse
import contextlib
import pathlib
import sys

import numpy as np
import traced

import segfuse
from segfuse._compile.bound import Bound


@contextlib.contextmanager
def captured(folder, name):
    """Writes each program that runs within, once: FOLDER/NAME-0/program.sf, 0.npy, 1.npy, ..."""
    begin = Bound.__init__
    seen = set()

    def init(self, trace, *rest):
        begin(self, trace, *rest)
        execute = self._execute

        def run(arrays, *how):
            if trace.program is not None and id(trace) not in seen:
                write(trace.program.emit("ir"), arrays, folder / f"{name}-{len(seen)}")
                seen.add(id(trace))
            return execute(arrays, *how)

        self._execute = run

    Bound.__init__ = init
    try:
        yield
    finally:
        Bound.__init__ = begin


def write(text, arrays, folder):
    folder.mkdir(parents=True)
    (folder / "program.sf").write_text(text)
    for i, array in enumerate(arrays):
        np.save(folder / f"{i}.npy", np.asarray(array))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--values", type=int, default=0)
    parser.add_argument("--gradients", type=int, default=0)
    parser.add_argument("--pytorch", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    segfuse.set_threads(1)
    judges = [("values", a.values, traced.check), ("gradients", a.gradients, gradients)]
    if a.pytorch > 0:
        import torch_programs

        judges.append(("pytorch", a.pytorch, torch_programs.check))
    for kind, count, judge in judges:
        for seed in range(a.seed, a.seed + count):
            with captured(a.folder, f"{kind}-{seed}"):
                found = judge(seed)
            if found is not None:
                print(found)
                return 1
    return 0


def gradients(seed):
    return traced.check(seed, gradients=True)


if __name__ == "__main__":
    sys.exit(main())
