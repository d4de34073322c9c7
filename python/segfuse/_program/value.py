"""Values of a program that is being written: they look like arrays and hold no numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from .. import _arrays, _native
from .._dtypes import ELEMENT_TYPES, DTypeLike
from .._errors import UsageError
from .numpy_calls import accepts, called, full_name

if TYPE_CHECKING:
    from .fusion import Fusion

functions: dict[str, Callable[..., Any]] = {}
"""What operators and methods do, by name; filled in by `segfuse.ops`, a layer above."""


def _binary(name: str) -> Any:
    def method(self: Value, other: Any) -> Any:
        return functions["binary"](name, self, other)

    return method


def _swapped(name: str) -> Any:
    def method(self: Value, other: Any) -> Any:
        return functions["binary"](name, other, self)

    return method


def _needs_content(what: str, instead: str) -> Any:
    def method(self: Value, *_: Any, **__: Any) -> NoReturn:
        raise UsageError(
            f"{what} needs the content of {self!r}, which is not known while the program is "
            f"written; {instead}"
        )

    return method


def _folded(ufunc: Any, method: str, function: Any, inputs: Any, keywords: Any) -> Any:
    """np.add.reduce(x) and the like: along the first axis if none is named, of all for None."""
    axis = keywords.pop("axis", 0)
    keywords = {k: v for k, v in keywords.items() if v is not None and v is not np._NoValue}  # type: ignore[attr-defined]
    if function is not None and accepts(function, keywords):
        return function(inputs[0], axis, **keywords)
    raise UsageError(
        f"np.{ufunc.__name__}.{method} does not take values of a program so; the functions of "
        "segfuse.ops do"
    )


class Value:
    """An array of a program that is being written: traced by `segfuse.compile`, or made by a
    `Fusion`.

    Operators and methods are NumPy's, with its broadcasting. Element types meet as in JAX: plain
    numbers are weak, integers never widen floats, and `/` of integers is float32. Results are new
    values: nothing is changed in place.
    """

    __slots__ = ("_fusion", "_native", "_wide")
    __array_priority__ = 1000

    def __init__(self, fusion: Fusion, native: _native.Value) -> None:
        self._fusion = fusion
        self._native = native
        self._wide: Callable[[], Value] | None = None
        """Makes the same in float64, of a value that is float32 since it is of Python's numbers."""

    # --- what it is ---

    @property
    def dtype(self) -> str:
        """The name of the element type: "float32", "bool", ...; also equal to np.float32 etc."""
        return ELEMENT_TYPES[self._native.dtype()]

    @property
    def shape(self) -> tuple[Any, ...]:
        """Its sizes: ints, or `segfuse.Size` where they may differ from call to call."""
        return tuple(self._fusion._size(size) for size in self._native.shape())

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._native.shape())

    @property
    def size(self) -> Any:
        """The number of elements."""
        total: Any = 1
        for size in self.shape:
            total = total * size
        return total

    @property
    def T(self) -> Value:  # noqa: N802
        """All axes in reverse."""
        return self.transpose()

    @property
    def mT(self) -> Value:  # noqa: N802
        """The last two axes exchanged."""
        return functions["swapaxes"](self, -1, -2)

    def __repr__(self) -> str:
        return f"<segfuse.Value {self._native.text()}>"

    # --- operators ---

    __add__, __radd__ = _binary("add"), _swapped("add")
    __sub__, __rsub__ = _binary("sub"), _swapped("sub")
    __mul__, __rmul__ = _binary("mul"), _swapped("mul")
    __truediv__, __rtruediv__ = _binary("div"), _swapped("div")
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _swapped("floor_divide")
    __mod__, __rmod__ = _binary("remainder"), _swapped("remainder")
    __pow__, __rpow__ = _binary("power"), _swapped("power")
    __matmul__, __rmatmul__ = _binary("matmul"), _swapped("matmul")
    __and__, __rand__ = _binary("bitwise_and"), _swapped("bitwise_and")
    __or__, __ror__ = _binary("bitwise_or"), _swapped("bitwise_or")
    __xor__, __rxor__ = _binary("bitwise_xor"), _swapped("bitwise_xor")
    __lshift__, __rlshift__ = _binary("left_shift"), _swapped("left_shift")
    __rshift__, __rrshift__ = _binary("right_shift"), _swapped("right_shift")
    __divmod__, __rdivmod__ = _binary("divmod"), _swapped("divmod")
    __lt__, __le__ = _binary("lt"), _binary("le")
    __gt__, __ge__ = _binary("gt"), _binary("ge")
    __eq__, __ne__ = _binary("eq"), _binary("ne")
    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> Value:
        return functions["neg"](self)

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        return functions["abs"](self)

    def __invert__(self) -> Value:
        return functions["bitwise_not"](self)

    def __getitem__(self, key: Any) -> Value:
        """Ints, slices, None, Ellipsis, and arrays of indices."""
        return functions["index"](self, key)

    def __len__(self) -> int:
        if self.ndim == 0:
            raise UsageError(f"{self!r} has no axes, so it has no len()")
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Value]:
        return (self[i] for i in range(len(self)))

    # --- methods ---

    @property
    def at(self) -> Any:
        """`x.at[key].set(v)`, `.add(v)`, `.multiply(v)`, `.max(v)`, `.min(v)`: new values, as in
        JAX."""
        return functions["at"](self)

    def cumsum(self, axis: int | None = None, dtype: DTypeLike | None = None) -> Value:
        """The sums of all elements up to each along `axis`."""
        return functions["cumsum"](self, axis, dtype)

    def cumprod(self, axis: int | None = None, dtype: DTypeLike | None = None) -> Value:
        """The products of all elements up to each along `axis`."""
        return functions["cumprod"](self, axis, dtype)

    def argsort(self, axis: int | None = -1, kind: Any = None, **how: Any) -> Value:
        """Where each element is that comes next in order along `axis`, int64."""
        return functions["argsort"](self, axis, kind, **how)

    def repeat(self, repeats: Any, axis: int | None = None) -> Value:
        """Repeats each element along `axis` `repeats` times."""
        return functions["repeat"](self, repeats, axis)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Value:
        """The diagonal of two axes, as a new last axis."""
        return functions["diagonal"](self, offset, axis1, axis2)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Value:
        """The sum of the diagonal of two axes."""
        return functions["trace"](self, offset, axis1, axis2)

    def astype(self, dtype: DTypeLike) -> Value:
        """The elements as another type; floats become integers toward zero."""
        return functions["astype"](self, dtype)

    def sum(self, axis: Any = None, keepdims: bool = False, **how: Any) -> Value:
        """The sum over `axis` (an int, a tuple of ints, None: all)."""
        return functions["sum"](self, axis, keepdims, **how)

    def prod(self, axis: Any = None, keepdims: bool = False, **how: Any) -> Value:
        """The product over `axis`."""
        return functions["prod"](self, axis, keepdims, **how)

    def max(self, axis: Any = None, keepdims: bool = False, **how: Any) -> Value:
        """The greatest element over `axis`; NaN if there is one."""
        return functions["max"](self, axis, keepdims, **how)

    def min(self, axis: Any = None, keepdims: bool = False, **how: Any) -> Value:
        """The least element over `axis`; NaN if there is one."""
        return functions["min"](self, axis, keepdims, **how)

    def mean(self, axis: Any = None, keepdims: bool = False, **how: Any) -> Value:
        """The mean over `axis`."""
        return functions["mean"](self, axis, keepdims, **how)

    def var(self, axis: Any = None, keepdims: bool = False, ddof: int = 0, **how: Any) -> Value:
        """The variance over `axis`: squared deviations over (count - ddof)."""
        return functions["var"](self, axis, keepdims, ddof, **how)

    def std(self, axis: Any = None, keepdims: bool = False, ddof: int = 0, **how: Any) -> Value:
        """The standard deviation over `axis`."""
        return functions["std"](self, axis, keepdims, ddof, **how)

    def any(self, axis: Any = None, keepdims: bool = False, **how: Any) -> Value:
        """Whether one element over `axis` is true."""
        return functions["any"](self, axis, keepdims, **how)

    def all(self, axis: Any = None, keepdims: bool = False, **how: Any) -> Value:
        """Whether all elements over `axis` are true."""
        return functions["all"](self, axis, keepdims, **how)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The index of the first greatest element along `axis`, int64."""
        return functions["argmax"](self, axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Value:
        """The index of the first least element along `axis`, int64."""
        return functions["argmin"](self, axis, keepdims)

    def reshape(self, *shape: Any, order: str = "C") -> Value:
        """The same elements in another shape; one size may be -1."""
        return functions["reshape"](self, shape[0] if len(shape) == 1 else shape, order)

    def ravel(self, order: str = "C") -> Value:
        """One axis."""
        return functions["ravel"](self, order)

    flatten = ravel

    def transpose(self, *axes: Any) -> Value:
        """Axes in another order; in reverse without one."""
        if len(axes) == 1 and not isinstance(axes[0], int):
            axes = axes[0]
        return functions["transpose"](self, axes or None)

    def swapaxes(self, axis1: int, axis2: int) -> Value:
        """Two axes exchanged."""
        return functions["swapaxes"](self, axis1, axis2)

    def squeeze(self, axis: Any = None) -> Value:
        """Without axes of size 1."""
        return functions["squeeze"](self, axis)

    def take(self, indices: Any, axis: int | None = None, mode: str = "raise") -> Value:
        """The elements along `axis` that the indices name."""
        return functions["take"](self, indices, axis, mode)

    def clip(self, min: Any = None, max: Any = None) -> Value:
        """Elements within [min, max]."""
        return functions["clip"](self, min, max)

    def round(self, decimals: int = 0) -> Value:
        """Rounds to `decimals` decimals, halves to the even digit."""
        return functions["round"](self, decimals)

    def dot(self, other: Any) -> Value:
        """The sum over the last axis of self and the last but one of other."""
        return functions["dot"](self, other)

    def copy(self) -> Value:
        """The value itself: nothing changes it."""
        return self

    # --- what cannot be ---

    __bool__ = _needs_content("a Python condition", "use sf.where(condition, a, b)")
    __int__ = _needs_content("int()", "use x.astype('int64')")
    __index__ = _needs_content("an index of a Python sequence", "use sf.take(array, indices)")
    __float__ = _needs_content("float()", "use x.astype('float32')")
    __complex__ = _needs_content("complex()", "only real numbers are supported")
    __array__ = _needs_content("a NumPy array", "use the functions of segfuse.ops")
    tolist = _needs_content("tolist()", "return the value from the compiled function")
    item = _needs_content("item()", "return the value from the compiled function")

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise UsageError(
            f"{self!r} cannot be changed in place; make a new value, with x.at[...].set(v), "
            "sf.where(condition, a, x) or sf.concatenate"
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        function = functions["numpy_function"](ufunc.__name__, method)
        if method in ("reduce", "accumulate"):
            return _folded(ufunc, method, function, inputs, keywords)
        if function is None or keywords:
            how = "" if method == "__call__" else f".{method}"
            with_ = f" with {', '.join(sorted(keywords))}" if keywords else ""
            raise UsageError(
                f"np.{ufunc.__name__}{how}{with_} does not take values of a program; the functions "
                "of segfuse.ops do"
            )
        return function(*inputs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        function = functions["numpy_function"](func.__name__, module=func.__module__)
        if function is None:
            raise UsageError(
                f"{full_name(func)} does not take values of a program; the functions of "
                "segfuse.ops do"
            )
        return called(func, function, args, kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        # What has one underscore at its end changes a tensor in place.
        function = functions["torch_function"](name if name[-2:-1] != "_" else name.strip("_"))
        if function is None or kwargs:
            raise UsageError(
                f"PyTorch's {name} does not take values of a program; the functions of "
                "segfuse.ops do"
            )
        return function(*args)


_arrays.known[Value] = _arrays.TRACED
