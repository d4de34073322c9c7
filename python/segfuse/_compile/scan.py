"""`scan`: calls a function once for each step, with a carry from step to step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _arrays, _native
from .._errors import UsageError
from .._program.fusion import Fusion
from .._program.lift import (
    as_value,
    common_dtype,
    fusion_of,
    same_size,
    shape_text,
    traced,
    value_of,
)
from .._program.sizes import Size, native_size
from .._program.value import Value
from .tree import flatten, unflatten


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: Any = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Calls `f(carry, x)`, which returns the next carry and y, for each x along the first axis of
    `xs`.

        def step(h, x):
            h = sf.tanh(x + h @ w)
            return h, h

        last, all = segfuse.scan(step, sf.zeros((b, n)), xs)

    `scan` corresponds to `jax.lax.scan`. `init` and `xs` are trees (tuples, lists, dicts) of
    arrays. The carry keeps its types and shapes. The result is (last carry, the y of all steps
    stacked along a new first axis). With `reverse`, the steps go from the last x to the first, and
    each y has the index of its x. Without `xs`, `length` is the number of steps. Values that `f`
    uses from outside are the same in each step; this includes random draws whose seed is from
    outside. `scan` is differentiable; it stores the carry of each step for the backward pass.

    Use it in functions that `segfuse.compile` traces, or on values of a `segfuse.Fusion`. On a GPU
    each step launches its kernels, at a few microseconds for each kernel.
    """
    start: list[Any] = []
    carry_structure = flatten(init, start)
    along: list[Any] = []
    xs_structure = flatten(xs, along) if xs is not None else None
    around = fusion_of("scan", start + along)
    carries = [_leaf(around, "init", leaf) for leaf in start]
    sequences = [_leaf(around, "xs", leaf) for leaf in along]
    steps = _length(around, sequences, length)

    body = Fusion._body(getattr(f, "__name__", "step"), around)
    own = [_input(body, f"carry_{i}", x, x._native.shape()) for i, x in enumerate(carries)]
    step = [_input(body, f"x_{i}", x, x._native.shape()[1:]) for i, x in enumerate(sequences)]
    x = None if xs_structure is None and xs is None else unflatten(xs_structure, iter(step))
    with traced(body):
        result = f(unflatten(carry_structure, iter(own)), x)
    if not isinstance(result, tuple) or len(result) != 2:
        raise UsageError(
            f"scan: the function returned {_arrays.describe(result)}, expected (carry, y)"
        )
    after: list[Any] = []
    after_structure = flatten(result[0], after)
    if after_structure != carry_structure:
        raise UsageError(
            "scan: the carry that the function returns has another structure than init; "
            f"found {len(after)} leaves, expected {len(start)} in the same tree"
        )
    for i, (before, leaf) in enumerate(zip(own, after, strict=True)):
        body.output(_like(body, i, before, leaf))
    stacked: list[Any] = []
    stacked_structure = flatten(result[1], stacked)
    for leaf in stacked:
        if leaf is not None:
            body.output(_leaf(body, "y", leaf))
    constants = [there._native for there, _ in body._inherited.values()]
    last, all_steps = _native.scan(
        body._native,
        [x._native for x in carries],
        [x._native for x in sequences],
        constants,
        native_size(steps),
        bool(reverse),
    )
    given = iter([Value(around, native) for native in all_steps])
    ys = [None if leaf is None else next(given) for leaf in stacked]
    return (
        unflatten(carry_structure, iter([Value(around, native) for native in last])),
        unflatten(stacked_structure, iter(ys)),
    )


def _leaf(fusion: Fusion, where: str, leaf: Any) -> Value:
    found = value_of(fusion, f"scan: {where}", leaf)
    return as_value(fusion, found, common_dtype([found]))


def _input(body: Fusion, name: str, like: Value, sizes: list[_native.Size]) -> Value:
    return Value(body, body._native.input(name, like.dtype, sizes))


def _length(around: Fusion, sequences: list[Value], length: Any) -> Any:
    if length is not None and not isinstance(length, (int, Size)):
        raise UsageError(f"scan: length is {_arrays.describe(length)}, expected a size")
    steps = length
    for i, x in enumerate(sequences):
        if x.ndim == 0:
            raise UsageError(f"scan: array {i} of xs is {x!r}, expected at least one axis")
        if steps is None:
            steps = x.shape[0]
        elif not same_size(around, steps, x.shape[0]):
            raise UsageError(
                f"scan: array {i} of xs has the shape {shape_text(around, x.shape)}, "
                f"expected {around._number(steps)} steps along its first axis"
            )
    if steps is None:
        raise UsageError("scan: found neither xs nor length, expected one of them")
    if isinstance(steps, int) and steps < 0:
        raise UsageError(f"scan: length is {steps}, expected 0 or more")
    return steps


def _like(body: Fusion, i: int, before: Value, leaf: Any) -> Value:
    """The next carry, which has to be of the type of the one before."""
    after = value_of(body, "scan: the carry", leaf)
    if not isinstance(after, Value):
        after = as_value(body, after, common_dtype([after]))
    agree = after.dtype == before.dtype and after.ndim == before.ndim
    if agree:
        pairs = zip(before.shape, after.shape, strict=True)
        agree = all(same_size(body, a, b) for a, b in pairs)
    if not agree:
        raise UsageError(
            f"scan: leaf {i} of the carry comes as {before.dtype}"
            f"{shape_text(body, before.shape)} but the function returns it as {after.dtype}"
            f"{shape_text(body, after.shape)}; they must be alike"
        )
    return after
