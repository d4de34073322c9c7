"""Symbolic sizes of PyTorch as sizes of a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Mod, PythonMod

_DIVISIONS = (FloorDiv, CleanDiv)
_RESTS = (Mod, PythonMod)


def expression(size: Any) -> Any:
    """An int, or the expression of a symbolic size."""
    return size if isinstance(size, int) else size.node.expr


def symbols(expr: Any) -> set[sympy.Symbol]:
    return set() if isinstance(expr, int) else set(expr.free_symbols)


def writable(expr: Any) -> bool:
    """Whether a program can calculate the size: by sums, products and whole divisors."""
    if isinstance(expr, int) or expr.is_Integer or expr.is_Symbol:
        return True
    if expr.is_Add or expr.is_Mul:
        return all(writable(part) for part in expr.args)
    if expr.is_Pow:
        return writable(expr.args[0]) and expr.args[1].is_Integer and expr.args[1] > 0
    if isinstance(expr, _DIVISIONS + _RESTS):
        return writable(expr.args[0]) and expr.args[1].is_Integer and expr.args[1] > 0
    return False


def size_of(expr: Any, known: Mapping[sympy.Symbol, Any]) -> Any:
    """The size in a program; `known` are the sizes that symbols stand for."""
    if isinstance(expr, int):
        return expr
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol:
        return known[expr]
    first, *rest = (size_of(part, known) for part in expr.args)
    for part in rest:
        if expr.is_Add:
            first = first + part
        elif expr.is_Mul:
            first = first * part
        elif isinstance(expr, _DIVISIONS):
            first = first // part
        elif isinstance(expr, _RESTS):
            first = first % part
        else:
            first = _power(first, part)
    return first


def _power(size: Any, exponent: int) -> Any:
    result: Any = 1
    for _ in range(exponent):
        result = result * size
    return result


def hint(size: Any) -> int | None:
    """What PyTorch traced with; None where it has seen no size."""
    if isinstance(size, int):
        return size
    return size.node.hint if size.node.has_hint() else None


def may_be_negative(size: Any) -> bool:
    """Whether it may be below 0, as an argument of the model may that is a number."""
    return not statically_known_true(size >= 0)


def _dense(sizes: list[Any], strides: list[Any], order: list[int]) -> bool:
    """Whether the axes in that order lie in memory without gaps."""
    known: Callable[[Any], bool] = statically_known_true
    expected: Any = 1
    for axis in reversed(order):
        if known(sizes[axis] == 1):
            continue
        if not known(strides[axis] == expected):
            return False
        expected = expected * sizes[axis]
    return True


def memory_order(tensor: torch.Tensor) -> list[int] | None:
    """The axes from the outermost to the innermost in memory; None if there are gaps or repeated
    elements, or if that is not known for all sizes."""
    sizes, strides = list(tensor.shape), list(tensor.stride())
    order = list(range(len(sizes)))
    if any(statically_known_true(size == 0) for size in sizes) or _dense(sizes, strides, order):
        return order
    hints = [hint(stride) for stride in strides]
    if any(known is None for known in hints):
        return None
    order.sort(key=lambda axis: -(hints[axis] or 0))
    return order if _dense(sizes, strides, order) else None


def plain_symbols(shape: Any) -> Iterator[tuple[int, sympy.Symbol]]:
    """(axis, symbol) of the sizes that are one symbol."""
    for axis, size in enumerate(shape):
        expr = expression(size)
        if not isinstance(expr, int) and expr.is_Symbol:
            yield axis, expr
