"""Compiled functions inside JAX's transformations: each is a custom call, and so is its
derivative."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _native
from .._arrays import (
    JAX,
    NUMPY,
    SCALAR,
    STATIC,
    describe,
    kind_of,
    made_alike,
    results_like,
)
from .._errors import UsageError
from .call import Call
from .tree import unflatten

if TYPE_CHECKING:
    from jax import Array

    from .compiled import Compiled


def call(compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The function's result where JAX traces. Arrays of NumPy become JAX's."""
    if compiled._device is not None or compiled._how["check_numerics"]:
        raise UsageError(
            f"{compiled._name()} was compiled with device= or check_numerics=True, and is called "
            "inside a JAX transformation; compile it without them"
        )
    given = Call(args, kwargs)
    leaves = [_as_jax(given.name(i), leaf) for i, leaf in enumerate(given.leaves)]
    site = _Site(compiled._narrowing(_narrows()), given, leaves)
    results = _function()(site, *made_alike([leaves[i] for i in site.places]))
    return site.whole(list(results))


def _narrows() -> bool:
    """Whether JAX is set to have no numbers of 64 bits."""
    jax = sys.modules["jax"]
    return bool(jax.dtypes.canonicalize_dtype(np.int64) != np.int64)


def _as_jax(name: str, leaf: Any) -> Any:
    kind = kind_of(leaf)
    if kind is NUMPY or kind is SCALAR:
        return sys.modules["jax"].numpy.asarray(leaf)
    if kind is not JAX and kind is not STATIC:
        raise UsageError(
            f"{name} is {describe(leaf)} beside values inside a JAX transformation, expected an "
            "array of JAX or NumPy"
        )
    return leaf


class _Site:
    """A call of a function with arrays of these shapes."""

    def __init__(self, compiled: Compiled, given: Call, leaves: Sequence[Any]) -> None:
        self.compiled = compiled
        self._structure = given.structure
        self._leaves = [None if kind_of(x) is JAX else x for x in leaves]
        self.places = [i for i, x in enumerate(leaves) if kind_of(x) is JAX]
        args, kwargs = unflatten(given.structure, iter(leaves))
        call = Call(args, kwargs)
        call.in_jax = True  # also where arrays have content, which may be spread over devices
        call.need_hashable()
        for i in self.places:
            if not all(isinstance(size, int) for size in leaves[i].shape):
                raise UsageError(
                    f"{call.name(i)} has shape {leaves[i].shape}; compiled functions need the "
                    "numbers, so export the function for fixed shapes"
                )
        trace = self._trace = compiled._trace_for(call)
        # Not the arrays: JAX may keep a site for longer than its values of a transformation live.
        self._sizes = {name: int(leaves[i].shape[axis]) for name, i, axis in trace.axes}

    def arguments(self, arrays: Sequence[Array]) -> Any:
        """(args, kwargs) with these arrays."""
        leaves = list(self._leaves)
        for i, array in zip(self.places, arrays, strict=True):
            leaves[i] = array
        return unflatten(self._structure, iter(leaves))

    def run(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        trace = self._trace
        if trace.program is None:
            return ()
        outside = [_constant(array) for array in trace.captured]
        inputs = [(str(x.dtype), list(x.shape), False) for x in arrays]
        inputs += [(dtype, shape, as_bytes) for dtype, shape, as_bytes, _ in outside]
        outputs = [
            (value.dtype, [size.evaluate(self._sizes) for size in value._native.shape()], False)
            for value in trace.fusion._outputs
        ]
        key = repr((inputs, outputs))
        if key not in trace.jax_calls:
            how = sorted(self.compiled._how.items())
            text = repr((trace.program.emit("ir"), how, inputs, outputs))
            digest = hashlib.sha256(text.encode()).hexdigest()
            trace.jax_calls[key] = _native.xla_program(trace.program, inputs, outputs, digest)
        jax = sys.modules["jax"]
        results = [
            jax.ShapeDtypeStruct(shape, jax.numpy.dtype(dtype)) for dtype, shape, _ in outputs
        ]
        run = jax.ffi.ffi_call("segfuse_program", results, vmap_method="sequential")
        constants = (array for *_, array in outside)
        found = run(*arrays, *constants, call=np.int64(trace.jax_calls[key]))
        return tuple(results_like(arrays[0], found))

    def whole(self, results: list[Any]) -> Any:
        trace = self._trace
        parts = (
            leaf if place is None else results[place]
            for leaf, place in zip(trace.leaves, trace.places, strict=True)
        )
        return unflatten(trace.structure, parts)


def _constant(array: Any) -> tuple[str, list[int], bool, Any]:
    """An array from outside the function; NumPy's as bytes, which JAX does not narrow."""
    kind = kind_of(array)
    if kind is JAX:
        return str(array.dtype), list(array.shape), False, array
    if kind is not NUMPY and kind is not SCALAR:
        raise UsageError(
            f"the function uses {describe(array)} from outside, and is called inside a JAX "
            "transformation; pass it as an argument"
        )
    own = np.ascontiguousarray(array)
    return str(array.dtype), list(array.shape), True, own.reshape(-1).view(np.uint8)


@functools.cache
def _function() -> Any:
    """What JAX differentiates, made at its first use."""
    import jax
    from jax import numpy as jnp

    for platform, on_gpu in (("cpu", False), ("CUDA", True)):
        handler = _native.xla_program_handler(on_gpu)
        jax.ffi.register_ffi_target("segfuse_program", handler, platform=platform)

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def apply(site: _Site, *arrays: Array) -> tuple[Array, ...]:
        return site.run(arrays)

    def forward(site: _Site, *arrays: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        return apply(site, *arrays), arrays

    def backward(site: _Site, arrays: tuple[Array, ...], cotangents: tuple[Array, ...]) -> Any:
        by_result = tuple(c for c in cotangents if c.dtype != jax.dtypes.float0)
        floats = [i for i, x in enumerate(arrays) if jnp.issubdtype(x.dtype, jnp.floating)]
        gradients: list[Any] = [None] * len(arrays)
        if floats and by_result:
            wanted = tuple(site.places[i] for i in floats)
            found = call(site.compiled._backward, (site.arguments(arrays), by_result, wanted), {})
            for i, gradient in zip(floats, found, strict=True):
                gradients[i] = gradient
        return tuple(gradients)

    apply.defvjp(forward, backward)
    return apply
