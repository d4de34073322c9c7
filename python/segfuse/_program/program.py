"""Programs that are ready to run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import _arrays, _gpu, _native
from .._errors import UsageError


def precision_of(value: Any) -> str:
    """The precision of matrix products of float32, which has to be one."""
    if not isinstance(value, str) or value not in ("float32", "tf32"):
        raise UsageError(f"precision is {value!r}, expected 'float32' or 'tf32'")
    return value


class Program:
    """A program that is ready to run on the CPU and on CUDA devices, made by `Fusion.build` or
    `Fusion.from_text`. One run at a time; others wait."""

    def __init__(self, native: _native.Program) -> None:
        self._native = native
        self._overwritten = native.overwritten()
        self._names = [name for name, _, _ in self._native.inputs()]
        self._quoted = [f"the input {name!r}" for name in self._names]
        self._dtypes = [dtype for _, dtype, _ in self._native.outputs()]
        self._runners: dict[int, _gpu.Runner] = {}

    @property
    def inputs(self) -> list[tuple[str, str, str]]:
        """(name, dtype, shape) of each input; a shape is a text such as "[B, 64]"."""
        return self._native.inputs()

    @property
    def outputs(self) -> list[tuple[str, str, str]]:
        """(name, dtype, shape) of each output."""
        return self._native.outputs()

    def __call__(self, *arrays: Any, **named: Any) -> tuple[Any, ...]:
        """Runs on arrays, in the order of `inputs` or by name; arrays of the same library come out.

        Arrays that are contiguous are read where they are; aliased inputs are overwritten in place.
        On a CUDA device as for `segfuse.compile`; there check() reports an index out of range.
        """
        return self._run(self._in_order(arrays, named), reference=False)

    def reference(self, *arrays: Any, **named: Any) -> tuple[Any, ...]:
        """The same in double precision by plain loops, slowly; float outputs are float64."""
        return self._run(self._in_order(arrays, named), reference=True)

    def check(self) -> None:
        """Waits for runs on GPUs that have not been looked at, and raises what they found wrong."""
        for runner in list(self._runners.values()):
            runner.check()

    def text(self) -> str:
        """The text form (docs/ir.md)."""
        return self._native.emit("ir")

    def emit(self, kind: str) -> str:
        """What the compiler makes of it: "ir", "segments", ...; a wrong kind names all."""
        return self._native.emit(kind)

    def _run(self, arrays: list[Any], *, reference: bool) -> tuple[Any, ...]:
        if len(arrays) != len(self._names):
            names = ", ".join(self._names)
            raise UsageError(f"found {len(arrays)} arrays, expected {len(self._names)}: {names}")
        quoted = self._quoted
        kinds = [_arrays.kind_of(array) for array in arrays]
        each = list(zip(quoted, arrays, kinds, strict=True))
        for index, (name, array, kind) in enumerate(each):
            if not kind.is_array:
                raise UsageError(f"{name} is {_arrays.describe(array)}, expected an array")
            if index in self._overwritten and not kind.writable(array):
                raise UsageError(
                    f"{name} is overwritten by the program, but {_arrays.describe(array)} cannot "
                    "be written"
                )
        places = [kind.place(array) for array, kind in zip(arrays, kinds, strict=True)]
        for name, array, kind in each:
            kind.need_constant(name, array)
        device = _gpu.device_of(None, places, quoted)
        if device is not None:
            _gpu.need_numbers(quoted, arrays, places, [False] * len(arrays), device)
            if reference:
                raise UsageError("the reference runs on the CPU; move the arrays there")
            return tuple(self._runner(device).run(arrays, kinds, places))
        inputs = [kind.host_view(name, array) for name, array, kind in each]
        results = self._native.run(inputs, list(self._overwritten), reference)
        exact = {"bfloat16": "float64"} if reference else {}
        dtypes = [exact.get(dtype, dtype) for dtype in self._dtypes]
        finish = _arrays.library_of(kinds).finisher(dtypes)
        return tuple(results if finish is None else finish(results))

    def _runner(self, device: int) -> _gpu.Runner:
        if device not in self._runners:
            self._runners[device] = _gpu.Runner(self._native, device, self._quoted, self._dtypes)
        return self._runners[device]

    def _in_order(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
        if not named:
            return list(arrays)
        rest = self._names[len(arrays) :]
        if set(named) != set(rest):
            raise UsageError(f"found inputs named {sorted(named)}, expected {sorted(rest)}")
        return [*arrays, *(named[name] for name in rest)]
