"""Arrays of JAX."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._errors import UsageError
from .base import ELSEWHERE, Kind


def is_inside_jax(array: Any) -> bool:
    """Whether an array of JAX is a value of one of its transformations, without content."""
    return isinstance(array, sys.modules["jax"].core.Tracer)


def _axes_of(array: Any) -> frozenset[Any]:
    """The axes of a mesh along which an array inside jax.shard_map differs."""
    jax = sys.modules["jax"]
    aval = jax.typeof(array) if hasattr(jax, "typeof") else None
    manual = getattr(aval, "manual_axis_type", None)
    return frozenset(manual.varying if manual is not None else getattr(aval, "vma", ()))


def made_alike(arrays: Sequence[Any]) -> list[Any]:
    """The arrays (or None) of one call, all differing along the same axes inside jax.shard_map.
    JAX adds up the gradients of those that did not."""
    axes = frozenset[Any]().union(*(_axes_of(x) for x in arrays if x is not None))
    return [None if x is None else _differing(x, axes) for x in arrays]


def results_like(array: Any, results: Sequence[Any]) -> list[Any]:
    """What a custom call has given, whose arguments were made alike; `array` is one of them. JAX
    takes results of custom calls to be the same everywhere."""
    return [_differing(x, _axes_of(array)) for x in results]


def _differing(array: Any, axes: frozenset[Any]) -> Any:
    missing = tuple(axes - _axes_of(array)) if axes else ()
    if not missing:
        return array
    lax = sys.modules["jax"].lax
    if hasattr(lax, "pcast"):
        return lax.pcast(array, missing, to="varying")
    return lax.pvary(array, missing)


class JaxKind(Kind):
    # What XLA on a CPU asks of memory that it is to use in place.
    _ALIGNMENT = 64

    @functools.cached_property
    def _jax(self) -> Any:
        return sys.modules["jax"]

    def _need_array(self, name: str, array: Any) -> None:
        if is_inside_jax(array):
            raise UsageError(
                f"{name} is a value inside a JAX transformation; there take the CRF's functions "
                "from segfuse.jax, call compiled functions with it as an argument, or use "
                "jax.pure_callback"
            )
        devices = len(array.sharding.device_set)
        if devices > 1:
            raise UsageError(
                f"{name} is spread over {devices} devices, expected one; pass jax.device_get(x), "
                "or take the CRF's functions from segfuse.jax inside jit"
            )

    def place(self, array: Any) -> int:
        if is_inside_jax(array):
            return ELSEWHERE
        try:
            return super().place(array)
        except BufferError:  # spread over several devices
            return ELSEWHERE

    def need_device(self, name: str, array: Any) -> None:
        self._need_array(name, array)
        super().need_device(name, array)

    def writable(self, array: Any) -> bool:
        return False

    def readable(self, name: str, array: Any, *, differentiable: bool) -> Any:
        self._need_array(name, array)
        super().readable(name, array, differentiable=differentiable)
        return self._jax.block_until_ready(array)

    def host_view(self, name: str, array: Any) -> Any:
        array = self._jax.block_until_ready(array)
        return np.asarray(array).view(np.uint16) if array.dtype.name == "bfloat16" else array

    def host_copy(self, name: str, array: Any) -> Any:
        return np.asarray(array)

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        memory = np.empty(size + self._ALIGNMENT, np.uint8)
        offset = -memory.ctypes.data % self._ALIGNMENT
        return memory[offset : offset + size].view(dtype).reshape(shape)

    def result(self, array: np.ndarray) -> Any:
        # jnp.asarray narrows 64-bit numbers to 32 unless JAX is set to keep them.
        return self._jax.numpy.asarray(array)

    def finisher(self, dtypes: Sequence[str]) -> Callable[[list[Any]], list[Any]]:
        own, asarray = super().finisher(dtypes), self._jax.numpy.asarray
        if own is None:
            return lambda results: [asarray(x) for x in results]
        return lambda results: [asarray(x) for x in own(results)]

    def from_dlpack(self, like: Any) -> Callable[[Any], Any]:
        adopted: Callable[[Any], Any] = self._jax.dlpack.from_dlpack
        return adopted
