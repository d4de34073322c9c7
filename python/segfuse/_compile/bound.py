"""Traces for one exact signature, ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from .. import _gpu
from .._arrays import NUMPY, ON_HOST, TORCH, Kind, kind_of, library_of
from .._errors import UsageError
from .call import Call
from .trace import OUTSIDE, Trace
from .tree import LEAF, unflatten

Outside: TypeAlias = Mapping[int, tuple[Any, Any]]
"""What is read instead of arrays from outside a function: by their id(), after themselves."""

_AS_THEY_ARE: Outside = MappingProxyType({})


class Bound:
    """A trace for one exact signature: nothing is left to decide."""

    __slots__ = (
        "_execute", "_finish", "_inputs", "_is_tuple", "_outside", "_which", "is_one", "trace",
    )  # fmt: skip

    def __init__(self, trace: Trace, call: Call) -> None:
        self.trace = trace
        kinds = [call.kinds[i] for i in trace.arrays]
        outside = [kind_of(array) for array in trace.captured]
        self._finish = library_of(kinds + outside).finisher(trace.dtypes)
        self._which = trace.arrays if len(trace.arrays) != len(call.leaves) else None
        self._outside = [(OUTSIDE, kind) for kind in outside]
        self._inputs: list[tuple[str, Kind]] | None = None  # where nothing is to be done
        if any(
            kind is not NUMPY or call.is_bits(i)
            for i, kind in zip(trace.arrays, kinds, strict=True)
        ):
            self._inputs = [(call.name(i), call.kinds[i]) for i in trace.arrays]
        flat = trace.places == list(range(len(trace.places)))
        parts = () if trace.structure is LEAF else trace.structure
        self.is_one = flat and trace.structure is LEAF
        """Whether the function's result is one array."""
        self._is_tuple = flat and parts[:1] == (tuple,) and all(x is LEAF for x in parts[1:])
        self._execute: Callable[..., list[Any]] = _nothing
        if trace.program is not None:
            self._execute = trace.program.run

    def run(self, leaves: Sequence[Any], outside: Outside = _AS_THEY_ARE) -> list[Any]:
        """The arrays in the result, flat; whole() is what the function gives."""
        arrays = list(leaves) if self._which is None else [leaves[i] for i in self._which]
        if self._inputs is not None:
            arrays = [
                kind.host_view(name, array)
                for (name, kind), array in zip(self._inputs, arrays, strict=True)
            ]
        if self._outside:
            for (name, kind), array in zip(self._outside, self._taken(outside), strict=True):
                if kind.place(array) != ON_HOST:
                    kind.need_device(name, array)
                    raise _moved()
                kind.need_constant(name, array)
                arrays.append(kind.host_view(name, array))
        results = self._execute(arrays, [], False)
        return results if self._finish is None else self._finish(results)

    def _taken(self, outside: Outside) -> list[Any]:
        captured = self.trace.captured
        return [outside.get(id(x), (x, x))[1] for x in captured] if outside else captured

    def make_known(
        self, quick: Any, tensors: tuple[Any, ...], orders: Sequence[list[int] | None]
    ) -> None:
        """Lets `quick` do calls with tensors like these, if it can."""

    def whole(self, results: list[Any]) -> Any:
        """The function's result from the arrays in it."""
        trace = self.trace
        if self.is_one:
            return results[0]
        if self._is_tuple:
            return tuple(results)
        whole = (
            leaf if place is None else results[place]
            for leaf, place in zip(trace.leaves, trace.places, strict=True)
        )
        return unflatten(trace.structure, whole)


class _Copied(Bound):
    """Arrays of the host on a GPU: they travel, and so do the results."""

    __slots__ = ("_runner",)

    def __init__(self, trace: Trace, call: Call, runner: _gpu.Runner) -> None:
        super().__init__(trace, call)
        self._runner = runner
        self._execute = self._run_there

    def _run_there(self, arrays: list[Any], *how: Any) -> list[Any]:
        if self.trace.check_numerics:
            assert self.trace.program is not None
            self.trace.program.run(arrays, *how)
        return self._runner.run_on_copies(arrays)


