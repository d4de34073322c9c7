"""Writes docs/operations.md: every function of segfuse.ops by kind.

python tests/python/operations_list.py --write
"""

import inspect
import pathlib
import sys

import numpy as np

import segfuse.ops as sf

PATH = pathlib.Path(__file__).resolve().parents[2] / "docs" / "operations.md"

KINDS = {
    "elementwise": "Elementwise functions",
    "reductions": "Reductions",
    "statistics": "Statistics",
    "ordered": "Cumulative operations, sorting, quantiles",
    "random": "Random numbers",
    "shapes": "Shapes, gather and scatter, stacking, diagonals",
    "creation": "New arrays",
    "linear": "Products, norms, polynomials",
    "activations": "Activations and normalisation",
    "attention": "Attention",
    "crf": "CRF loss",
}

MODULES = {
    "elementary": "elementwise",
    "arranged": "shapes",
    "products": "linear",
    "layers": "activations",
}
"""Kinds of modules that are named otherwise."""

KIND_OF = {
    "dropout": "activations",
    "logmeanexp": "reductions",
    "dot_product_attention": "attention",
    "semicrf_loss": "crf",
}

# Names that are NumPy's although not every supported NumPy has them: NumPy 2 added some, and
# deprecates others.
NUMPY = {
    "acos", "acosh", "asin", "asinh", "astype", "atan", "atan2", "atanh", "bitwise_count",
    "bitwise_invert", "bitwise_left_shift", "bitwise_right_shift", "concat", "cumulative_prod",
    "cumulative_sum", "fix", "matrix_transpose", "matvec", "norm", "permute_dims", "pow",
    "row_stack", "trapezoid", "unstack", "vecdot", "vecmat",
}  # fmt: skip

ALIKE = {"arctan2": ("atan2",), "power": ("pow",)}
"""Functions of their own that are listed beside the one to prefer."""

IN_NUMPY = {"norm": "np.linalg.norm"}
"""Names in NumPy that differ."""

ELEMENTWISE = {
    "Arithmetic": "abs add cbrt copysign divide divmod fabs float_power floor_divide fmod heaviside hypot "
    "ldexp multiply negative positive power reciprocal remainder sign sqrt square subtract",
    "Comparison and choice": "allclose array_equal array_equiv choose clip equal fmax fmin greater "
    "greater_equal isclose less less_equal maximum minimum not_equal piecewise select where",
    "Logic and bits": "bitwise_and bitwise_count bitwise_not bitwise_or bitwise_xor left_shift "
    "logical_and logical_not logical_or logical_xor right_shift",
    "Exponentials and logarithms": "exp exp2 expm1 log log10 log1p log2 logaddexp logaddexp2",
    "Trigonometry": "arccos arccosh arcsin arcsinh arctan arctan2 arctanh cos cosh deg2rad rad2deg sin "
    "sinc sinh tan tanh",
    "Rounding": "ceil floor modf rint round trunc",
    "Special values": "isfinite isinf isnan isneginf isposinf nan_to_num signbit",
    "Types and complex parts": "angle astype conjugate imag iscomplex isreal real",
}
"""NumPy's elementwise functions by kind."""

MEANINGS = {
    "batch_norm": "x (B, C, ...), standardised over all axes but the second; the mean (C); and the "
    "variance (C)",
    "batch_norm_inference": "x (B, C, ...), standardised with the given mean and variance (C)",
    "bit_and": "`bitwise_and` for integers only",
    "bit_or": "`bitwise_or` for integers only",
    "bit_xor": "`bitwise_xor` for integers only",
    "celu": "x where x is above 0, alpha * (exp(x / alpha) - 1) elsewhere",
    "cummax": "the largest element so far along `axis`; NaN from the first NaN on",
    "cummin": "the smallest element so far along `axis`; NaN from the first NaN on",
    "dot_product_attention": "softmax(scale * query @ key^T + bias) @ value for each head, "
    "(B, T, N, H). `query` is (B, T, N, H), `key` and `value` are (B, S, K, H): B sequences, T and S "
    "positions, N and K heads of H numbers, where N is a multiple of K. All may lack B. `bias` and "
    "`mask` broadcast to (B, N, T, S), and True in `mask` marks positions to attend to. By default, "
    "`scale` is 1 / sqrt(H)",
    "dropout": "each element divided by 1 - rate with the probability 1 - rate, and 0 otherwise. "
    "For the seed, see [random numbers](#random-numbers)",
    "elu": "x where x is above 0, alpha * (exp(x) - 1) elsewhere",
    "erf": "the error function",
    "floor_div": "`floor_divide` for integers only",
    "floor_mod": "`remainder` for integers only",
    "glu": "the first half along `axis`, times the sigmoid of the second half",
    "hard_tanh": "x, limited to the range from -1 to 1",
    "instance_norm": "x (B, C, ...), standardised over the axes after the second, times scale (C), "
    "plus shift (C)",
    "leaky_relu": "x where x is above 0, negative_slope * x elsewhere",
    "linear_scan": "y[t] = a[t] * y[t - 1] + b[t] along `axis`, where y is 0 before the first step; "
    "a and b broadcast",
    "one_hot": "a new last axis of `classes` elements: 1 at the index, 0 elsewhere",
    "random_bernoulli": "bool, True with the given probability",
    "random_categorical": "for each row, an index along `axis`, drawn with the probabilities "
    "softmax(logits)",
    "random_normal": "standard normal float32",
    "random_permutation": "0, 1, ..., n - 1 in random order",
    "random_uniform": "float32, uniform in [0, 1)",
    "relu": "max(x, 0)",
    "rsqrt": "1 / sqrt(x)",
    "scatter_add": "zeros with `size` elements along `axis`, to which the updates are added at the "
    "indices: the gradient of `take`",
    "selu": "1.0507 * elu(x, 1.6733), the elu of self-normalising networks",
    "semicrf_loss": "the negative log-likelihood of each sequence. Normally use the functions of "
    "[python_crf.md](python_crf.md) instead. [ir.md](ir.md#the-loss-of-a-crf) lists the operands",
    "shift_left": "`left_shift` for integers only",
    "shift_right": "`right_shift` for integers only",
    "sigmoid": "1 / (1 + exp(-x))",
    "sliding_windows": "windows of `size` elements: two axes (windows, size) replace `axis`. "
    "Element j of window i is element i * stride + j * dilation of `axis`",
    "softplus": "log(1 + exp(x)), without overflow",
    "sparse_plus": "0 below -1, (x + 1)^2 / 4 from -1 to 1, x above 1",
    "sparse_sigmoid": "(x + 1) / 2, limited to the range from 0 to 1",
    "stop_gradient": "x. Its derivative is 0",
    "topk": "the k largest elements along `axis` in descending order, with NaN first; and their "
    "indices",
}
"""Results that a docstring describes too briefly for a table; others come from the docstring."""

