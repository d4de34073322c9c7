"""Compiled functions, and the cache of their traces."""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _gpu
from .._arrays import STATIC, TORCH, describe, kind_of, known, signature_of, transforms_active
from .._errors import UsageError
from .._numbers import whole
from .._program.fusion import Fusion
from .._program.program import precision_of
from . import autograd, in_jax
from .bound import Bound, Outside, bind
from .call import Call
from .trace import OUTSIDE, Trace
from .vjp import narrowed, pulled_back, pushed_forward

_MOST_SIGNATURES = 4096
_MANY_TRACES = 100


class CacheInfo(NamedTuple):
    """Counts of a compiled function."""

    calls: int
    """The number of calls with arrays."""
    signatures: int
    """The number of cached signatures (all sizes, element types and static arguments)."""
    traces: int
    """How often the function was traced."""


class Compiled:
    """A function over arrays that runs as one compiled program. Made by `segfuse.compile`."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        threads: int = 0,
        check_numerics: bool = False,
        excess_precision: bool = True,
        precision: str = "float32",
        device: str | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._how = {
            "threads": whole("threads", threads),
            "check_numerics": check_numerics,
            "excess_precision": excess_precision,
            "precision": precision_of(precision),
        }
        self._device = _gpu.number_of(device)
        self._exact: dict[Any, Bound] = {}
        self._classes: dict[Any, list[Trace]] = {}
        self._lock = threading.RLock()
        self._traces = 0
        self._calls = itertools.count()
        self._looks = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            # The common cases: arrays of NumPy, or of PyTorch, one after the other.
            key: list[Any] = []
            for x in args:
                if type(x) is not np.ndarray:
                    break
                key += (x.dtype, x.shape)
            else:
                return self._run_plain(tuple(key), args)
            key.clear()
            for x in args:
                if known.get(type(x)) is not TORCH or x.requires_grad:
                    break
                key += (x.dtype, x.shape, x.device)
            else:
                if not transforms_active():
                    return self._run_plain(tuple(key), args)
        call = Call(args, kwargs)
        if call.traced:
            return self._function(*args, **kwargs)
        if call.in_jax:
            return in_jax.call(self, args, kwargs)
        return self._run(call, {})

    def again(self, args: tuple[Any, ...], outside: Outside) -> Any:
        """A call that reads arrays from outside as an earlier one did."""
        return self._run(Call(args, {}), outside)

    def _run(self, call: Call, outside: Outside) -> Any:
        bound = self._known_or_bound(call)
        next(self._calls)
        run = self._differentiable if call.wants_grad else _plainly
        results = run(bound, call, outside)
        return results[0] if bound.is_one else bound.whole(results)

    def _bound_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
        return self._known_or_bound(Call(args, kwargs))

    def _known_or_bound(self, call: Call) -> Bound:
        try:
            bound = self._exact.get(call.exact_key)
        except TypeError:
            call.need_hashable()
            raise
        return self._bound(call, call.exact_key) if bound is None else bound

    def _run_plain(self, key: Any, args: tuple[Any, ...]) -> Any:
        bound = self._exact.get(key)
        if bound is None:
            bound = self._bound(Call(args, {}), key)
        next(self._calls)
        results = bound.run(args)
        return results[0] if bound.is_one else bound.whole(results)

    def compile_ahead(self, device: int, *args: Any) -> None:
        """Compiles the kernels that a call on a GPU with arrays like these will need, which may lie
        elsewhere."""
        call = Call(args, {})
        trace = self._trace_for(call)
        if trace.program is not None:
            arrays = [call.leaves[i] for i in trace.arrays] + trace.captured
            trace.runner(device, call).prepared(tuple([tuple(x.shape) for x in arrays]))

    def make_known(
        self,
        quick: Any,
        args: tuple[Any, ...],
        tensors: tuple[Any, ...],
        orders: Sequence[list[int] | None],
    ) -> None:
        """Lets `quick` (_gpu.quick_calls) do calls with these arguments, which are `tensors` before
        their axes were put in order; axes of the results go to `orders`."""
        self._bound_for(args, {}).make_known(quick, tensors, orders)

    def _differentiable(self, bound: Bound, call: Call, outside: Outside) -> list[Any]:
        """Some of PyTorch's tensors may have derivatives; those from outside are not seen."""
        for array in bound.trace.captured:
            kind_of(array).need_constant(OUTSIDE, array)
        return autograd.run(self, bound, call.structure, call.leaves, outside)

    @functools.cached_property
    def _backward(self) -> Compiled:
        """The gradients of a linear function of the results, compiled the same way."""
        return self._derived(pulled_back(self._function))

    @functools.cached_property
    def _forward(self) -> Compiled:
        """The derivatives of the results along tangents of the arguments."""
        return self._derived(pushed_forward(self._function))

    def _narrowing(self, narrows: bool) -> Compiled:
        """The function itself, or one whose results have at most 32 bits."""
        return self._narrowed if narrows else self

    @functools.cached_property
    def _narrowed(self) -> Compiled:
        return self._derived(narrowed(self._function))

    def _derived(self, function: Callable[..., Any]) -> Compiled:
        return _made_again(function, self._how, self._device)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __copy__(self) -> Compiled:
        return self  # as copies of functions are

    def __deepcopy__(self, memo: Any) -> Compiled:
        return self

    def __reduce__(self) -> Any:
        """By its name where it has replaced its function there (a decorator), else by what it was
        made of. A program is traced again where it is loaded."""
        place: Any = sys.modules.get(getattr(self, "__module__", None) or "")
        for name in str(getattr(self, "__qualname__", "")).split("."):
            place = getattr(place, name, None)
        return self.__qualname__ if place is self else self._made_of()

    def _made_of(self) -> Any:
        return _made_again, (self._function, self._how, self._device)

    def _bound(self, call: Call, exact: Any) -> Bound:
        trace = self._trace_for(call)
        if len(self._exact) >= _MOST_SIGNATURES:
            self._exact.clear()
        bound = self._exact[exact] = bind(trace, call, self._device)
        return bound

    def _trace_for(self, call: Call) -> Trace:
        if not any(kind is not STATIC for kind in call.kinds):
            raise UsageError(
                f"{self._name()}: found no array among the arguments, expected at least one"
            )
        for i, kind in enumerate(call.kinds):
            if kind is not STATIC:
                signature_of(call.name(i), call.leaves[i])
                if not call.in_jax:
                    kind.need_device(call.name(i), call.leaves[i])
        with self._lock:
            known = self._classes.setdefault(call.class_key(), [])
            for trace in known:
                if trace.admits(call):
                    return trace
            trace = Trace(self._function, call, self._how)
            self._traces += 1
            known.append(trace)
            if self._traces == _MANY_TRACES:
                warnings.warn(
                    f"{self._name()} was traced {_MANY_TRACES} times; pass numbers that change "
                    "from call to call as arrays, and see guards() for the sizes that it depends "
                    "on",
                    RuntimeWarning,
                    stacklevel=4,
                )
            return trace

    def _name(self) -> str:
        return str(getattr(self._function, "__name__", "the function"))

    def fusion(self, *args: Any, **kwargs: Any) -> Fusion:
        """Returns the program that a call with these arguments runs."""
        call = Call(args, kwargs)
        call.need_hashable()
        return self._trace_for(call).fusion

    def text(self, *args: Any, **kwargs: Any) -> str:
        """Returns this program as text (docs/ir.md)."""
        return self.fusion(*args, **kwargs).text()

    def emit(self, kind: str, *args: Any, **kwargs: Any) -> str:
        """Returns what the compiler makes of this program: "ir", "segments" and others. The error
        for an unknown `kind` lists all kinds."""
        call = Call(args, kwargs)
        call.need_hashable()
        program = self._trace_for(call).program
        if program is None:
            raise UsageError(f"{self._name()} returns no value, so there is no program to emit")
        return program.emit(kind)

    def guards(self, *args: Any, **kwargs: Any) -> list[str]:
        """Returns the conditions on sizes under which the trace for these arguments is valid. They
        come from comparisons of sizes in the function."""
        call = Call(args, kwargs)
        call.need_hashable()
        return [repr(guard) for guard in self._trace_for(call).guards]

    def check(self) -> None:
        """Waits for the calls on GPUs, and raises the errors that they found: `UsageError` for an
        index out of range, `DataError` for labels and lengths of a CRF."""
        with self._lock:
            traces = [trace for known in self._classes.values() for trace in known]
        for trace in traces:
            for runner in list(trace.runners.values()):
                runner.check()

    def cache_info(self) -> CacheInfo:
        """Returns the numbers of calls, signatures and traces so far."""
        calls = next(self._calls)  # counting has no lock, so a look counts too
        self._looks += 1
        return CacheInfo(calls + 1 - self._looks, len(self._exact), self._traces)

    def cache_clear(self) -> None:
        """Removes all traces."""
        with self._lock:
            self._exact.clear()
            self._classes.clear()


