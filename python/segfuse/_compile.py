"""Functions over arrays as compiled programs: tracing, and the cache of traces."""

from __future__ import annotations

import functools
import itertools
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import _gpu, _native, _run
from ._arrays import transforms_active
from ._errors import UsageError
from ._fusion import Fusion
from ._numbers import whole
from ._sizes import Guard, Size
from ._tree import LEAF, Structure, flatten, unflatten
from ._value import Value
from ._vjp import pulled_back, pushed_forward

_MOST_SIGNATURES = 4096
_MANY_TRACES = 100
_ONE, _TUPLE, _ANYTHING = range(3)
_OUTSIDE = "an array from outside the function"


class CacheInfo(NamedTuple):
    """What a compiled function has done so far."""

    calls: int
    """calls with arrays"""
    signatures: int
    """exact signatures that are remembered (all sizes, types, static arguments)"""
    traces: int
    """times the function was traced"""


class _Trace:
    """One trace, ready to run."""

    def __init__(self, function: Callable[..., Any], call: _Call, how: dict[str, Any]) -> None:
        fusion = Fusion(getattr(function, "__name__", "function"))
        self.fusion = fusion
        numbers: dict[str, int] = {}
        fusion._numbers = numbers
        values = iter([self._input(fusion, numbers, call, i) for i in range(len(call.leaves))])
        args, kwargs = unflatten(call.structure, values)
        result = function(*args, **kwargs)
        self.leaves: list[Any] = []
        self.structure = flatten(result, self.leaves)
        self.places = [self._output(fusion, leaf) for leaf in self.leaves]
        self.arrays = [i for i, kind in enumerate(call.kinds) if kind != _run.STATIC]
        self.axes = [(name, i, axis) for name, (i, axis) in call.axes.items()]
        self.guards: list[Guard] = list(fusion._guards.values())
        self.captured = [array for array, _ in fusion._captured.values()]
        self.program: _native.Program | None = None
        if fusion._outputs:
            self.program = _native.Program(fusion._native, **how)
        self.check_numerics: bool = how["check_numerics"]
        self.runners: dict[int, _gpu.Runner] = {}
        self.dtypes = [value.dtype for value in fusion._outputs]
        fusion._numbers = None  # from here on it says nothing of sizes

    @staticmethod
    def _input(fusion: Fusion, numbers: dict[str, int], call: _Call, i: int) -> Any:
        if call.kinds[i] == _run.STATIC:
            return call.leaves[i]
        dtype, shape = _run.signature_of(call.name(i), call.leaves[i])
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
        """The place of a leaf among the outputs; None for what is no value."""
        if isinstance(leaf, Size):
            leaf = Value(fusion, fusion._native.size(leaf._native, "int64"))
        if not isinstance(leaf, Value):
            return None
        fusion.output(leaf)
        return len(fusion._outputs) - 1

    def admits(self, call: _Call) -> bool:
        """Whether all that was looked at is the same in another call of the same class."""
        if not self.guards:
            return True
        numbers = {name: call.leaves[i].shape[axis] for name, i, axis in self.axes}
        return all(guard.admits(numbers) for guard in self.guards)

    def bind(self, call: _Call, device: int | None) -> _Bound:
        """`device` is what the function was compiled for: None for wherever the arrays are."""
        names = [call.name(i) for i in self.arrays] + [_OUTSIDE] * len(self.captured)
        kinds = [call.kinds[i] for i in self.arrays] + [_run.kind_of(x) for x in self.captured]
        arrays = [call.leaves[i] for i in self.arrays] + self.captured
        places = [_run.place_of(x, kind) for x, kind in zip(arrays, kinds, strict=True)]
        found = _gpu.device_of(device, places, names)
        if self.program is None or (found is None and (device is None or device < 0)):
            return _Bound(self, call)
        if found is not None:
            _gpu.need_numbers(names, arrays, places, found)
            return _OnGpu(self, call, found, names, kinds, places)
        assert device is not None
        return _Copied(self, call, self.runner(device, call))

    def runner(self, device: int, call: _Call) -> _gpu.Runner:
        assert self.program is not None
        if device not in self.runners:
            names = [call.name(i) for i in self.arrays] + [_OUTSIDE] * len(self.captured)
            self.runners[device] = _gpu.Runner(self.program, device, names, self.dtypes)
        return self.runners[device]


