"""Traces: a function run once on values, as a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _gpu, _native
from .._arrays import STATIC, signature_of
from .._program.fusion import Fusion
from .._program.lift import as_value, traced
from .._program.sizes import Guard, Size
from .._program.value import Value
from .call import Call
from .tree import flatten, unflatten

OUTSIDE = "an array from outside the function"


class Trace:
    """One trace, ready to run."""

    def __init__(self, function: Callable[..., Any], call: Call, how: dict[str, Any]) -> None:
        fusion = Fusion(getattr(function, "__name__", "function"))
        self.fusion = fusion
        numbers: dict[str, int] = {}
        fusion._numbers = numbers
        values = iter([self._input(fusion, numbers, call, i) for i in range(len(call.leaves))])
        args, kwargs = unflatten(call.structure, values)
        with traced(fusion):
            result = function(*args, **kwargs)
        self.leaves: list[Any] = []
        self.structure = flatten(result, self.leaves, in_order=True)
        self.places = [self._output(fusion, leaf) for leaf in self.leaves]
        self.arrays = [i for i, kind in enumerate(call.kinds) if kind is not STATIC]
        self.axes = [(name, i, axis) for name, (i, axis) in call.axes.items()]
        self.guards: list[Guard] = list(fusion._guards.values())
        self.captured = fusion._outside()
        self.program: _native.Program | None = None
        if fusion._outputs:
            self.program = _native.Program(fusion._native, **how)
        self.check_numerics: bool = how["check_numerics"]
        self.runners: dict[int, _gpu.Runner] = {}
        self.jax_calls: dict[str, int] = {}
        """Numbers of XLA's calls, by their arrays."""
        self.dtypes = [value.dtype for value in fusion._outputs]
        fusion._numbers = None  # from here on it says nothing of sizes

    @staticmethod
    def _input(fusion: Fusion, numbers: dict[str, int], call: Call, i: int) -> Any:
        if call.kinds[i] is STATIC:
            return call.leaves[i]
        dtype, shape = signature_of(call.name(i), call.leaves[i])
        name = call.input_name(i)
        sizes: list[Any] = []
        for axis, size in enumerate(shape):
            if size == 1:
                sizes.append(1)
                continue
            symbol = f"{name}_{axis}"
            numbers[symbol] = size
            call.axes[symbol] = (i, axis)
            fusion._not_one |= {f"{symbol} - 1", f"-{symbol} + 1"}
            sizes.append(symbol)
        return fusion.input(name, dtype, sizes)

    @staticmethod
    def _output(fusion: Fusion, leaf: Any) -> int | None:
        """The place of a leaf among the outputs; None for other objects."""
        if isinstance(leaf, Size):
            leaf = as_value(fusion, leaf, "int64")
        if not isinstance(leaf, Value):
            return None
        fusion.output(leaf)
        return len(fusion._outputs) - 1

    def admits(self, call: Call) -> bool:
        """Whether all that was looked at is the same in another call of the same class."""
        if not self.guards:
            return True
        numbers = {name: call.leaves[i].shape[axis] for name, i, axis in self.axes}
        return all(guard.admits(numbers) for guard in self.guards)

    def runner(self, device: int, call: Call) -> _gpu.Runner:
        assert self.program is not None
        if device not in self.runners:
            names = [call.name(i) for i in self.arrays] + [OUTSIDE] * len(self.captured)
            self.runners[device] = _gpu.Runner(self.program, device, names, self.dtypes)
        return self.runners[device]
