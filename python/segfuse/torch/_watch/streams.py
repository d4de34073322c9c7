"""What a PyTorch program enqueues on streams, for the race checker.

Operations come from a dispatch mode; events, waits, synchronisations and memory from PyTorch's GPU
trace. `Backend` stands between, so that tests can play a GPU.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.cuda import _gpu_trace as trace
from torch.utils._python_dispatch import TorchDispatchMode

from ... import _native
from .operation import operation_of, tensors_in, written_of
from .place import stack_here
from .report import Reporter


class Backend(Protocol):
    """A device whose streams are watched."""

    device: str
    """The type of the tensors' device."""

    def start(self, recorder: Recorder) -> None: ...
    def stop(self) -> None: ...
    def stream(self) -> int:
        """The current one, by a number of its own."""

    def stream_of(self, argument: Any) -> int:
        """Of an argument of record_stream."""

    def address_of(self, tensor: Tensor) -> tuple[int, int]:
        """The first byte of its allocation, and its own."""

    def is_capturing(self) -> bool: ...


def _extent(tensor: Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


class Recorder(TorchDispatchMode):
    """Feeds a race checker."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.trace = _native.StreamTrace()
        self._backend = backend
        self._pid = os.getpid()
        self._local = threading.local()

    def start(self) -> None:
        self._backend.start(self)
        self.__enter__()

    def stop(self) -> None:
        self.__exit__(None, None, None)
        self._backend.stop()

    def races(self) -> list[dict[str, Any]]:
        return json.loads(self.trace.json())["races"]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if os.getpid() != self._pid:
            return result
        operation = operation_of(func)
        if operation.name == "record_stream":
            for tensor in tensors_in(args[0]):
                stream = self._backend.stream_of(args[1])
                self.trace.record_stream(self._backend.address_of(tensor)[0], stream)
        elif operation.makes_numbers and not self._backend.is_capturing():
            self._add(
                operation.name, list(written_of(operation, args, kwargs)), args, kwargs, result
            )
        return result

    def _add(  # type: ignore[no-untyped-def]
        self, name: str, written: list[Tensor], args, kwargs, result
    ) -> None:
        uses: dict[tuple[int, int, int], bool] = {}
        read = [*tensors_in(list(args)), *tensors_in(list(kwargs.values()))]
        for tensors, write in ((read, False), (written, True), (tensors_in(result), True)):
            for tensor in tensors:
                if tensor.device.type == self._backend.device and tensor.numel() > 0:
                    use = (*self._backend.address_of(tensor), _extent(tensor))
                    uses[use] = uses.get(use, False) or write
        if uses:
            stream, place = self._backend.stream(), stack_here()
            self.trace.operation(stream, name, place, [(*use, w) for use, w in uses.items()])

    # Called by the backend.

    def record(self, stream: int, event: int) -> None:
        self.trace.record(stream, event, stack_here())

    def wait(self, stream: int, event: int) -> None:
        self.trace.wait(stream, event, stack_here())

    def allocate(self, address: int) -> None:
        self.trace.allocate(address, "memory", stack_here())

    def release(self, address: int) -> None:
        self.trace.release(address, stack_here())


class Cuda:
    """PyTorch's GPU trace. Its callbacks cannot be taken back: they do nothing after stop()."""

    device = "cuda"

    def __init__(self) -> None:
        self._recorder: Recorder | None = None

    def start(self, recorder: Recorder) -> None:
        self._recorder = recorder

        def told(do: Callable[..., None]) -> Callable[..., None]:
            return lambda *arguments: None if self._recorder is None else do(*arguments)

        checker, default = recorder.trace, self._number
        trace.register_callback_for_event_record(
            told(lambda event, stream: recorder.record(default(stream), event))
        )
        trace.register_callback_for_event_wait(
            told(lambda event, stream: recorder.wait(default(stream), event))
        )
        trace.register_callback_for_event_deletion(told(checker.destroy_event))
        trace.register_callback_for_memory_allocation(told(recorder.allocate))
        trace.register_callback_for_memory_deallocation(told(recorder.release))
        trace.register_callback_for_device_synchronization(told(checker.synchronize_device))
        trace.register_callback_for_stream_synchronization(
            told(lambda stream: checker.synchronize_stream(default(stream)))
        )
        trace.register_callback_for_event_synchronization(told(checker.synchronize_event))
        torch._C._activate_gpu_trace()

    def stop(self) -> None:
        self._recorder = None

    def _number(self, stream: int) -> int:
        """Each device has a default stream of its own, and all of them are 0."""
        return stream if stream != 0 else -1 - torch.cuda.current_device() & (1 << 63) - 1

    def stream(self) -> int:
        return self._number(torch.cuda.current_stream().cuda_stream)

    def stream_of(self, argument: Any) -> int:
        stream = torch.cuda.Stream(
            stream_id=argument.stream_id,
            device_index=argument.device_index,
            device_type=argument.device_type,
        )
        return self._number(stream.cuda_stream)

    def address_of(self, tensor: Tensor) -> tuple[int, int]:
        return tensor.untyped_storage().data_ptr(), tensor.data_ptr()

    def is_capturing(self) -> bool:
        return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class _Report:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._there = torch.cuda.is_available()

    def start(self) -> None:
        if self._there:
            self._recorder.start()

    def stop(self) -> None:
        if self._there:
            self._recorder.stop()

    def seen(self) -> bool:
        return True

    def on_change(self, write: Callable[[], None]) -> None:
        pass  # races are collected, and reported at the end

    def report(self) -> dict[str, Any]:
        report = json.loads(self._recorder.trace.json())
        text = self._recorder.trace.text()
        if not self._there:
            text = "PyTorch sees no CUDA device here, so nothing was checked\n"
            report["notes"] = [text.rstrip()]
        return {"found": bool(report["races"]), "text": text, "report": report}


def streams_reporter(_options: dict[str, Any], _folder: str, _key: str) -> Reporter:
    return _Report(Recorder(Cuda()))
