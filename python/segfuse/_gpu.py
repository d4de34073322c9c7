"""Compiled programs on arrays in the memory of a GPU: PyTorch's on its current stream, with results
that PyTorch allocates; those of JAX and others by DLPack, on a stream of our own."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import _arrays, _native
from ._arrays import TORCH, Kind
from ._errors import UsageError

_CUDA = 2  # as DLPack numbers devices
_LEGACY_STREAM = 1  # how CUDA's default stream is called where 0 would mean "none"
_BYTES = {
    "bool": 1,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
}
_CODES = {"bool": "|b1", "float16": "<f2", "int32": "<i4", "float32": "<f4", "int64": "<i8",
          "float64": "<f8"}  # fmt: skip


class DeviceArray:
    """A result on a GPU for callers whose library takes arrays by DLPack or
    `__cuda_array_interface__` and has no `from_dlpack` of its own."""

    def __init__(self, tensor: _native.DeviceTensor, device: int) -> None:
        self._tensor = tensor
        self._device = device
        self.dtype = tensor.dtype()
        self.shape = tuple(tensor.shape())

    @property
    def device(self) -> str:
        """As "cuda:0"."""
        return f"cuda:{self._device}"

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._device

    def __dlpack__(self, *, stream: int | None = None, copy: bool | None = None, **_: Any) -> Any:
        """Ready on `stream`: a handle, 1 or None for the default stream, or -1 for any."""
        if copy:
            raise BufferError("a DeviceArray is handed out without a copy")
        if stream == 2:
            raise BufferError(
                "streams by thread are not supported; name one, or the default stream"
            )
        # Where the reader wants no order, or names nothing, the host waits.
        return self._tensor.capsule(
            self._device, 0 if stream in (-1, 0) else stream or _LEGACY_STREAM
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype not in _CODES:
            raise AttributeError(f"{self.dtype} has no __cuda_array_interface__")
        return {
            "shape": self.shape, "typestr": _CODES[self.dtype], "version": 3, "strides": None,
            "data": (self._tensor.address(0), False), "stream": None,
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}, shape={self.shape}, device={self.device})"


def _current_stream() -> Callable[[int], int]:
    """The handle of PyTorch's current stream on a device."""
    torch = sys.modules["torch"]
    quick: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return quick or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))


def device_of(call_device: int | None, places: Sequence[int], names: Sequence[str]) -> int | None:
    """The one GPU of a call; its arrays must be on it, and on `call_device` if that is given."""
    found: int | None = None
    first = ""
    for place, name in zip(places, names, strict=True):
        if place < 0:
            continue
        if found is None:
            found, first = place, name
        elif place != found:
            raise UsageError(
                f"{name} lies on cuda:{place}, but {first} on cuda:{found}; move them to one device"
            )
    if found is not None and call_device is not None and call_device != found:
        wanted = "the CPU" if call_device < 0 else f"cuda:{call_device}"
        raise UsageError(
            f"{first} lies on cuda:{found}, but the function was compiled for {wanted}; move it "
            "there, or compile without device="
        )
    return found


def number_of(device: str | None) -> int | None:
    """-1 for "cpu", N for "cuda:N", None for None: wherever the arrays are."""
    if device is None:
        return None
    name = str(device)
    if name == "cpu":
        return -1
    if name == "cuda":
        return 0
    if name.startswith("cuda:") and name[5:].isascii() and name[5:].isdigit():
        return int(name[5:])
    raise UsageError(f"found the device {device!r}, expected 'cpu', 'cuda', 'cuda:N' or None")


