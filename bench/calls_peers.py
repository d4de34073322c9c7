#!/usr/bin/env python3
"""What a call of a compiled function costs from Python, beside NumPy's and PyTorch's own operations.

usage: calls_peers.py [THREADS]

Prints a JSON list of rows for bench/run. Inputs are tiny, so nearly all of it is what a call costs.
"""

import json
import sys
import timeit

import numpy as np

import segfuse
import segfuse.ops as sf


def milliseconds(call, number=3000):
    call()
    return 1e3 * min(timeit.repeat(call, number=number, repeat=7)) / number


def layer(x, scale, shift):
    return x + sf.gelu(sf.layer_norm(x, scale, shift))


def rows(threads):
    four, table = np.full(4, 0.5, "f4"), np.full((2, 4), 0.5, "f4")
    tree = {"w": four, "b": [four]}
    point, norm = segfuse.compile(lambda x, y: x * y + 1), segfuse.compile(layer)
    nested = segfuse.compile(lambda tree, x: x * tree["w"] + tree["b"][0])
    cases = [
        ("x * y + 1, 4 elements", "NumPy", lambda: point(four, four), lambda: four * four + 1),
        ("with a dict of arrays", "NumPy", lambda: nested(tree, four), lambda: four * four + four),
    ]
    try:
        import torch
    except ImportError:
        print("calls: PyTorch is not installed", file=sys.stderr)
    else:
        torch.set_num_threads(threads)
        f = torch.nn.functional
        x, v = torch.from_numpy(table), torch.from_numpy(four)
        cases += [
            ("layer norm, GELU, sum, (2, 4), NumPy arrays", "PyTorch",
             lambda: norm(table, four, four), lambda: x + f.gelu(f.layer_norm(x, (4,), v, v))),
            ("the same, PyTorch tensors", "PyTorch",
             lambda: norm(x, v, v), lambda: x + f.gelu(f.layer_norm(x, (4,), v, v))),
        ]  # fmt: skip
    for name, reference, ours, theirs in cases:
        error = float(abs(np.asarray(ours()) - np.asarray(theirs())).max())
        yield {
            "name": f"Python: {name}", "device": "cpu", "threads": threads, "ms": milliseconds(ours),
            "error": error, "reference_ms": milliseconds(theirs), "reference": reference,
        }  # fmt: skip


print(json.dumps(list(rows(int(sys.argv[1]) if len(sys.argv) > 1 else 1))))