HEAD = """# Operations

The module `segfuse.ops` contains the operations that you can use in a function that
`segfuse.compile` compiles ([python_compile.md](python_compile.md)). This page lists them by kind.
Most of them are NumPy functions under the same names; others are for neural networks, such as
`softmax`.

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
are recorded as a program. The operations on this page take symbolic arrays, together with plain
numbers and arrays. If a NumPy function has the same name, you can call it instead: `np.log(p)` is
the same as `sf.log(p)`. Symbolic arrays also have the operators, the indexing and the common
methods of NumPy arrays ([details](python_compile.md#operations)), such as `p[:, 0]` and `p.sum()`.

Each section first lists the functions that work as in NumPy, by name. NumPy's documentation
describes them, and the [differences](#differences-from-numpy) are below. Other names of the same
function follow in parentheses. Tables describe the functions that NumPy lacks, and
`help(sf.softmax)` shows more.

## Differences from NumPy

A function that has NumPy's name behaves as in NumPy, with these exceptions:

- **Types.** Element types are promoted much as in
  [JAX](https://docs.jax.dev/en/latest/jep/9407-type-promotion.html): int32 and float16 give
  float16, Python numbers do not widen the type of an array, and `exp` of integers returns float32.
  [Element types](python_compile.md#element-types) has the rules.
- **Reductions.** In `sf.sum(x, axis, keepdims)` and other reductions, `keepdims` is the parameter
  after the axis. Pass `dtype`, `initial` and `where` by name. In a call of NumPy's own function,
  such as `np.sum(x, 0, np.float64)`, the order is NumPy's.
- **Shapes that depend on values.** If the shape of the result depends on the values of an array,
  the function is [refused](#refused). `compress` and `extract` work if their condition is a
  constant.
- **Changes in place.** `fill_diagonal` and `put_along_axis` return a changed copy.
- **`np.linalg`.** Supported are LINALG. All others, such as
  `solve`, `inv` and `svd`, raise an error, and so do the functions of `np.fft`. `np.linalg.trace` and
  `np.linalg.diagonal` use the last two axes, as in NumPy, and `np.trace` and `np.diagonal` the
  first two.

Tests compare these functions with NumPy in values, shapes and gradients
(`tests/python/numpy_table.py`).

Many elementwise operations have a second name, that of segfuse's program format ([ir.md](ir.md)),
such as `ge` for `greater_equal`. Prefer NumPy's name, because some functions with a name from ir.md
treat element types differently. For example, `bit_and` accepts only integers, and `bitwise_and`
also bool. `sf.pow` computes with floats, so `sf.pow` of integers returns float32, whereas `power`
returns integers.
"""

NOTES = {
    "elementwise": "Each element of the result depends on one element of each operand. The exceptions "
    "are `allclose`,\n`array_equal` and `array_equiv`, which compare complete arrays. As in NumPy:",
    "reductions": "Functions that combine the elements along one axis, several axes or all axes.",
    "statistics": "Averages, histograms, differences, and reductions that ignore NaN.",
    "random": "The seed is an int64 array of shape (2,). Each draw within a function gives different "
    "numbers, even\nwith the same seed. When the compiled function is called again with the same seed, "
    "it draws the same\nnumbers again.",
    "shapes": "Functions that change the shape of an array, or move, select, combine or divide "
    "arrays. `take` and\n`take_along_axis` gather elements; `put_along_axis` and `scatter_add` scatter "
    "them.",
    "creation": "Functions that make an array from numbers, or from the shape of another array.",
    "attention": "The compiler also recognises attention that is written with other operations\n"
    "([python_compile.md](python_compile.md#attention)).",
    "crf": "The loss of a [semi-Markov CRF](semicrf.md).",
}


