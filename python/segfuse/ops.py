"""Operations on values: `import segfuse.ops as sf`.

They are NumPy's where NumPy has them: names, arguments, broadcasting. They take the values that a
function given to `segfuse.compile` gets, or those of a `segfuse.Fusion`, and beside them plain
numbers and arrays. Element types meet as in JAX: plain numbers and NumPy scalars are weak, integers
never widen floats, and `/` and functions such as `exp` of integers are float32.

Every elementwise operation of docs/ir.md is here under its name there (`exp`, `sigmoid`, `lt`,
...), and under NumPy's where that is another (`less`). docs/operations.md lists all functions.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ._errors import UsageError
from ._ops import (
    activations,
    arranged,
    creation,
    elementary,
    elementwise,
    layers,
    linear,
    ordered,
    products,
    reductions,
    shapes,
    statistics,
)
from ._ops.activations import *
from ._ops.arranged import *
from ._ops.creation import *
from ._ops.elementary import *
from ._ops.elementwise import *
from ._ops.layers import *
from ._ops.linear import *
from ._ops.ordered import *
from ._ops.products import *
from ._ops.reductions import *
from ._ops.shapes import *
from ._ops.statistics import *
from ._program.index import At, index
from ._program.value import Value, functions

if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., Value]: ...


_MODULES = (
    creation, elementwise, shapes, reductions, products, layers, elementary, arranged, statistics,
    linear, activations, ordered,
)  # fmt: skip

_ALIASES = {
    "abs": ("absolute",),
    "arccos": ("acos",),
    "arccosh": ("acosh",),
    "arcsin": ("asin",),
    "arcsinh": ("asinh",),
    "arctan": ("atan",),
    "asarray": ("array",),
    "arctanh": ("atanh",),
    "bitwise_not": ("bitwise_invert", "invert"),
    "concatenate": ("concat",),
    "conjugate": ("conj",),
    "deg2rad": ("radians",),
    "div": ("divide", "true_divide"),
    "eq": ("equal",),
    "floor_divide": ("floordiv",),
    "ge": ("greater_equal",),
    "gt": ("greater",),
    "hard_silu": ("hard_swish",),
    "is_finite": ("isfinite",),
    "is_nan": ("isnan",),
    "le": ("less_equal",),
    "left_shift": ("bitwise_left_shift",),
    "lt": ("less",),
    "max": ("amax",),
    "min": ("amin",),
    "mul": ("multiply",),
    "ne": ("not_equal",),
    "neg": ("negative",),
    "rad2deg": ("degrees",),
    "remainder": ("mod",),
    "right_shift": ("bitwise_right_shift",),
    "round": ("around",),
    "silu": ("swish",),
    "soft_sign": ("softsign",),
    "sub": ("subtract",),
    "transpose": ("permute_dims",),
    "trunc": ("fix",),
    "vstack": ("row_stack",),
}
"""Other names of a function."""

_OF_NUMBERS = (
    "bartlett", "blackman", "broadcast_shapes", "diag_indices", "hamming", "hanning", "indices",
    "iinfo", "finfo", "kaiser", "mask_indices", "tril_indices", "triu_indices",
)  # fmt: skip
"""NumPy's own functions of numbers: their arrays are constants of a program."""

_REFUSED = dict.fromkeys(
    (
        "argwhere", "flatnonzero", "intersect1d", "nonzero", "setdiff1d", "setxor1d", "trim_zeros",
        "union1d", "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values",
    ),
    "the shape of its result depends on content; use sf.where or a sum over a mask",
) | dict.fromkeys(
    ("copyto", "place", "put", "putmask"),
    "values are not changed in place; use sf.where, or x.at[...].set(...)",
)  # fmt: skip


def _refused(name: str, reason: str) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise UsageError(f"{name} does not take values of a program: {reason}")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Refused: {reason}."
    return function


__all__ = [
    *sorted(
        {name for module in _MODULES for name in module.__all__}
        | {other for others in _ALIASES.values() for other in others}
        | set(_OF_NUMBERS)
    )
]
for _name, _others in _ALIASES.items():
    globals().update({other: globals()[_name] for other in _others})
globals().update({name: getattr(np, name) for name in _OF_NUMBERS})
globals().update({name: _refused(name, reason) for name, reason in _REFUSED.items()})


def __dir__() -> list[str]:
    return __all__


_FOLDS = {
    "reduce": {
        "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min",
        "logical_and": "all", "logical_or": "any", "logaddexp": "logsumexp",
    },
    "accumulate": {
        "add": "cumsum", "multiply": "cumprod", "maximum": "cummax", "minimum": "cummin",
        "logaddexp": "cumlogsumexp",
    },
}  # fmt: skip
"""What stands for a method of a ufunc."""


_LINALG: dict[str, Callable[..., Any]] = {
    name: globals()[name]
    for name in ("cross", "matmul", "matrix_transpose", "norm", "outer", "tensordot", "vecdot")
} | {"diagonal": linear.last_diagonal, "trace": linear.last_trace}
"""What stands for functions of numpy.linalg: np.trace is of the first two axes, np.linalg.trace of
the last two."""


def _numpy_function(
    name: str, method: str = "__call__", module: str | None = "numpy"
) -> Callable[..., Any] | None:
    """What stands for NumPy's function of that name, or for a method of it."""
    if module == "numpy.linalg":
        return _LINALG.get(name)
    if module not in ("numpy", None):
        return None  # np.emath.sqrt is not np.sqrt
    if method == "outer":
        return _outer(name)
    if method != "__call__":
        name = _FOLDS.get(method, {}).get(name, "")
    found = globals().get(name) if name in __all__ or name in _REFUSED else None
    return found if callable(found) else None


_OF_TORCH = ({*elementwise.__all__, *elementary.__all__} - {"choose", "piecewise", "select"}) | {
    "abs", "amax", "amin", "any", "all", "argmax", "argmin", "concat", "concatenate", "cumprod",
    "cumsum", "dot", "eq", "flip", "ge", "gelu", "gt", "inner", "kron", "le", "log_softmax",
    "logsumexp", "lt", "matmul", "mean", "moveaxis", "outer", "prod", "ravel", "relu", "reshape",
    "roll", "sigmoid", "softmax", "squeeze", "stack", "sum", "swapaxes", "tensordot", "tril",
    "triu", "einsum",
}  # fmt: skip
"""Functions that PyTorch has with the same meaning. Others of the same name differ: its std divides
by n - 1, its median is an element, its split takes the size of parts."""


def _torch_function(name: str) -> Callable[..., Any] | None:
    own = next((own for own, others in _ALIASES.items() if name in others), name)
    return globals()[own] if own in _OF_TORCH else None


def _outer(name: str) -> Callable[..., Any] | None:
    function = _numpy_function(name)
    if function is None:
        return None

    def combined(a: Any, b: Any) -> Any:
        other = np.ndim(b) if not isinstance(b, Value) else b.ndim
        a = a if isinstance(a, Value) else np.asarray(a)
        return function(a[(..., *(None,) * other)] if a.ndim else a.item(), b)

    return combined


def _binary(operation: str, a: Any, b: Any) -> Any:
    """An operator; NotImplemented for what has no meaning beside a value."""
    if builtins.any(isinstance(x, (str, bytes, dict, set, type(None))) for x in (a, b)):
        if operation in ("eq", "ne"):
            return operation == "ne"
        return NotImplemented
    return globals()[operation](a, b)


functions.update({name: globals()[name] for name in __all__ if name not in _OF_NUMBERS})
functions.update(binary=_binary, index=index, at=At)
functions.update(numpy_function=_numpy_function, torch_function=_torch_function)
