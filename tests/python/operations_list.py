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

This page lists all functions of `segfuse.ops` by kind (`tests/python/operations_list.py` writes
it). They are for functions that `segfuse.compile` traces ([python_compile.md](python_compile.md)):
call them on the symbolic arrays there. On symbolic arrays, NumPy's functions of the same names
call them, so `np.exp(x)` is the same as `segfuse.ops.exp(x)`.

A function with a NumPy name behaves as in NumPy, with two exceptions: element types are promoted as
in JAX, and functions whose result has a shape that depends on the content of an array
[are refused](#refused). `tests/python/numpy_table.py` compares the functions with NumPy in values,
shapes and gradients. The others are described by their docstrings and in [ir.md](ir.md).
"""


def kind_of(name):
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
        parts.append(f"## {title}\n\n{listed(names)}\n")
    parts.append(
        "## Constants\n\nThese are NumPy's own functions. Arrays that they return are constants of "
        f"the program:\n\n{listed(rest)}\n"
    )
    parts.append(
        "## Refused\n\nThese NumPy functions raise an error, because the shape of the result "
        "depends on the content of an\narray, or because an argument is changed in place:\n\n"
        f"{listed(sf._REFUSED)}\n"
    )
    return "\n".join(parts)


if __name__ == "__main__":
    if "--write" in sys.argv:
        PATH.write_text(text())
    else:
        print(text())
