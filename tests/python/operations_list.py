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
    "ordered": "In order: running results, sorting, quantiles, random draws",
    "shapes": "Shapes",
    "arranged": "Stacks, parts, diagonals, grids",
    "creation": "New values",
    "products": "Products",
    "linear": "Products over axes, norms, polynomials",
    "layers": "Softmax, norms, dropout",
    "activations": "Activations and attention",
}

HEAD = """# Operations

`segfuse.ops` has these functions (`tests/python/operations_list.py` writes this file). Functions
with a NumPy name behave as in NumPy, with two exceptions: element types are promoted as in JAX, and
results whose shape would depend on content are refused. `tests/python/numpy_table.py` compares them
with NumPy in values, shapes and gradients. Call them on values of a program; NumPy's functions of
the same names call them for such values.
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
        "## Of numbers\n\nNumPy's own, whose arrays are constants of a program:\n\n"
        f"{listed(rest)}\n"
    )
    parts.append(
        "## Refused\n\nThe shape of the result depends on content, or an argument is changed in "
        f"place:\n\n{listed(sf._REFUSED)}\n"
    )
    return "\n".join(parts)


if __name__ == "__main__":
    if "--write" in sys.argv:
        PATH.write_text(text())
    else:
        print(text())
