"""Writes docs/operations.md: every function of segfuse.ops by kind.

python tests/python/operations_list.py --write
"""

import pathlib
import sys

import segfuse.ops as sf

PATH = pathlib.Path(__file__).resolve().parents[2] / "docs" / "operations.md"

KINDS = {
    "elementwise": "Elementwise",
    "elementary": "Elementary functions",
    "reductions": "Reductions",
    "statistics": "Statistics",
    "ordered": "Running results, sorting, quantiles, random draws",
    "shapes": "Shapes",
    "arranged": "Stacking, splitting, diagonals, grids",
    "creation": "New arrays",
    "products": "Products",
    "linear": "Products over axes, norms, polynomials",
    "layers": "Softmax, norms, dropout",
    "activations": "Activations and attention",
}

HEAD = """# Operations

The module `segfuse.ops` has the operations that a function may use if `segfuse.compile` compiles it
([python_compile.md](python_compile.md)). This page lists them by kind. Most of them are functions
of NumPy under the same names; others are for neural networks, such as `softmax`.

```python
import numpy as np
import segfuse
import segfuse.ops as sf

@segfuse.compile
def entropy(scores):
    p = sf.softmax(scores)
    return -sf.sum(p * sf.log(p), axis=-1)  # or np.sum and np.log

print(entropy(np.zeros((2, 4), np.float32)))  # [1.3862944 1.3862944]
```

Within the function, `scores` is a *symbolic array*: it has a type and a shape, and its operations
are recorded as a program. The operations of this page take symbolic arrays, together with plain
numbers and arrays. If a function of NumPy has the same name, you can call it instead: `np.log(p)`
is the same as `sf.log(p)`.

To look up a function:

- If NumPy has the function, read its description there, and see the
  [differences](#differences-from-numpy) below.
- Otherwise, use `help(sf.softmax)`, or [ir.md](ir.md) for elementwise operations.

## Differences from NumPy

A function that has NumPy's name behaves as in NumPy, with these exceptions:

- **Types.** Element types are promoted as in JAX; for example, `exp` of integers returns float32.
- **Reductions.** In `sf.sum(x, axis, keepdims)` and other reductions, `keepdims` is the parameter
  after the axis. Pass `dtype`, `initial` and `where` by name. In a call of NumPy's own function,
  such as `np.sum(x, 0, np.float64)`, the order is NumPy's.
- **Shapes that depend on content.** If the shape of the result depends on the content of an array,
  the function is [refused](#refused). `compress` and `extract` work if their condition is a
  constant.
- **Changes in place.** `fill_diagonal` and `put_along_axis` return a changed copy.
- **`np.linalg`.** Its functions work if this page lists them. `np.linalg.trace` and
  `np.linalg.diagonal` use the last two axes, as in NumPy.

Tests compare these functions with NumPy in values, shapes and gradients
(`tests/python/numpy_table.py`).

Many elementwise operations have two names: one from NumPy and one from [ir.md](ir.md), such as
`greater_equal` and `ge`, or `divide` and `div`. The function with the name from ir.md may accept
fewer element types. For example, `bit_and` accepts only integers, and `bitwise_and` also bool.
"""

NOTES = {
    "elementwise": "Each element of the result depends on one element of each operand. These are "
    "the elementwise\noperations of [ir.md](ir.md), NumPy's names for them, and a few more.",
    "elementary": "These functions are composed of elementwise operations. `allclose`, "
    "`array_equal` and\n`array_equiv` compare complete arrays.",
    "reductions": "Functions that combine the elements along one axis, several axes or all axes.",
    "statistics": "Averages, histograms, differences, and reductions that ignore NaN.",
    "ordered": "`random_uniform` is among the [new arrays](#new-arrays).",
    "shapes": "Functions that change the shape of an array, or move, select or add up its elements.",
    "arranged": "Further functions of NumPy that combine and divide arrays.",
    "creation": "Functions that make an array from numbers, or from the shape of another array.",
    "products": "The product of matrices, and the loss of a [semi-Markov CRF](semicrf.md).",
}


def kind_of(name):
    if name == "dropout":  # defined beside the random draws
        return "layers"
    return getattr(sf, name).__module__.rpartition(".")[2]


def wrapped(words):
    lines, line = [], ""
    for word in words:
        if line and len(line) + len(word) + 1 > 100:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


def listed(names):
    names = sorted(names)
    return wrapped([f"`{n}`" + ("," if n != names[-1] else "") for n in names])


def text():
    parts = [HEAD]
    rest = set(sf.__all__)
    for kind, title in KINDS.items():
        names = {n for n in rest if kind_of(n) == kind}
        rest -= names
        note = f"{NOTES[kind]}\n\n" if kind in NOTES else ""
        parts.append(f"## {title}\n\n{note}{listed(names)}\n")
    parts.append(
        "## Constants\n\nThese are NumPy's own functions. The arrays that they return are constants of "
        f"the program:\n\n{listed(rest)}\n"
    )
    parts.append(
        "## Refused\n\nThese functions of NumPy raise an error, because the shape of their result "
        "depends on the content of\nan array, or because they change an argument in place:\n\n"
        f"{listed(sf._REFUSED)}\n"
    )
    return "\n".join(parts)


if __name__ == "__main__":
    if "--write" in sys.argv:
        PATH.write_text(text())
    else:
        print(text())
