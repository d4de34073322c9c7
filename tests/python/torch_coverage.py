#!/usr/bin/env python3
"""Writes docs/coverage.md: which operations of ATen parts of torch.compile(backend="segfuse") run,
with PyTorch's own samples. To be run with the package installed, as .venv-python has it.

    .venv-python/bin/python tests/python/torch_coverage.py     # minutes
"""

import collections
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

import torch
import torch_operations

from segfuse.torch._compile import backend, table

MOST = 1  # samples of each operation and type
DTYPES = (torch.float32, torch.int64)
HEAD = """# Operations of PyTorch in parts of segfuse

`tests/python/torch_coverage.py` writes this file. Samples are PyTorch's own (OpInfo; of each operation
and element type the first {most}: {dtypes}), with results and all gradients, on the CPU, through
AOTAutograd with parts of one operation. A sample is *right* if parts ran it and the results are
within tolerances, *left* if no part ran any of it, and *skipped* if PyTorch cannot trace it, has no
dense tensors there, or gives another result with its own decompositions. PyTorch {version}.

| samples of {functions} functions | right | left to PyTorch | skipped | wrong |
|---|---|---|---|---|
| {total} | {right} | {left} | {skipped} | {wrong} |

The next table has the supported operations (after decomposition), with the number of samples in
which each ran:

| operation | samples | computes in |
|---|---|---|
"""


def main():
    torch.set_num_threads(1)
    counts, ran, functions, wrong = collections.Counter(), collections.Counter(), set(), []
    for info, dtype, _, outcome in torch_operations.sweep(None, DTYPES, MOST):
        counts[outcome.status] += 1
        ran.update(outcome.operations if outcome.status == "right" else ())
        functions.add(info.name)
        if outcome.status == "wrong":
            wrong.append(f"{info.name} {dtype}: {outcome.text}")
    text = HEAD.format(
        most=MOST, functions=len(functions), total=sum(counts.values()), right=counts["right"],
        left=counts["left"], skipped=counts["skipped"], wrong=counts["wrong"],
        version=torch.__version__.partition("+")[0],
        dtypes=", ".join(table.name_of(d) for d in DTYPES),
    )  # fmt: skip
    types = {table.Types.ANY: "", table.Types.RESULT: "the operands' type",
             table.Types.WIDE: "the same, 16-bit floats in float32",
             table.Types.FLOAT: "a float type, 16-bit floats in float32"}  # fmt: skip
    assert backend.decompositions()
    for op in sorted(table.TABLE, key=str):
        text += f"| `{op}` | {ran[op]} | {types[table.TABLE[op].types]} |\n"
    (ROOT / "docs/coverage.md").write_text(text)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