class _Bound:
    """A trace for one exact signature: nothing is left to decide."""

    __slots__ = ("_execute", "_finish", "_form", "_inputs", "_outside", "_trace", "_which")

    def __init__(self, trace: _Trace, call: _Call) -> None:
        self._trace = trace
        kinds = [call.kinds[i] for i in trace.arrays]
        outside = [_run.kind_of(array) for array in trace.captured]
        self._finish = _run.finisher(_run.library_of(kinds + outside), trace.dtypes)
        self._which = trace.arrays if len(trace.arrays) != len(call.leaves) else None
        self._outside = [(_OUTSIDE, kind) for kind in outside]
        self._inputs: list[tuple[str, int]] | None = None  # where nothing is to be done
        if any(kind != _run.NUMPY or call.is_bits(i) for i, kind in zip(trace.arrays, kinds, strict=True)):
            self._inputs = [(call.name(i), call.kinds[i]) for i in trace.arrays]
        self._form = self._form_of(trace)
        self._execute: Callable[..., list[Any]] = _nothing
        if trace.program is not None:
            self._execute = trace.program.run

    @staticmethod
    def _form_of(trace: _Trace) -> int:
        """Whether the function's result is one array, a tuple of arrays, or anything else."""
        if trace.places != list(range(len(trace.places))):
            return _ANYTHING
        if trace.structure is LEAF:
            return _ONE
        flat = trace.structure[0] is tuple and all(part is LEAF for part in trace.structure[1:])
        return _TUPLE if flat else _ANYTHING

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        """The arrays in the result, flat; whole() is what the function gives."""
        trace = self._trace
        arrays = list(leaves) if self._which is None else [leaves[i] for i in self._which]
        if self._inputs is not None:
            arrays = [
                _run.readable(name, array, kind)
                for (name, kind), array in zip(self._inputs, arrays, strict=True)
            ]
        if self._outside:
            for (name, kind), array in zip(self._outside, trace.captured, strict=True):
                if _run.place_of(array, kind) != _run.ON_HOST:
                    raise _moved()
                _run.check_place(name, array, kind)
                arrays.append(_run.readable(name, array, kind))
        results = self._execute(arrays, [], False)
        return results if self._finish is None else self._finish(results)

    def whole(self, results: list[Any]) -> Any:
        """The function's result from the arrays in it."""
        trace = self._trace
        if self._form == _ONE:
            return results[0]
        if self._form == _TUPLE:
            return tuple(results)
        whole = (
            leaf if place is None else results[place]
            for leaf, place in zip(trace.leaves, trace.places, strict=True)
        )
        return unflatten(trace.structure, whole)


class _Copied(_Bound):
    """Arrays of the host on a GPU: they travel, and so do the results."""

    __slots__ = ("_runner",)

    def __init__(self, trace: _Trace, call: _Call, runner: _gpu.Runner) -> None:
        super().__init__(trace, call)
        self._runner = runner
        self._execute = self._run_there

    def _run_there(self, arrays: list[Any], *how: Any) -> list[Any]:
        if self._trace.check_numerics:
            assert self._trace.program is not None
            self._trace.program.run(arrays, *how)
        return self._runner.run_on_copies(arrays)


class _OnGpu(_Bound):
    """Arrays on a GPU, where the results are made."""

    __slots__ = ("_kinds", "_names", "_outputs", "_places", "_prepared", "_runner", "_shapes")

    def __init__(
        self,
        trace: _Trace,
        call: _Call,
        device: int,
        names: list[str],
        kinds: list[int],
        places: list[int],
    ) -> None:
        super().__init__(trace, call)
        self._names, self._kinds, self._places = names, kinds, places
        self._runner = trace.runner(device, call)
        self._shapes = [tuple(x.shape) for x in trace.captured]
        leaves = [tuple(call.leaves[i].shape) for i in trace.arrays]
        self._prepared = self._runner.prepared((*leaves, *self._shapes))
        self._outputs: list[Any] | None = None
        if _run.library_of(kinds) == _run.TORCH:
            self._outputs = self._runner.torch_outputs(self._prepared)

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        trace = self._trace
        arrays = list(leaves) if self._which is None else [leaves[i] for i in self._which]
        if self._outside:
            for (name, kind), array, shape, place in zip(
                self._outside, trace.captured, self._shapes, self._places[len(arrays) :], strict=True
            ):
                if _run.place_of(array, kind) != place or tuple(array.shape) != shape:
                    raise _moved()
                _run.check_place(name, array, kind)
            arrays += trace.captured
        if trace.check_numerics:
            copies = [
                _run.readable(name, _run.on_host(name, array, kind), kind)
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
        f"{_OUTSIDE} has another shape, or lies elsewhere, than when the function was traced; call "
        "cache_clear() after moving it, or pass it as an argument"
    )


