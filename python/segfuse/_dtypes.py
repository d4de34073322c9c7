"""Element types: their names, and which one two of them make together."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._errors import UsageError

NAMES = ("bool", "int32", "int64", "float16", "bfloat16", "float32", "float64")
_SHORT = {"i32": "int32", "i64": "int64", "f16": "float16", "bf16": "bfloat16"}
_SHORT |= {"f32": "float32", "f64": "float64", "float": "float32", "int": "int64"}
_PYTHON: dict[Any, str] = {bool: "bool", int: "int64", float: "float32"}
_RANK = {name: rank for rank, name in enumerate(NAMES)}

DTypeLike = Any
"""A name ("float32", "f32"), a dtype of NumPy, PyTorch or JAX, or bool, int, float of Python."""


def dtype_name(dtype: DTypeLike) -> str:
    """The name of an element type; UsageError for what is none of the seven."""
    if isinstance(dtype, type) and dtype in _PYTHON:
        return _PYTHON[dtype]
    name = _SHORT.get(str(dtype), str(dtype).removeprefix("torch."))
    if name not in _RANK:
        try:
            name = np.dtype(dtype).name
        except (TypeError, ValueError):
            name = str(dtype)
    if name not in _RANK:
        raise UsageError(f"found the dtype {dtype!r}, expected one of {', '.join(NAMES)}")
    return name


def dtype_for(own: str, dtype: DTypeLike) -> str:
    """The element type that values of the type `own` get: `float` of Python is float32, but does
    not make float64 narrower."""
    if own == "float64" and (dtype is float or (type(dtype) is str and dtype == "float")):
        return own
    return dtype_name(dtype)


class ElementType(str):
    """The name of an element type. It is equal to whatever else names the type, such as
    np.float32."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other is None or (isinstance(other, str) and str(other) in _RANK):
            return str.__eq__(self, other) is True
        if other is float or other == "float":
            raise UsageError(
                f"found a comparison of the dtype {self} with float, which is float64 in NumPy and "
                "float32 here; compare with np.float32 or np.float64"
            )
        try:
            return str.__eq__(self, dtype_name(other))
        except UsageError:
            return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


ELEMENT_TYPES = {name: ElementType(name) for name in NAMES}


def is_float(name: str) -> bool:
    return _RANK[name] >= _RANK["float16"]


def promote(a: str, b: str) -> str:
    """The type that holds both: floats over integers over bool, wider over narrower.

    An integer never widens a float (as in JAX and PyTorch); float16 with bfloat16 is float32.
    """
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    return a if _RANK[a] >= _RANK[b] else b


def with_number(dtype: str, number: float) -> str:
    """The type of a value beside a plain number, which is weak: it widens nothing."""
    if isinstance(number, float) and not is_float(dtype):
        return "float32"
    if not isinstance(number, bool) and dtype == "bool":
        return "int64"
    return dtype