class Runner:
    """A program on one GPU. `names` are those of the inputs in messages, `dtypes` the outputs'."""

    def __init__(
        self, program: _native.Program, device: int, names: Sequence[str], dtypes: Sequence[str]
    ) -> None:
        self.device = device
        self._native = _native.DeviceProgram(program, f"cuda:{device}")
        self._names = list(names)
        self._dtypes = list(dtypes)
        self._prepared: dict[Any, _native.Prepared] = {}
        self._handle = self._native.stream()
        self._torch: Any = None  # how tensors are made, once they are seen

    def prepared(self, shapes: tuple[tuple[int, ...], ...]) -> _native.Prepared:
        """What is known of a call with inputs of these shapes. Kernels are compiled."""
        known = self._prepared.get(shapes)
        if known is None:
            if len(self._prepared) >= 4096:
                self._prepared.clear()
            known = self._prepared[shapes] = self._native.prepare([list(shape) for shape in shapes])
        return known

    def check(self) -> None:
        self._native.check()

    def run_on_copies(self, arrays: list[Any], overwritten: Sequence[int] = ()) -> list[Any]:
        """NumPy's arrays (as `Kind.host_view` gives them) travel, and so do the results."""
        return self._native.run_on_copies(arrays, list(overwritten))

    def run(self, arrays: Sequence[Any], kinds: Sequence[Kind], places: Sequence[int]) -> list[Any]:
        """Arrays on this device, and numbers on the host; results on the device, of their kind."""
        prepared = self.prepared(tuple([tuple(array.shape) for array in arrays]))
        library = _arrays.library_of(kinds)
        if library is TORCH:
            outputs = self.torch_outputs(prepared)
            return self.run_torch(prepared, outputs, arrays, kinds, places)
        items = [
            self._item(name, array, kind, place)
            for name, array, kind, place in zip(self._names, arrays, kinds, places, strict=True)
        ]
        results = self._native.run_apart(prepared, items)
        there = next(array for array, place in zip(arrays, places, strict=True) if place >= 0)
        finish = library.from_dlpack(there)
        return [finish(DeviceArray(result, self.device)) for result in results]

    # --- PyTorch ---

    def torch_outputs(self, prepared: _native.Prepared) -> list[tuple[Any, Any]]:
        """(shape, dtype) of each output."""
        torch = sys.modules["torch"]
        return [
            (tuple(shape), getattr(torch, dtype))
            for shape, dtype in zip(prepared.outputs(), self._dtypes, strict=True)
        ]

    def run_torch(
        self,
        prepared: _native.Prepared,
        outputs: list[tuple[Any, Any]],
        arrays: Sequence[Any],
        kinds: Sequence[Kind],
        places: Sequence[int],
    ) -> list[Any]:
        if self._torch is None:
            torch = sys.modules["torch"]
            device = torch.device("cuda", self.device)
            self._torch = functools.partial(torch.empty, device=device), _current_stream()
        empty, stream_of = self._torch
        items: list[Any] = []
        kept: list[Any] = []  # until all is enqueued
        for i, array in enumerate(arrays):
            if kinds[i] is TORCH and places[i] >= 0:
                if array.is_neg():
                    kept.append(array := array.resolve_neg())
                if array.is_contiguous():
                    items.append(array.data_ptr())
                else:
                    items.append((array.data_ptr(), list(array.stride()), 0, None))
            elif places[i] >= 0:  # of another library, and now PyTorch's
                kept.append(moved := sys.modules["torch"].from_dlpack(array))
                items.append((moved.data_ptr(), list(moved.stride()), 0, None))
            else:
                items.append(_host_array(self._names[i], array, kinds[i]))
        results = [empty(shape, dtype=dtype) for shape, dtype in outputs]
        self._native.run(
            prepared,
            stream_of(self.device) or _LEGACY_STREAM,
            items,
            [result.data_ptr() for result in results],
        )
        return results

    def make_known(
        self,
        quick: _native.QuickCalls,
        tensors: tuple[Any, ...],
        prepared: _native.Prepared,
        outputs: list[tuple[Any, Any]],
        orders: Sequence[list[int] | None],
    ) -> None:
        """Lets `quick` do calls with tensors like these; axes of results go to `orders`."""
        made = []
        for (shape, dtype), order in zip(outputs, orders, strict=True):
            strides = [1] * len(shape)
            for axis in range(len(shape) - 1, 0, -1):
                strides[axis - 1] = strides[axis] * max(shape[axis], 1)
            axes = range(len(shape)) if order is None else order
            made.append((tuple(shape[i] for i in axes), tuple(strides[i] for i in axes), dtype))
        quick.add(tensors, self._native, prepared, made)

    # --- JAX and others ---

    def _item(self, name: str, array: Any, kind: Kind, place: int) -> Any:
        if place < 0:
            return _host_array(name, array, kind)
        if hasattr(array, "__dlpack__"):
            try:
                return array.__dlpack__(stream=self._handle)
            except (BufferError, ValueError, RuntimeError) as error:
                raise UsageError(f"{name} cannot be handed out by DLPack: {error}") from None
        known = array.__cuda_array_interface__
        strides, item = known.get("strides"), _BYTES[_arrays.signature_of(name, array)[0]]
        if strides is not None:
            strides = [stride // item for stride in strides]
        return known["data"][0], strides, known.get("stream") or 0, array


def quick_calls(
    orders: Sequence[list[int] | None], doubtful: Sequence[int]
) -> _native.QuickCalls | None:
    """For programs of PyTorch tensors, whose orders of axes are `orders`; None where
    PyTorch has no table of C functions. `doubtful` are the inputs that may be negated views."""
    torch = sys.modules["torch"]
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    make = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
    current = getattr(torch._C, "_cuda_getDevice", None)
    if table is None or make is None or current is None or not _native.QuickCalls.reads(table):
        return None
    types = torch.Tensor, torch.nn.Parameter
    each = [order or [] for order in orders]
    return _native.QuickCalls(table, types, _CUDA, make, current, each, list(doubtful))


def _host_array(name: str, array: Any, kind: Kind) -> np.ndarray:
    return np.ascontiguousarray(kind.host_view(name, array)).reshape(np.shape(array))


def need_numbers(
    names: Sequence[str],
    arrays: Sequence[Any],
    places: Sequence[int],
    travels: Sequence[bool],
    device: int,
) -> None:
    """What lies on the host beside arrays on a GPU are numbers, and what travels at each call."""
    for name, array, place, goes in zip(names, arrays, places, travels, strict=True):
        if place < 0 and not goes and tuple(array.shape) != ():
            other = next(n for n, p in zip(names, places, strict=True) if p >= 0)
            raise UsageError(
                f"{name} lies on the CPU, but {other} on cuda:{device}; move it there (only "
                "numbers may stay)"
            )