def kind_of(name):
    if name in KIND_OF:
        return KIND_OF[name]
    if name.startswith("random_"):
        return "random"
    module = getattr(sf, name).__module__.rpartition(".")[2]
    return MODULES.get(module, module)


def is_numpy(name):
    return name in NUMPY or hasattr(np, name)


def groups(names):
    """The names of each function, first the one to prefer."""
    found, rest = [], set(names)
    for own, others in (sf._ALIASES | ALIKE).items():
        if own in rest:
            alike = [own, *others]
            found.append(sorted(alike, key=lambda n: not is_numpy(n)))
            rest -= set(alike)
    return sorted([*found, *([n] for n in rest)])


def wrapped(text, width=100):
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + len(word) + 1 > width:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


def listed(alike, before="", width=100):
    """The names of functions that NumPy describes."""
    words = []
    for first, *others in alike:
        others += [IN_NUMPY[first]] if first in IN_NUMPY else []
        words.append(f"`{first}`" + (f" ({', '.join(f'`{n}`' for n in others)})" if others else ""))
    return wrapped(before + ", ".join(words), width)


def listed_by_kind(alike):
    """NumPy's elementwise functions, an item for each kind."""
    of = {first: [first, *others] for first, *others in alike}
    kinds = {kind: names.split() for kind, names in ELEMENTWISE.items()}
    differs = set(of) ^ set(sum(kinds.values(), []))
    assert not differs, f"mend ELEMENTWISE: {sorted(differs)}"
    items = (listed([of[n] for n in kinds[kind]], f"- **{kind}:** ", 98) for kind in kinds)
    return "\n".join(item.replace("\n", "\n  ") for item in items)


def called(name):
    """The function with its parameters."""
    if kind_of(name) == "elementwise" and name in sf.elementwise.ELEMENTWISE:
        count = sf.elementwise._TABLE[name][5]
        return f"{name}({', '.join('xyz'[:count])})"
    parameters, named = [], False
    for p in inspect.signature(getattr(sf, name)).parameters.values():
        if p.kind == p.KEYWORD_ONLY and not named:
            parameters.append("*")
            named = True
        star = "*" if p.kind == p.VAR_POSITIONAL else ""
        default = "" if p.default is p.empty else f"={p.default!r}"
        parameters.append(f"{star}{p.name}{default}")
    return f"{name}({', '.join(parameters)})"


def meaning(name):
    if name in MEANINGS:
        return MEANINGS[name]
    if kind_of(name) == "elementwise" and name in sf.elementwise.ELEMENTWISE:
        return f"see `{name}` in [ir.md](ir.md)"
    text = " ".join(inspect.getdoc(getattr(sf, name)).partition("\n\n")[0].split())
    return text.replace("|", "\\|").removesuffix(".")


def table(alike):
    """Functions that NumPy does not have."""
    rows = ["| function | result |", "|---|---|"]
    for first, *others in alike:
        names = ", ".join([f"`{called(first)}`", *(f"`{n}`" for n in others)])
        rows.append(f"| {names} | {meaning(first)} |")
    return "\n".join(rows)


def text():
    supported = sorted(sf._LINALG)
    linalg = ", ".join(f"`{n}`" for n in supported[:-1]) + f" and `{supported[-1]}`"
    item = next(line for line in HEAD.split("\n- ") if "LINALG" in line).partition("\n\n")[0]
    filled = wrapped("- " + item.replace("LINALG", linalg), 98).replace("\n", "\n  ")
    parts = [HEAD.replace(f"- {item}", filled)]
    rest = set(sf.__all__)
    for kind, title in KINDS.items():
        names = {n for n in rest - set(sf._OF_NUMBERS) if kind_of(n) == kind}
        rest -= names
        of_numpy = [g for g in groups(names) if is_numpy(g[0])]
        own = [g for g in groups(names) if not is_numpy(g[0])]
        parts.append(f"## {title}\n")
        if kind in NOTES:
            parts.append(f"{NOTES[kind]}\n")
        if of_numpy:
            by_kind = kind == "elementwise"
            names = listed_by_kind(of_numpy) if by_kind else listed(of_numpy, "As in NumPy: ")
            parts.append(f"{names}\n")
        if own:
            parts.append(f"{table(own)}\n")
    parts.append(
        "## Constants\n\nThese are NumPy's own functions. Their results are constants of the program:"
        f"\n\n{listed(groups(rest))}\n"
    )
    parts.append(
        "## Refused\n\nThese NumPy functions raise an error, because the shape of their result "
        "depends on the values of an\narray, or because they change an argument in place:\n\n"
        f"{listed(groups(sf._REFUSED))}\n"
    )
    return "\n".join(parts)


if __name__ == "__main__":
    if "--write" in sys.argv:
        PATH.write_text(text())
    else:
        print(text())