def _plainly(bound: Bound, call: Call, outside: Outside) -> list[Any]:
    return bound.run(call.leaves, outside)


def _made_again(function: Callable[..., Any], how: dict[str, Any], device: int | None) -> Compiled:
    made = Compiled(function)
    made._how, made._device = how, device
    return made


def compile(
    function: Callable[..., Any] | None = None,
    *,
    threads: int = 0,
    check_numerics: bool = False,
    excess_precision: bool = True,
    precision: str = "float32",
    device: str | None = None,
) -> Any:
    """Compiles a function over arrays into one program; also a decorator.

        @segfuse.compile
        def residual(x, scale, shift):
            return x + sf.gelu(sf.layer_norm(x, scale, shift))

    At the first call, `function` runs once on symbolic values (`segfuse.Value`), which record a
    program. This and later calls run the program on arrays of NumPy, PyTorch or JAX, on the CPU or
    on one CUDA device. Arguments and results may be nested tuples, lists and dicts of arrays.
    Results belong to the library of the arguments.

    On a CUDA device, a call copies no arrays and does not wait. For PyTorch tensors, it uses
    PyTorch's current stream, as PyTorch's own operations do. For arrays of JAX, CuPy and other
    libraries with DLPack or `__cuda_array_interface__` (which are expected on cuda:0), it uses a
    stream of segfuse that is ordered with theirs. Scalars (arrays without axes) may be on the CPU.
    The method `check()` of the compiled function reports an index out of range. With
    `device="cuda"` or `"cuda:N"`, arrays on the CPU are copied to the device and the results are
    copied back; with `"cpu"`, arrays on a GPU are an error.

    Compiled functions support PyTorch's autograd. If tensors require gradients, the backward pass
    is a compiled program, too, which recomputes what it needs of the forward pass.

    A trace is valid for all calls with the same element types, numbers of axes, axes of size 1, and
    arguments that are not arrays. Numbers of Python are such arguments, so pass a number that
    changes from call to call as an array. Other sizes may vary, unless `function` depends on them:
    if it compares sizes, the trace is valid only for calls with the same outcome, and if it uses a
    size as a number (`range(x.shape[0])`, `math.sqrt(x.shape[-1])`), only for this size. A trace
    serves all devices.

    Arrays from outside of `function` (globals, closures) are read again at each call.

    Args:
        function: the function to compile.
        threads: the number of threads; 0 stands for the number given to `segfuse.set_threads`,
            else SEGFUSE_THREADS, else all cores of this process.
        check_numerics: whether the first NaN or new infinity raises a `DataError` that names its
            operation.
        excess_precision: whether kernels compute on float16 and bfloat16 values in float32, and
            round only where they store values and where `function` casts. This takes fewer
            instructions and has smaller errors. Which values are stored depends only on the program
            and its sizes. If False, every operation rounds to its type, as PyTorch's operations do.
        precision: the precision of float32 matrix products on a GPU. With "tf32", operands are
            rounded to TF32 (10 bits of fraction instead of 23) and added in float32, which is
            several times as fast; repeated calls give the same bits. It does not change products
            on the CPU or `attention`, as with PyTorch's setting.
        device: the device to compute on; by default, that of the arguments.
    """
    if function is None:
        return functools.partial(
            compile,
            threads=threads,
            check_numerics=check_numerics,
            excess_precision=excess_precision,
            precision=precision,
            device=device,
        )
    if not callable(function):
        raise UsageError(f"compile: found {describe(function)}, expected a function")
    return Compiled(
        function,
        threads=threads,
        check_numerics=check_numerics,
        excess_precision=excess_precision,
        precision=precision,
        device=device,
    )