class _Call:
    """The arguments of one call, flat."""

    __slots__ = (
        "axes", "exact_key", "kinds", "leaves", "structure", "traced", "used_names", "wants_grad",
    )  # fmt: skip

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.leaves: list[Any] = []
        self.structure: Structure = flatten((args, kwargs), self.leaves)
        self.kinds: list[int] = []
        self.traced = False
        self.wants_grad = False
        key: list[Any] = [self.structure]
        for leaf in self.leaves:
            kind = _run.kind_of(leaf)
            self.kinds.append(kind)
            if kind == _run.NUMPY or kind == _run.SCALAR:
                key += (kind, leaf.dtype, leaf.shape)
            elif kind == _run.STATIC:
                key += (type(leaf), leaf)
            elif kind == _run.TRACED:
                self.traced = True
            elif kind == _run.TORCH:
                if leaf.requires_grad or transforms_active():
                    self.wants_grad = True
                place = _run.ON_HOST if leaf.is_cpu else _run.place_of(leaf, kind)
                key += (kind, leaf.dtype, leaf.shape, place)
            else:
                key += (kind, leaf.dtype, leaf.shape, _run.place_of(leaf, kind))
        self.exact_key = tuple(key)
        """What a ready call is found by."""
        self.axes: dict[str, tuple[int, int]] = {}
        self.used_names: set[str] = set()

    def is_bits(self, leaf: int) -> bool:
        """Whether NumPy knows the element type by a package only."""
        return bool(self.leaves[leaf].dtype.name == "bfloat16")

    def name(self, leaf: int) -> str:
        """How messages name a leaf: "argument 0", "argument 'x'", with the way into it."""
        path = list(_paths(self.structure))[leaf]
        where = f"argument {path[1]!r}" if path[0] == 1 else f"argument {path[1]}"
        return where + "".join(f"[{step!r}]" for step in path[2:])

    def input_name(self, leaf: int) -> str:
        path = list(_paths(self.structure))[leaf][1:]
        text = "_".join("".join(c if c.isalnum() and c.isascii() else "_" for c in str(step)) for step in path)
        text = text if text and not text[0].isdigit() else f"x{text}"
        while text in self.used_names:
            text += "_"
        self.used_names.add(text)
        return text

    def class_key(self) -> Any:
        """What every trace is bound to: types, ranks, which sizes are 1, static arguments."""
        return (
            self.structure,
            *(
                (type(leaf), leaf)
                if kind == _run.STATIC
                else (leaf.dtype, tuple(size == 1 for size in leaf.shape))
                for leaf, kind in zip(self.leaves, self.kinds, strict=True)
            ),
        )

    def need_hashable(self) -> None:
        for i, (leaf, kind) in enumerate(zip(self.leaves, self.kinds, strict=True)):
            if kind != _run.STATIC:
                continue
            try:
                hash(leaf)
            except TypeError:
                raise UsageError(
                    f"{self.name(i)} is {_run.describe(leaf)}, expected an array, or a value that "
                    "can be hashed: what is no array is part of the key of the cache"
                ) from None


def _paths(structure: Structure) -> Any:
    if structure is LEAF:
        yield ()
        return
    kind, *parts = structure
    steps: Any = range(len(parts))
    if issubclass(kind, dict):
        steps, parts = parts[0], parts[1:]
    for step, part in zip(steps, parts, strict=True):
        for path in _paths(part):
            yield (step, *path)


