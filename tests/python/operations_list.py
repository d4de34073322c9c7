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
it). A function that `segfuse.compile` traces receives symbolic arrays
([python_compile.md](python_compile.md)); call the functions of this page on them. If a function of
NumPy has the same name, you can call it instead: `np.exp(x)` of a symbolic array x is the same as
`segfuse.ops.exp(x)`.

A function with a NumPy name behaves as in NumPy, with these exceptions:

- Element types are promoted as in JAX.
- In reductions, `keepdims` is the parameter behind the axis; `dtype`, `initial`, `where` and others
  go by their names. In a call of NumPy's own function (`np.sum(x, 0, np.float64)`), arguments have
  the places that NumPy gives them.
- Functions whose result has a shape that depends on the content of an array
  [are refused](#refused). `compress` and `extract` are supported if their condition is a constant.
- `fill_diagonal` and `put_along_axis` do not change their argument, but return a changed copy.

Functions of `np.linalg` work if they are listed here; `trace` and `diagonal` of it are of the last
two axes. `tests/python/numpy_table.py` compares these functions with NumPy in values, shapes and
gradients.
Functions that NumPy does not have are described by their docstrings and in [ir.md](ir.md).

Many elementwise operations have two names: that of NumPy and that of [ir.md](ir.md), such as
`greater_equal` and `ge`, or `divide` and `div`. The function with the name of ir.md may accept
fewer element types: `bit_and` takes only integers, and `bitwise_and` also bool.
"""

NOTES = {
    "elementwise": "Elementwise operations of [ir.md](ir.md), NumPy's names for them, and a few more.",
    "elementary": "Functions composed of elementwise operations, and comparisons of whole arrays.",
    "ordered": "`random_uniform` is among the [new arrays](#new-arrays).",
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
