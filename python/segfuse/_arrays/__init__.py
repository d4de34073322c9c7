"""Whose arrays are these? The one adapter to array libraries, for the CRF and for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from .._dtypes import dtype_name
from .._errors import UsageError
from .._numbers import need_plain
from .base import ELSEWHERE, ON_HOST, Kind, NoArray
from .jax import JaxKind, is_inside_jax, made_alike, results_like
from .numpy import NumpyKind, ScalarKind
from .torch import SharedOutKind, TorchKind, derivative_of, need_layout, transforms_active

__all__ = [
    "ELSEWHERE",
    "JAX",
    "Kind",
    "NUMPY",
    "ON_HOST",
    "OTHER",
    "SCALAR",
    "SHARED_OUT",
    "STATIC",
    "TORCH",
    "TRACED",
    "derivative_of",
    "describe",
    "integers",
    "is_inside_jax",
    "kind_of",
    "known",
    "library_of",
    "made_alike",
    "need_layout",
    "readable",
    "results_like",
    "signature_of",
    "transforms_active",
]

STATIC: Kind = NoArray()
NUMPY: Kind = NumpyKind()
SCALAR: Kind = ScalarKind()
TORCH: Kind = TorchKind()
SHARED_OUT: Kind = SharedOutKind()
JAX: Kind = JaxKind()
OTHER: Kind = Kind()
"""Another array with DLPack or `__cuda_array_interface__`."""
TRACED: Kind = NoArray()
"""A value or a size of a program; those types add themselves to `known`."""

known: dict[type, Kind] = {np.ndarray: NUMPY}
"""The kinds of the types that were seen."""


def kind_of(value: Any) -> Kind:
    """By its type, which is looked at once."""
    kind = known.get(type(value))
    if kind is None:
        kind = known[type(value)] = _find_kind(value)
    return kind


def _find_kind(value: Any) -> Kind:
    torch = sys.modules.get("torch")
    jax = sys.modules.get("jax")
    if isinstance(value, np.ndarray):
        need_plain("an argument", value)
        return NUMPY
    if isinstance(value, np.generic):
        return SCALAR
    if torch is not None and isinstance(value, torch.Tensor):
        return SHARED_OUT if hasattr(value, "device_mesh") else TORCH
    if jax is not None and isinstance(value, jax.Array):
        return JAX
    if hasattr(value, "__dlpack_device__") or hasattr(value, "__cuda_array_interface__"):
        return OTHER
    return STATIC


def library_of(kinds: Iterable[Kind]) -> Kind:
    """Whose arrays come out: PyTorch's or JAX's if there is one among those that go in."""
    found = {TORCH, JAX}.intersection(kinds)
    if len(found) > 1:
        raise UsageError("found arrays of PyTorch and of JAX in one call, expected one library")
    return found.pop() if found else NUMPY


def describe(value: Any) -> str:
    """What something is, for messages."""
    shape = getattr(value, "shape", None)
    if not kind_of(value).is_array or shape is None:
        return f"a {type(value).__name__}"
    return f"a {type(value).__name__} of dtype {value.dtype} and shape {tuple(shape)}"


def signature_of(name: str, array: Any) -> tuple[str, tuple[int, ...]]:
    """dtype and shape; UsageError for objects that programs do not accept."""
    if not kind_of(array).is_array:
        raise UsageError(f"{name} is {describe(array)}, expected an array")
    if isinstance(array, np.ndarray) and not array.dtype.isnative:
        raise UsageError(
            f"{name} is {describe(array)}, expected an array in the byte order of this machine; "
            "pass x.astype(x.dtype.newbyteorder('='))"
        )
    try:
        return dtype_name(array.dtype), tuple(array.shape)
    except UsageError:
        raise UsageError(
            f"{name} is {describe(array)}; arrays may be bool, int32, int64, float16, bfloat16, "
            "float32 or float64"
        ) from None


def readable(name: str, array: Any, *, differentiable: bool = False) -> Any:
    """The array as the CRF takes it; None stays None."""
    if array is None:
        return None
    need_plain(name, array)
    return kind_of(array).readable(name, array, differentiable=differentiable)


def integers(name: str, values: Any) -> Any:
    """An array of integers as the CRF takes it; lists and tuples of numbers are welcome."""
    if values is None or hasattr(values, "__dlpack__"):
        return readable(name, values)
    array = np.asarray(values)
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise UsageError(f"{name} holds {array.dtype} numbers, expected integers")
    return array