class Compiled:
    """A function over arrays that runs as one compiled program. Made by `segfuse.compile`."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        threads: int = 0,
        check_numerics: bool = False,
        excess_precision: bool = True,
        device: str | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._how = {
            "threads": whole("threads", threads),
            "check_numerics": check_numerics,
            "excess_precision": excess_precision,
        }
        self._device = _gpu.number_of(device)
        self._exact: dict[Any, _Bound] = {}
        self._classes: dict[Any, list[_Trace]] = {}
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
                if _run.known_kinds.get(type(x)) != _run.TORCH or x.requires_grad:
                    break
                key += (x.dtype, x.shape, x.device)
            else:
                if not transforms_active():
                    return self._run_plain(tuple(key), args)
        call = _Call(args, kwargs)
        if call.traced:
            return self._function(*args, **kwargs)
        bound = self._known_or_bound(call)
        next(self._calls)
        results = self._differentiable(bound, call) if call.wants_grad else bound.run(call.leaves)
        return results[0] if bound._form == _ONE else bound.whole(results)

    def _bound_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Bound:
        return self._known_or_bound(_Call(args, kwargs))

    def _known_or_bound(self, call: _Call) -> _Bound:
        try:
            bound = self._exact.get(call.exact_key)
        except TypeError:
            call.need_hashable()
            raise
        return self._bound(call, call.exact_key) if bound is None else bound

    def _run_plain(self, key: Any, args: tuple[Any, ...]) -> Any:
        bound = self._exact.get(key)
        if bound is None:
            bound = self._bound(_Call(args, {}), key)
        next(self._calls)
        results = bound.run(args)
        return results[0] if bound._form == _ONE else bound.whole(results)

    def _differentiable(self, bound: _Bound, call: _Call) -> list[Any]:
        """Some of PyTorch's tensors may have derivatives; those from outside are not seen."""
        for array in bound._trace.captured:
            _run.check_place(_OUTSIDE, array, _run.kind_of(array))
        from . import _autograd  # needs PyTorch

        return _autograd.run(self, bound, call.structure, call.leaves)

    @functools.cached_property
    def _backward(self) -> Compiled:
        """The gradients of a linear function of the results, compiled the same way."""
        return self._derived(pulled_back(self._function))

    @functools.cached_property
    def _forward(self) -> Compiled:
        """The derivatives of the results along tangents of the arguments."""
        return self._derived(pushed_forward(self._function))

    def _derived(self, function: Callable[..., Any]) -> Compiled:
        derived = Compiled(function)
        derived._how, derived._device = self._how, self._device
        return derived

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def _bound(self, call: _Call, exact: Any) -> _Bound:
        trace = self._trace_for(call)
        if len(self._exact) >= _MOST_SIGNATURES:
            self._exact.clear()
        bound = self._exact[exact] = trace.bind(call, self._device)
        return bound

    def _trace_for(self, call: _Call) -> _Trace:
        if not any(kind != _run.STATIC for kind in call.kinds):
            raise UsageError(
                f"{self._name()}: found no array among the arguments, expected at least one"
            )
        for i, kind in enumerate(call.kinds):
            if kind != _run.STATIC:
                _run.signature_of(call.name(i), call.leaves[i])
                _run.check_device(call.name(i), call.leaves[i], kind)
        with self._lock:
            known = self._classes.setdefault(call.class_key(), [])
            for trace in known:
                if trace.admits(call):
                    return trace
            trace = _Trace(self._function, call, self._how)
            self._traces += 1
            known.append(trace)
            if self._traces == _MANY_TRACES:
                warnings.warn(
                    f"{self._name()} was traced {_MANY_TRACES} times; pass numbers that change from "
                    "call to call as arrays, and see guards() for the sizes that it looks at",
                    RuntimeWarning,
                    stacklevel=4,
                )
            return trace

    def _name(self) -> str:
        return str(getattr(self._function, "__name__", "the function"))

    def fusion(self, *args: Any, **kwargs: Any) -> Fusion:
        """The program that a call with these arguments runs."""
        call = _Call(args, kwargs)
        call.need_hashable()
        return self._trace_for(call).fusion

    def text(self, *args: Any, **kwargs: Any) -> str:
        """Its text form (docs/ir.md)."""
        return self.fusion(*args, **kwargs).text()

    def emit(self, kind: str, *args: Any, **kwargs: Any) -> str:
        """What the compiler makes of it: "ir", "segments", ...; a wrong kind names all."""
        call = _Call(args, kwargs)
        call.need_hashable()
        program = self._trace_for(call).program
        if program is None:
            raise UsageError(f"{self._name()} returns no value, so there is no program to emit")
        return program.emit(kind)

    def guards(self, *args: Any, **kwargs: Any) -> list[str]:
        """What the trace for these arguments asks of sizes, because the function looked at them."""
        call = _Call(args, kwargs)
        call.need_hashable()
        return [repr(guard) for guard in self._trace_for(call).guards]

    def check(self) -> None:
        """Waits for calls on GPUs that have not been looked at, and raises what they found wrong:
        `UsageError` for an index out of range, `DataError` for labels and lengths of a CRF."""
        with self._lock:
            traces = [trace for known in self._classes.values() for trace in known]
        for trace in traces:
            for runner in list(trace.runners.values()):
                runner.check()

    def cache_info(self) -> CacheInfo:
        """Calls, signatures and traces so far."""
        calls = next(self._calls)  # counting has no lock, so a look counts too
        self._looks += 1
        return CacheInfo(calls + 1 - self._looks, len(self._exact), self._traces)

    def cache_clear(self) -> None:
        """Forgets all traces."""
        with self._lock:
            self._exact.clear()
            self._classes.clear()


