"""What a PyTorch program enqueues on streams, for the race checker.

Operations come from a dispatch mode; events, waits, synchronisations and memory from PyTorch's GPU
trace; replays and launches from `launches.py`. `Backend` stands between, so that tests can play a
GPU.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.cuda import _gpu_trace as trace
from torch.multiprocessing.reductions import StorageWeakRef

from ... import _native
from ..allocator import enabled
from .dispatch import Dispatch
from .launches import Launches
from .operation import (
    Operation,
    extent_of,
    is_capturing,
    is_collective,
    operation_of,
    tensors_in,
    written_of,
)
from .place import stack_here
from .report import Reporter

Uses = dict[tuple[int, int, int], bool]
"""Block, first byte and bytes of what an operation uses, and whether it writes there."""


class Backend(Protocol):
    """A device whose streams are watched."""

    def start(self, recorder: Recorder) -> None: ...
    def stop(self) -> None: ...
    def stream(self, device: torch.device | None) -> int:
        """The current one of a device, or of the current device, by a number of its own."""

    def stream_of(self, argument: Any) -> int:
        """Of an argument of record_stream."""

    def address_of(self, tensor: Tensor) -> tuple[int, int]:
        """The first byte of its allocation, and its own."""

    def is_here(self, tensor: Tensor) -> bool:
        """Whether it lies on the device."""

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether it lies in memory of the host that copies use while the host goes on."""

    def is_capturing(self) -> bool: ...

    def orders_owners(self) -> bool:
        """Whether memory comes from segfuse's heap: a new owner's work waits for all former uses,
        and nobody reports owners."""


