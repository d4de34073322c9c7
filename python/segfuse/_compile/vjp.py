"""Gradients of functions over values: what `grad` and PyTorch's autograd compile."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .. import _arrays, _native
from .._dtypes import is_float
from .._errors import UsageError
from .._program.lift import as_value
from .._program.sizes import Size
from .._program.value import Value
from .tree import flatten, map_leaves, unflatten


def differentiated(
    function: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool
) -> Callable[..., Any]:
    """(result, gradients) of values."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    name = getattr(function, "__name__", "the function")

    def both(*args: Any, **kwargs: Any) -> Any:
        wrt: list[Value] = []
        structures = []
        fresh = list(args)
        for i in numbers:
            if not -len(args) <= i < len(args):
                raise UsageError(f"grad: {name} got {len(args)} arguments, expected one at {i}")
            leaves: list[Any] = []
            structures.append(flatten(args[i], leaves))
            own = [_differentiable(name, i, leaf) for leaf in leaves]
            wrt += own
            fresh[i] = unflatten(structures[-1], iter(own))
        result = function(*fresh, **kwargs)
        gradients = iter(_gradients(name, result[0] if has_aux else result, wrt))
        trees = tuple(unflatten(structure, gradients) for structure in structures)
        return result, trees[0] if isinstance(argnums, int) else trees

    return both


def narrowed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with results of 64 bits as ones of 32."""

    def narrow(leaf: Any) -> Any:
        if isinstance(leaf, Size):
            leaf = as_value(leaf._fusion, leaf, "int64")
        narrower = {"int64": "int32", "float64": "float32"}.get(getattr(leaf, "dtype", ""))
        return leaf if narrower is None else leaf.astype(narrower)

    @functools.wraps(function)
    def function_of_32_bits(*args: Any, **kwargs: Any) -> Any:
        return map_leaves(narrow, function(*args, **kwargs))

    return function_of_32_bits


def pulled_back(function: Callable[..., Any]) -> Callable[..., Any]:
    """The vector-Jacobian product of a function, by chosen leaves of its arguments."""

    @functools.wraps(function)
    def backward(arguments: Any, cotangents: Sequence[Value], wanted: Sequence[int]) -> Any:
        wrt, floats = _applied_anew(function, arguments, wanted)
        return _pulled(floats, cotangents, wrt)

    return backward


def pushed_forward(function: Callable[..., Any]) -> Callable[..., Any]:
    """The Jacobian-vector product of a function, by chosen leaves of its arguments: the
    vector-Jacobian product is linear in its cotangents, and this is its transpose."""

    @functools.wraps(function)
    def forward(arguments: Any, tangents: Sequence[Value], wanted: Sequence[int]) -> Any:
        wrt, floats = _applied_anew(function, arguments, wanted)
        zeros = [
            Value(x._fusion, x._fusion._native.full(0, x._native.shape(), x.dtype)) for x in floats
        ]
        cotangents = [_anew(zero) for zero in zeros]
        return _pulled(_pulled(floats, cotangents, wrt), tangents, cotangents)

    return forward


def _applied_anew(
    function: Callable[..., Any], arguments: Any, wanted: Sequence[int]
) -> tuple[list[Value], list[Value]]:
    """Fresh copies of the chosen leaves, and the float results of the function on them."""
    leaves: list[Any] = []
    structure = flatten(arguments, leaves)
    wrt = [_anew(leaves[i]) for i in wanted]
    for i, value in zip(wanted, wrt, strict=True):
        leaves[i] = value
    args, kwargs = unflatten(structure, iter(leaves))
    results: list[Any] = []
    flatten(function(*args, **kwargs), results, in_order=True)
    return wrt, [x for x in results if isinstance(x, Value) and is_float(x.dtype)]


def _pulled(
    results: Sequence[Value], cotangents: Sequence[Value], wrt: Sequence[Value]
) -> tuple[Value, ...]:
    terms = [(x * c).sum() for x, c in zip(results, cotangents, strict=True)]
    ones = [x._fusion._native.constant(1, x.dtype) for x in terms]
    natives = _native.vjp([x._native for x in terms], ones, [x._native for x in wrt])
    return tuple(Value(wrt[0]._fusion, native) for native in natives)


def _anew(value: Value) -> Value:
    """A fresh copy of the value, so that other values that depend on it are not differentiated."""
    return Value(value._fusion, _native.reshape(value._native, value._native.shape()))


def _differentiable(name: str, argument: int, leaf: Any) -> Value:
    """A fresh copy of the argument."""
    if not isinstance(leaf, Value):
        raise UsageError(
            f"grad: argument {argument} of {name} holds {_arrays.describe(leaf)}, expected arrays "
            "of floats; pass a number as np.float32(number)"
        )
    if not is_float(leaf.dtype):
        raise UsageError(f"grad: argument {argument} of {name} holds {leaf!r}, expected floats")
    return _anew(leaf)


def _gradients(name: str, scalar: Any, wrt: list[Value]) -> list[Value]:
    if not wrt:
        return []
    fusion = wrt[0]._fusion
    if not isinstance(scalar, Value):
        if isinstance(scalar, (int, float)):  # a constant
            zero = fusion._native.full
            return [Value(fusion, zero(0, v._native.shape(), v.dtype)) for v in wrt]
        raise UsageError(f"grad: {name} gave {_arrays.describe(scalar)}, expected a scalar")
    if scalar.ndim != 0 or not is_float(scalar.dtype):
        raise UsageError(f"grad: {name} gave {scalar!r}, expected a scalar of a float type")
    one = fusion._native.constant(1, scalar.dtype)
    natives = _native.vjp([scalar._native], [one], [v._native for v in wrt])
    return [Value(fusion, native) for native in natives]