def compile(  # noqa: A001
    function: Callable[..., Any] | None = None,
    *,
    threads: int = 0,
    check_numerics: bool = False,
    excess_precision: bool = True,
    device: str | None = None,
) -> Any:
    """A function over arrays as one compiled program; also a decorator.

        @segfuse.compile
        def residual(x, scale, shift):
            return x + sf.gelu(sf.layer_norm(x, scale, shift))

    At the first call `function` runs once on values without content (`segfuse.Value`), which writes
    a program down; that and later calls run the program on the arrays, of NumPy, PyTorch or JAX, on
    the CPU or on one CUDA device. Arguments and results may be nested tuples, lists and dicts of
    arrays. Results belong to the library of the arguments.

    On a CUDA device nothing is copied and nothing waits. PyTorch's tensors are read and made on its
    current stream, as by an operation of its own; arrays of JAX, CuPy and others with DLPack or
    `__cuda_array_interface__` (taken to be on cuda:0) on a stream of ours that theirs is ordered
    with. Numbers (arrays without axes) may be on the CPU. An index out of range is told by the
    result's `check()` method. With `device="cuda"` or `"cuda:N"` arrays of the CPU go there and the
    results come back, both by copies; with `"cpu"` arrays on a GPU are refused.

    PyTorch's autograd goes through compiled functions: where tensors require gradients, the backward
    pass is a compiled program, too, which computes again what it needs of the forward pass.

    A trace is good for all calls with the same element types, numbers of axes, places of sizes 1,
    and arguments that are no arrays (numbers of Python among them, so pass what changes from call to
    call as an array). Other sizes are free, as far as `function` does not look at them: comparing
    sizes asks of later calls that the comparison comes out the same, and using a size as a number
    (`range(x.shape[0])`, `math.sqrt(x.shape[-1])`) fixes it. A trace serves all devices.

    Arrays that `function` takes from outside are read anew at each call from the same object.
    `threads`: 0 takes what `segfuse.set_threads` was told, then the option SEGFUSE_THREADS, then all
    cores of this process. With `check_numerics` the first NaN or new infinity is a `DataError` that names its operation.

    With `excess_precision` kernels compute with float16 and bfloat16 values in float32 and round
    where they store them and where `function` casts: fewer instructions, smaller errors. Which
    values are stored depends on the program and its sizes, not on chance. Without, every operation
    rounds to its type, as PyTorch's do one by one.
    """
    if function is None:
        return functools.partial(
            compile,
            threads=threads,
            check_numerics=check_numerics,
            excess_precision=excess_precision,
            device=device,
        )
    if not callable(function):
        raise UsageError(f"compile: found {_run.describe(function)}, expected a function")
    return Compiled(
        function,
        threads=threads,
        check_numerics=check_numerics,
        excess_precision=excess_precision,
        device=device,
    )