class Recorder(Dispatch):
    """Feeds a race checker."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.trace = _native.StreamTrace()
        self._backend = backend
        self._pid = os.getpid()
        self._local = threading.local()
        self._owners: dict[int, tuple[StorageWeakRef, set[int]]] = {}
        self._captured: Uses | None = None
        self._gradients: set[int] = set()  # blocks that a backward pass has allocated

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
        if os.getpid() != self._pid:
            return func(*args, **kwargs)
        operation = operation_of(func)
        during = self._local.during = []
        try:
            result = func(*args, **kwargs)
        finally:
            self._local.during = None
        if operation.name == "record_stream":
            for tensor in tensors_in(args[0]):
                stream = self._backend.stream_of(args[1])
                self.trace.record_stream(self._backend.address_of(tensor)[0], stream)
        elif operation.makes_numbers:
            written = list(written_of(operation, args, kwargs))
            self._add(operation, written, [args, list(kwargs.values())], result, during)
        return result

    def _add(
        self, operation: Operation, written: list[Tensor], read: Any, result: Any,
        during: list[tuple[str, int, int]],
    ) -> None:  # fmt: skip
        written = [*written, *tensors_in(result)]
        used = [(tensor, True) for tensor in written]
        used += [(tensor, False) for tensor in tensors_in(read)]
        own = [tensor.device for tensor, _ in used if self._backend.is_here(tensor)]
        stream = self._backend.stream(own[0]) if own else 0
        asynchronous = None
        if is_collective(operation):
            asynchronous = next(
                (s for what, s, _ in during if what == "wait" and s != stream), None
            )
        self.enqueue(operation.name, used, stream if asynchronous is None else asynchronous)
        for what, of_stream, event in during:
            # It may have been recorded after the work, and the host may have waited for that.
            self._tell(what, of_stream, event)
        if torch._C._current_autograd_node() is not None:
            # Between the nodes of a backward pass PyTorch keeps them, without telling.
            for tensor, _ in used:
                block = self._backend.address_of(tensor)[0] if self._backend.is_here(tensor) else 0
                if block in self._gradients:
                    self.trace.record_stream(block, stream)
        if asynchronous is not None:  # PyTorch keeps the memory until the collective has ended
            for tensor, _ in used:
                if self._backend.is_here(tensor):
                    block = self._backend.address_of(tensor)[0]
                    self.trace.record_stream(block, asynchronous)

    def enqueue(self, name: str, used: Iterable[tuple[Tensor, bool]], stream: int) -> None:
        """What reads and writes tensors, on a stream."""
        uses: Uses = {}
        host: Uses = {}
        streams: list[set[int]] = []
        ordered = self._backend.orders_owners()
        for tensor, write in used:
            if tensor.numel() == 0:
                continue
            if self._backend.is_here(tensor):
                use = (*self._backend.address_of(tensor), extent_of(tensor))
                uses[use] = uses.get(use, False) or write
                if ordered:
                    streams.append(self._streams_of_owner(tensor, use[0], "memory"))
            elif self._backend.is_pinned(tensor):
                block = tensor.untyped_storage().data_ptr()
                use = (block, tensor.data_ptr(), extent_of(tensor))
                host[use] = host.get(use, False) or write
                streams.append(self._streams_of_owner(tensor, block, "pinned memory"))
        if uses and self._backend.is_capturing():
            if self._captured is not None:
                for use, write in uses.items():
                    self._captured[use] = self._captured.get(use, False) or write
        elif uses:
            for known in streams:
                known.add(stream)
            self.use(stream, name, uses | host)
        else:
            for use, write in host.items():
                self.trace.host_use(stack_here(), (*use, write))

    def use(self, stream: int, name: str, uses: Uses) -> None:
        self.trace.operation(stream, name, stack_here(), [(*use, w) for use, w in uses.items()])

    def _streams_of_owner(self, tensor: Tensor, block: int, label: str) -> set[int]:
        """Where its owner was used. A block whose next owner waits for all uses of the former one
        has no other sign of a new owner than another storage."""
        storage = tensor.untyped_storage()
        known = self._owners.get(block)
        if known is None or known[0].cdata != storage._cdata:
            if known is not None:
                for stream in known[1]:
                    self.trace.record_stream(block, stream)
                self.trace.release(block, "")
            self.trace.allocate(block, label, stack_here())
            known = self._owners[block] = (StorageWeakRef(storage), set())
        return known[1]

    # Called by the backend.

    def record(self, stream: int, event: int) -> None:
        self._hear("record", stream, event)

    def wait(self, stream: int, event: int) -> None:
        self._hear("wait", stream, event)

    def synchronize_device(self) -> None:
        self._hear("device", 0, 0)

    def synchronize_stream(self, stream: int) -> None:
        self._hear("stream", stream, 0)

    def synchronize_event(self, event: int) -> None:
        self._hear("event", 0, event)

    def allocate(self, address: int) -> None:
        if torch._C._current_autograd_node() is not None:
            self._gradients.add(address)
        self.trace.allocate(address, "memory", stack_here())

    def release(self, address: int) -> None:
        self._gradients.discard(address)
        self.trace.release(address, stack_here())

    def begin_capture(self) -> None:
        self._captured = {}

    def end_capture(self) -> Uses:
        captured, self._captured = self._captured, None
        return captured or {}

    def is_within_operation(self) -> bool:
        return getattr(self._local, "during", None) is not None

    def _hear(self, what: str, stream: int, event: int) -> None:
        if self._backend.is_capturing():
            return  # it becomes a part of the graph
        during = getattr(self._local, "during", None)
        if during is not None:
            during.append((what, stream, event))
        self._tell(what, stream, event)

    def _tell(self, what: str, stream: int, event: int) -> None:
        if what == "record":
            self.trace.record(stream, event, stack_here())
        elif what == "wait":
            self.trace.wait(stream, event, stack_here())
        elif what == "device":
            self.trace.synchronize_device()
        elif what == "stream":
            self.trace.synchronize_stream(stream)
        else:
            self.trace.synchronize_event(event)


class Cuda:
    """PyTorch's GPU trace. Its callbacks cannot be taken back: they do nothing after stop()."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._launches: Launches | None = None

    def start(self, recorder: Recorder) -> None:
        self._recorder = recorder

        def told(do: Callable[..., None]) -> Callable[..., None]:
            return lambda *arguments: None if self._recorder is None else do(*arguments)

        default = self._number
        trace.register_callback_for_event_record(
            told(lambda event, stream: recorder.record(default(stream), event))
        )
        trace.register_callback_for_event_wait(
            told(lambda event, stream: recorder.wait(default(stream), event))
        )
        trace.register_callback_for_event_deletion(told(recorder.trace.destroy_event))
        trace.register_callback_for_memory_allocation(told(recorder.allocate))
        trace.register_callback_for_memory_deallocation(told(recorder.release))
        trace.register_callback_for_device_synchronization(told(recorder.synchronize_device))
        trace.register_callback_for_stream_synchronization(
            told(lambda stream: recorder.synchronize_stream(default(stream)))
        )
        trace.register_callback_for_event_synchronization(told(recorder.synchronize_event))
        torch._C._activate_gpu_trace()
        self._launches = Launches(recorder, lambda: self.stream(None))
        self._launches.start()

    def stop(self) -> None:
        if self._launches is not None:
            self._launches.stop()
        self._recorder = self._launches = None

    def _number(self, stream: int, device: int | None = None) -> int:
        """Each device has a default stream of its own, and all of them are 0."""
        if stream != 0:
            return stream
        return (1 << 63) - 1 - (torch.cuda.current_device() if device is None else device)

    def stream(self, device: torch.device | None) -> int:
        stream = torch.cuda.current_stream(device)
        return self._number(stream.cuda_stream, stream.device_index)

    def stream_of(self, argument: Any) -> int:
        stream = torch.cuda.Stream(
            stream_id=argument.stream_id,
            device_index=argument.device_index,
            device_type=argument.device_type,
        )
        return self._number(stream.cuda_stream, stream.device_index)

    def address_of(self, tensor: Tensor) -> tuple[int, int]:
        return tensor.untyped_storage().data_ptr(), tensor.data_ptr()

    def is_here(self, tensor: Tensor) -> bool:
        return tensor.device.type == "cuda"

    def is_pinned(self, tensor: Tensor) -> bool:
        if tensor.device.type != "cpu":
            return False
        return torch.cuda.is_initialized() and tensor.is_pinned()

    def is_capturing(self) -> bool:
        return is_capturing()

    def orders_owners(self) -> bool:
        return enabled()


class _Report:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._there = torch.cuda.device_count() > 0  # is_available() would forbid it to forked ones

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
