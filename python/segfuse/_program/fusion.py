"""Programs that are written value by value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _arrays, _native
from .._dtypes import DTypeLike, dtype_name
from .._errors import UsageError
from .._numbers import real, whole
from .program import Program, precision_of
from .sizes import Guard, Size, SizeLike, compare, native_size, native_sizes
from .value import Value


class Fusion:
    """A tensor program that is being written.

        f = segfuse.Fusion("residual")
        x = f.input("x", "float32", ("B", 64))
        f.output(sf.gelu(sf.layer_norm(x)) + x, "y")
        program = f.build()
        (y,) = program(array)

    Sizes that are names may be anything when the program runs; one name is one size. Nothing is
    known about them before: a comparison of sizes that depends on them is a `UsageError`.
    """

    def __init__(self, name: str = "main") -> None:
        self._native = _native.FusionBuilder(_text("name", name))
        self._name = name
        self._numbers: dict[str, int] | None = None  # the sizes of the call that is traced
        self._not_one: set[str] = set()  # sizes of which it is known
        self._guards: dict[tuple[str, str], Guard] = {}
        self._captured: dict[int, tuple[Any, Value]] = {}
        self._inputs: list[Value] = []
        self._outputs: list[Value] = []
        self._around: Fusion | None = None  # of the body of a scan: the program of the scan
        self._copies: dict[int, Any] = {}  # of arrays that were captured
        self._inherited: dict[int, tuple[Value, Value]] = {}  # values of it: there, here

    @classmethod
    def _body(cls, name: str, around: Fusion) -> Fusion:
        """A program for each step of a scan. Names of sizes mean the same as around it."""
        body = cls(name)
        body._around = around
        body._numbers = around._numbers
        body._not_one = around._not_one
        body._guards = around._guards
        return body

    @property
    def name(self) -> str:
        """The name, as the text form has it."""
        return self._name

    def input(self, name: str, dtype: DTypeLike, shape: Sequence[SizeLike | str]) -> Value:
        """An array that the program takes; its sizes are numbers, names or sizes made of these."""
        value = Value(
            self, self._native.input(_text("name", name), dtype_name(dtype), native_sizes(shape))
        )
        self._inputs.append(value)
        return value

    def output(self, value: Value, name: str = "") -> None:
        """An array that the program gives."""
        value = self._own(value, "output")
        self._native.output(value._native, _text("name", name))
        self._outputs.append(value)

    def alias(self, output: Value, input: Value) -> None:
        """When a run has ended, the array given for `input` holds what `output` holds."""
        self._native.alias(self._own(output, "alias")._native, self._own(input, "alias")._native)

    def constant(self, number: float, dtype: DTypeLike = "float32") -> Value:
        """A scalar. Plain numbers beside values need no constant()."""
        return Value(self, self._native.constant(real("number", number), dtype_name(dtype)))

    def full(self, shape: Any, number: float, dtype: DTypeLike = "float32") -> Value:
        """An array of one number."""
        return Value(
            self, self._native.full(real("number", number), native_sizes(shape), dtype_name(dtype))
        )

    def arange(self, length: SizeLike | str, dtype: DTypeLike = "int64") -> Value:
        """0, 1, 2, ... up to `length`."""
        return Value(self, self._native.iota(native_size(length), dtype_name(dtype)))

    def size(self, name: str) -> Any:
        """The size of that name, to calculate shapes with."""
        return self._size(_native.Size.named(_text("name", name)))

    def require(self, a: SizeLike, b: SizeLike) -> None:
        """States that two sizes are equal; a call for which they are not is refused."""
        self._native.require(native_size(a), native_size(b))

    def apply(
        self, operation: str, *operands: Value, **attributes: Any
    ) -> Value | tuple[Value, ...]:
        """Any operation of docs/ir.md by its name, with all its attributes."""
        for row in _native.operations():
            if row[0] == operation:
                break
        else:
            raise UsageError(f"there is no operation {operation!r}; docs/ir.md lists them")
        wanted = [name for name, _ in row[7]]
        if set(wanted) != set(attributes):
            raise UsageError(
                f"{operation}: found the attributes {sorted(attributes)}, expected {sorted(wanted)}"
            )
        values = [self._own(operand, operation)._native for operand in operands]
        converted = [
            native_sizes(attributes[name])
            if kind == "sizes"
            else dtype_name(attributes[name])
            if kind == "dtype"
            else attributes[name]
            for name, kind in row[7]
        ]
        results = [Value(self, v) for v in self._native.apply(operation, values, converted)]
        return results[0] if len(results) == 1 else tuple(results)

    def build(
        self,
        *,
        threads: int = 0,
        check_numerics: bool = False,
        excess_precision: bool = False,
        precision: str = "float32",
    ) -> Program:
        """The program so far, ready to run; what is written later does not change it.

        `threads`: 0 takes what `segfuse.set_threads` was given, then the option SEGFUSE_THREADS,
        then all cores of this process. With `check_numerics` the first NaN or new infinity is a
        `DataError` that names its operation. With `excess_precision` 16-bit values are rounded
        where a kernel stores them and where they are cast, not after each operation. `precision` as
        `segfuse.compile` has it.
        """
        return Program(
            _native.Program(
                self._native,
                whole("threads", threads),
                check_numerics,
                excess_precision,
                precision_of(precision),
            )
        )

    @staticmethod
    def from_text(
        text: str,
        *,
        source: str = "<text>",
        threads: int = 0,
        check_numerics: bool = False,
        excess_precision: bool = False,
        precision: str = "float32",
    ) -> Program:
        """The program of a text in the form of docs/ir.md, ready to be called with arrays.

            program = segfuse.Fusion.from_text(pathlib.Path("layer_norm.sf").read_text())
            (y,) = program(x=array)

        `source` is what messages call the text; all else as for `build`.

        Raises:
            DataError: "SOURCE:LINE:COLUMN: ..." for a text that is not a program.
        """
        native = _native.Program.from_text(
            _text("text", text),
            _text("source", source),
            whole("threads", threads),
            check_numerics,
            excess_precision,
            precision_of(precision),
        )
        return Program(native)

    def text(self) -> str:
        """The text form (docs/ir.md)."""
        return self._native.text()

    def __repr__(self) -> str:
        counts = f"{len(self._inputs)} inputs, {len(self._outputs)} outputs"
        return f"<segfuse.Fusion {self._name!r}: {counts}>"

    # --- what values and sizes ask ---

    def _own(self, value: Any, operation: str) -> Value:
        if not isinstance(value, Value):
            raise UsageError(
                f"{operation}: found {_arrays.describe(value)}, expected a segfuse.Value"
            )
        if value._fusion is not self and value._fusion._is_around(self):
            return self._inherit(value, operation)
        if value._fusion is not self:
            raise UsageError(
                f"{operation}: found a value of the Fusion {value._fusion.name!r}, expected one of "
                f"{self.name!r}; a traced value means nothing outside the call that traces it"
            )
        return value

    def _is_around(self, other: Fusion) -> bool:
        """Whether `other` is this program, or within the body of a scan of it."""
        inner: Fusion | None = other
        while inner is not None and inner is not self:
            inner = inner._around
        return inner is self

    def _inherit(self, value: Value, operation: str) -> Value:
        """A value of the program around: a constant of all steps."""
        assert self._around is not None
        there = self._around._own(value, operation)
        known = self._inherited.get(there._native.id())
        if known is None:
            name = f"around_{len(self._inherited)}"
            here = Value(self, self._native.input(name, there.dtype, there._native.shape()))
            known = self._inherited[there._native.id()] = (there, here)
            wide = there._wide
            if wide is not None:
                here._wide = lambda: self._inherit(wide(), operation)
        return known[1]

    def _size(self, native: _native.Size) -> Any:
        """The size, or the int that it is."""
        known = self._native.canonical(native)
        number = known.number()
        return Size(self, known) if number is None else number

    def _decide(self, relation: str, a: _native.Size, b: _native.Size) -> bool:
        difference = self._native.canonical(a.sub(b))
        number = difference.number()
        if number is not None:
            return compare(relation, number)
        text = difference.text()
        if "-" not in text and relation in (">=", "<"):  # sums of products of sizes: never negative
            return relation == ">="
        if text.removeprefix("-").isidentifier():  # the same for one size
            if relation == ("<=" if text[0] == "-" else ">="):
                return True
            if relation == (">" if text[0] == "-" else "<"):
                return False
        if relation in ("==", "!=") and text in self._not_one:
            return relation == "!="
        if self._numbers is None:
            raise UsageError(
                f"whether {a.text()} {relation} {b.text()} is not known before the program runs"
            )
        holds = compare(relation, difference.evaluate(self._numbers))
        self._guards.setdefault((relation, text), Guard(relation, difference, holds))
        if (relation, holds) in (("==", True), ("!=", False)):
            self._native.require(a, b)
        return holds

    def _known(self, relation: str, a: Any, b: Any, assumed: bool) -> bool:
        """The same; `assumed` where the program has to run to know it, and then refuses."""
        if isinstance(a, int) and isinstance(b, int):
            return compare(relation, a - b)
        try:
            return self._decide(relation, native_size(a), native_size(b))
        except UsageError:
            if self._numbers is not None:
                raise
            return assumed

    def _fix(self, size: _native.Size) -> int:
        """The number of a size, which is from here on part of what the trace is good for."""
        if self._numbers is None:
            raise UsageError(f"the size {size.text()} is not known before the program runs")
        number = size.evaluate(self._numbers)
        if not self._decide("==", size, _native.Size.of(number)):
            raise UsageError(f"the size {size.text()} is not {number}")  # never
        return number

    def _number(self, size: Any) -> int | None:
        """The number of a size in the call that is traced, without looking at it."""
        if isinstance(size, int):
            return size
        if not isinstance(size, Size):
            raise UsageError(f"found {size!r} as a size, expected a number or a size of a shape")
        return None if self._numbers is None else size._native.evaluate(self._numbers)

    def _capture(self, array: Any) -> Value:
        """An array from outside: an input that every run gives again."""
        if self._around is not None:
            return self._inherit(self._around._capture(array), "scan")
        known = self._captured.get(id(array))
        if known is not None:
            if not self._has_changed(array):
                return known[1]
            self._freeze(array)
        if self._numbers is None:
            raise UsageError(
                f"found {_arrays.describe(array)} beside values of the Fusion {self.name!r}, "
                "expected an input() for it"
            )
        if _arrays.kind_of(array) is _arrays.JAX and _arrays.is_inside_jax(array):
            raise UsageError(
                "the function uses an array from outside that is a value inside a JAX "
                "transformation; pass it as an argument"
            )
        dtype, shape = _arrays.signature_of("an array from outside the function", array)
        value = self.input(f"outside_{len(self._captured)}", dtype, shape)
        self._captured[id(array)] = (array, value)
        self._copies[id(array)] = _copy_to_watch(array)
        return value

    def _has_changed(self, array: Any) -> bool:
        """Whether an array from outside has other content than when the trace took it."""
        before = self._copies.get(id(array))
        if isinstance(before, np.ndarray):
            return bool(before.tobytes() != array.tobytes())
        if before is not None and before != array._version:
            raise UsageError(
                f"the function changed {_arrays.describe(array)} in place after using it; give "
                "each use a tensor of its own, by clone()"
            )
        return False

    def _freeze(self, array: Any) -> None:
        """What was taken from an array that the function has changed since is a constant."""
        copy = self._copies[id(array)]
        self._captured = {
            id(copy if x is array else x): (copy if x is array else x, value)
            for x, value in self._captured.values()
        }

    def _outside(self) -> list[Any]:
        """The arrays from outside, in the order of their inputs, when the trace is complete."""
        for array, _ in list(self._captured.values()):
            if self._has_changed(array):
                self._freeze(array)
        return [array for array, _ in self._captured.values()]


_MOST_WATCHED = 1 << 26
"""Bytes of arrays that are compared with a copy when the function may have changed them."""


def _copy_to_watch(array: Any) -> Any:
    """A copy of a NumPy array, the version of PyTorch's tensor, None for what is not watched."""
    if isinstance(array, np.ndarray):
        return array.copy() if array.nbytes <= _MOST_WATCHED else None
    return array._version if _arrays.kind_of(array) is _arrays.TORCH else None


def _text(name: str, given: Any) -> str:
    if not isinstance(given, str):
        raise UsageError(f"{name} is {_arrays.describe(given)}, expected a str")
    return given
