"""Sizes of axes while a program is written."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import _arrays, _native
from .._errors import UsageError
from .._numbers import whole

if TYPE_CHECKING:
    from .fusion import Fusion

SizeLike: TypeAlias = "int | Size"

_RELATIONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Size:
    """The size of an axis that may differ from call to call.

    `+ - *` and `//` by an int stay sizes, and shapes take them. A comparison gives a bool, and the
    trace is used again only where it comes out the same; `int(size)`, and whatever else needs the
    number, fixes the size: another number causes a new trace.
    """

    __slots__ = ("_fusion", "_native")

    def __init__(self, fusion: Fusion, native: _native.Size) -> None:
        self._fusion = fusion
        self._native = native

    def _combined(self, method: str, other: Any, *, swapped: bool = False) -> Any:
        if isinstance(other, float):
            x, y = (other, float(self)) if swapped else (float(self), other)
            return {"add": x + y, "sub": x - y, "mul": x * y}[method]
        if not isinstance(other, (int, Size)):
            return NotImplemented
        a, b = self._native, native_size(other)
        if swapped:
            a, b = b, a
        return self._fusion._size(getattr(a, method)(b))

    def __add__(self, other: Any) -> Any:
        return self._combined("add", other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._combined("sub", other)

    def __rsub__(self, other: Any) -> Any:
        return self._combined("sub", other, swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self._combined("mul", other)

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return 0 - self

    def __floordiv__(self, other: Any) -> Any:
        if isinstance(other, Size):
            exact = self._fusion._native.divide(self._native, other._native)
            return int(self) // int(other) if exact is None else self._fusion._size(exact)
        if not isinstance(other, int):
            return NotImplemented
        if other <= 0:
            return int(self) // other
        return self._fusion._size(self._native.floordiv(other))

    def __rfloordiv__(self, other: int) -> int:
        return other // int(self)

    def __mod__(self, other: Any) -> Any:
        if not isinstance(other, (int, Size)):
            return NotImplemented
        return self - self // other * other

    def __rmod__(self, other: int) -> int:
        return other % int(self)

    def __truediv__(self, other: Any) -> Any:
        return (
            float(self) / float(other) if isinstance(other, (int, float, Size)) else NotImplemented
        )

    def __rtruediv__(self, other: Any) -> Any:
        return other / float(self) if isinstance(other, (int, float)) else NotImplemented

    def __pow__(self, other: Any) -> Any:
        return int(self) ** other

    def _compared(self, relation: str, other: Any) -> Any:
        if not isinstance(other, (int, Size)):
            return NotImplemented
        return self._fusion._decide(relation, self._native, native_size(other))

    def __eq__(self, other: object) -> Any:
        return self._compared("==", other)

    def __ne__(self, other: object) -> Any:
        return self._compared("!=", other)

    def __lt__(self, other: Any) -> Any:
        return self._compared("<", other)

    def __le__(self, other: Any) -> Any:
        return self._compared("<=", other)

    def __gt__(self, other: Any) -> Any:
        return self._compared(">", other)

    def __ge__(self, other: Any) -> Any:
        return self._compared(">=", other)

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __index__(self) -> int:
        return self._fusion._fix(self._native)

    __int__ = __index__

    def __float__(self) -> float:
        return float(int(self))

    def __hash__(self) -> int:
        return hash(int(self))

    def __repr__(self) -> str:
        return self._native.text()


_arrays.known[Size] = _arrays.TRACED


class Guard:
    """What a trace found when it looked at a size: it is good for calls where that holds."""

    __slots__ = ("difference", "holds", "relation")

    def __init__(self, relation: str, difference: _native.Size, holds: bool) -> None:
        self.relation = relation
        self.difference = difference
        self.holds = holds

    def admits(self, numbers: dict[str, int]) -> bool:
        return compare(self.relation, self.difference.evaluate(numbers)) == self.holds

    def __repr__(self) -> str:
        not_ = "" if self.holds else "not "
        return f"{not_}{self.difference.text()} {self.relation} 0"


def compare(relation: str, difference: int) -> bool:
    return bool(_RELATIONS[relation](difference, 0))


def native_size(size: Any) -> _native.Size:
    if isinstance(size, Size):
        return size._native
    if isinstance(size, str):
        return _native.Size.named(size)
    try:
        number = operator.index(size)
    except TypeError:
        raise UsageError(
            f"found {size!r} as a size, expected a number, a size of a shape or a name"
        ) from None
    return _native.Size.of(whole("a size", number))


def native_sizes(shape: Any) -> list[_native.Size]:
    """A shape: a tuple or list of sizes, or one size."""
    if isinstance(shape, (int, Size, str)):
        return [native_size(shape)]
    try:
        sizes = list(shape)
    except TypeError:
        raise UsageError(f"found {shape!r} as a shape, expected a tuple of sizes") from None
    return [native_size(size) for size in sizes]