class _OnGpu(Bound):
    """Arrays on a GPU, where the results are made."""

    __slots__ = ("_kinds", "_names", "_outputs", "_places", "_prepared", "_runner", "_shapes")

    def __init__(
        self,
        trace: Trace,
        call: Call,
        device: int,
        names: list[str],
        kinds: list[Kind],
        places: list[int],
    ) -> None:
        super().__init__(trace, call)
        self._names, self._kinds, self._places = names, kinds, places
        self._runner = trace.runner(device, call)
        self._shapes = [tuple(x.shape) for x in trace.captured]
        leaves = [tuple(call.leaves[i].shape) for i in trace.arrays]
        self._prepared = self._runner.prepared((*leaves, *self._shapes))
        self._outputs: list[Any] | None = None
        if library_of(kinds) is TORCH:
            self._outputs = self._runner.torch_outputs(self._prepared)

    def make_known(
        self, quick: Any, tensors: tuple[Any, ...], orders: Sequence[list[int] | None]
    ) -> None:
        """See Runner.make_known. Nothing where a call has more to do than to run the program."""
        plain = self._is_tuple and self._which is None and not self._outside
        if plain and self._outputs is not None and not self.trace.check_numerics:
            self._runner.make_known(quick, tensors, self._prepared, self._outputs, orders)

    def run(self, leaves: Sequence[Any], outside: Outside = _AS_THEY_ARE) -> list[Any]:
        trace = self.trace
        arrays = list(leaves) if self._which is None else [leaves[i] for i in self._which]
        if self._outside:
            taken = self._taken(outside)
            for (name, kind), array, shape, place in zip(
                self._outside,
                taken,
                self._shapes,
                self._places[len(arrays) :],
                strict=True,
            ):
                if kind.place(array) != place or tuple(array.shape) != shape:
                    raise _moved()
                kind.need_constant(name, array)
            arrays += taken
        if trace.check_numerics:
            copies = [
                kind.host_view(name, kind.host_copy(name, array))
                for name, array, kind in zip(self._names, arrays, self._kinds, strict=True)
            ]
            self._execute(copies, [], False)
        if self._outputs is None:
            return self._runner.run(arrays, self._kinds, self._places)
        return self._runner.run_torch(
            self._prepared, self._outputs, arrays, self._kinds, self._places
        )


def _nothing(*_: Any) -> list[Any]:
    """A function without values in its result has no program."""
    return []


def _moved() -> UsageError:
    return UsageError(
        f"{OUTSIDE} has another shape, or lies elsewhere, than when the function was traced; call "
        "cache_clear() after moving it, or pass it as an argument"
    )


def bind(trace: Trace, call: Call, device: int | None) -> Bound:
    """`device` is what the function was compiled for: None for wherever the arrays are."""
    names = [call.name(i) for i in trace.arrays] + [OUTSIDE] * len(trace.captured)
    kinds = [call.kinds[i] for i in trace.arrays] + [kind_of(x) for x in trace.captured]
    arrays = [call.leaves[i] for i in trace.arrays] + trace.captured
    places = [kind.place(x) for x, kind in zip(arrays, kinds, strict=True)]
    found = _gpu.device_of(device, places, names)
    if trace.program is None or (found is None and (device is None or device < 0)):
        return Bound(trace, call)
    if found is not None:
        # NumPy's arrays have no device that a function could have chosen for its constants.
        given = len(trace.arrays)
        travels = [i >= given and kind is NUMPY for i, kind in enumerate(kinds)]
        _gpu.need_numbers(names, arrays, places, travels, found)
        return _OnGpu(trace, call, found, names, kinds, places)
    assert device is not None
    return _Copied(trace, call, trace.runner(device, call))
