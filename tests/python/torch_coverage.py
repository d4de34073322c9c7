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

from segfuse.torch._compile import backend, elementwise, table

MOST = 1  # samples of each operation and type
DTYPES = (torch.float32, torch.int64)
HEAD = """# PyTorch operations that segfuse compiles

Look here to find out whether segfuse compiles a PyTorch operation under
[`torch.compile(backend="segfuse")`](torch_compile.md) or [Thunder](thunder.md). The
[table](#the-operations) lists the operations that it supports. PyTorch itself runs all others, so a
model does not fail because of an operation that is missing here. Among these others are
convolutions, sorting, cumulative sums and products, and random numbers.

The names are those of ATen, PyTorch's library of tensor operations. PyTorch breaks the functions of
a program down into such operations. Some functions, such as `layer_norm`, are not in the table
because they become several operations that are.

An operation in the table may still be left to PyTorch: if its arguments are not supported (such as
8- and 16-bit integers), or if no neighbouring operation can be compiled with it. For your own
model, [`segfuse.torch.explain`](torch_compile.md#what-runs-where) lists what segfuse compiles, and
why it leaves the rest to PyTorch.

## How the operations are tested

`tests/python/torch_coverage.py` tests the operations and writes this page. It calls PyTorch's
functions with arguments from PyTorch's own tests (OpInfo). Each call is a *sample*. There is at
most {most} sample for each function and element type ({dtypes}). Functions that draw random
numbers are left out.

For each sample, PyTorch breaks the call and its gradients down into ATen operations, and segfuse
compiles those that it supports for the CPU, even a single one. The results and all gradients are
compared with those of eager PyTorch {version}. A sample counts as

- *right* if segfuse ran at least one of its operations, and the results are within tolerances;
- *left to PyTorch* if segfuse ran none of its operations;
- *skipped* if PyTorch cannot trace it, if a tensor is not dense, or if PyTorch's own decompositions
  already change the result;
- *wrong* otherwise.

| samples of {functions} functions | right | left to PyTorch | skipped | wrong |
|---|---|---|---|---|
| {total} | {right} | {left} | {skipped} | {wrong} |

## The operations

The columns of the table are:

- **samples**: the number of right samples in which segfuse ran the operation. If it is 0, this test
  did not run the operation. Other tests run more of them: `tests/python/test_torch_operations.py`
  takes up to six samples per function and type (with `SEGFUSE_LONG=1`), and
  `tests/python/torch_programs.py` compiles random programs, with embeddings among other operations.
- **computes in**: the type in which an elementwise operation computes, after PyTorch's type
  promotion. "16-bit floats in float32" means that these are computed in float32, and the result is
  rounded once. "Float32 or float64" means that float64 is computed in float64, and every other type
  in float32, including 16-bit floats, integers and bool. "Bool only" means that PyTorch runs the
  operation on integers. The column is empty where no such rule applies: for logical operations,
  reductions, products, softmax, losses, and operations that only create, copy or move elements.

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
             table.Types.WIDE: "the operands' type; 16-bit floats in float32",
             table.Types.FLOAT: "float32 or float64"}  # fmt: skip
    assert backend.decompositions()
    for op in sorted(table.TABLE, key=str):
        row = table.TABLE[op]
        computed = "bool only" if row.refuses is elementwise._only_bool else types[row.types]
        text += f"| `{op}` | {ran[op]} | {computed} |\n"
    (ROOT / "docs/coverage.md").write_text(text)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
