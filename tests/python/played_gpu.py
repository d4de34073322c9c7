"""A GPU that is played: tensors of the CPU lie at made-up addresses, which are handed out again as
PyTorch's allocator does, and streams are numbers. Programs find it behind `torch.cuda`."""

import contextlib
import itertools
import weakref

import torch
from torch.overrides import TorchFunctionMode

from segfuse.torch._watch.streams import Recorder

MAIN, SIDE = 1, 2


class Played:
    """An allocator that gives a freed block to the next one of its size and stream; as segfuse's
    heap it gives it to any stream, and reports nothing."""

    def __init__(self, heap=False):
        self.heap = heap
        self.current, self.blocks, self.free, self.next = MAIN, {}, {}, 0x10000
        self.pinned = set()
        self.capturing = False
        self.recorder = Recorder(self)

    def start(self, recorder):
        pass

    def stop(self):
        self.recorder = None

    def stream(self, device):
        return self.current

    def stream_of(self, argument):
        return argument

    def is_here(self, tensor):
        return tensor.device.type == "cpu" and not self.is_pinned(tensor)

    def is_pinned(self, tensor):
        return tensor.untyped_storage()._cdata in self.pinned

    def is_capturing(self):
        return self.capturing

    def orders_owners(self):
        return self.heap

    def pin(self, tensor):
        key = tensor.untyped_storage()._cdata
        self.pinned.add(key)
        weakref.finalize(tensor.untyped_storage(), self.pinned.discard, key)
        return tensor

    def _kind(self, bytes):
        return bytes, None if self.heap else self.current

    def address_of(self, tensor):
        storage = tensor.untyped_storage()
        block = self.blocks.get(storage._cdata)
        if block is None:
            kind = self._kind(storage.nbytes())
            free = self.free.setdefault(kind, [])
            if free:
                block = free.pop()
            else:
                block, self.next = self.next, self.next + max(storage.nbytes(), 512)
            self.blocks[storage._cdata] = block
            if not self.heap:
                self.recorder.allocate(block)
            weakref.finalize(storage, self.release, storage._cdata, kind)
        return block, block + tensor.storage_offset() * tensor.element_size()

    def release(self, key, kind):
        block = self.blocks.pop(key, None)
        if block is None:
            return  # it lies elsewhere
        if self.recorder is not None:
            if not self.heap:
                self.recorder.release(block)
            self.free[kind].append(block)

    def moved(self, tensor, bytes):
        """The tensor, of so many bytes before, lies elsewhere now."""
        key = tensor.untyped_storage()._cdata
        self.release(key, self._kind(bytes))
        self.address_of(tensor)

    @contextlib.contextmanager
    def on(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    def order(self, before, after, event=7):
        self.recorder.record(before, event)
        self.recorder.wait(after, event)


def run(program, heap=False):
    """The races of a program that gets the played GPU."""
    gpu = Played(heap)
    recorder = gpu.recorder
    recorder.start()
    try:
        program(gpu)
    finally:
        recorder.stop()
    return recorder.races()


class _Functions(TorchFunctionMode):
    """What PyTorch does only on a GPU."""

    def __init__(self, gpu):
        super().__init__()
        self._gpu = gpu

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device")) == "cuda":
            kwargs["device"] = "cpu"
        before = args[0].untyped_storage().nbytes() if func is torch.Tensor.resize_ else 0
        pinned = kwargs.pop("pin_memory", False)
        result = func(*args, **kwargs)
        if before:
            self._gpu.moved(result, before)
        return self._gpu.pin(result) if pinned else result


@contextlib.contextmanager
def played_cuda(monkeypatch):
    """`torch.cuda` as far as stream_programs.py needs it."""
    gpu = Played()
    numbers = itertools.count(SIDE)
    events = itertools.count(100)

    class Stream:
        def __init__(self, number=None):
            self.number = next(numbers) if number is None else number

        def wait_stream(self, other):
            Event().record(other).wait(self)

        def wait_event(self, event):
            event.wait(self)

        def synchronize(self):
            gpu.recorder.synchronize_stream(self.number)

    class Event:
        def __init__(self):
            self.number = next(events)

        def record(self, stream=None):
            gpu.recorder.record(gpu.current if stream is None else stream.number, self.number)
            return self

        def wait(self, stream=None):
            gpu.recorder.wait(gpu.current if stream is None else stream.number, self.number)

        def synchronize(self):
            gpu.recorder.synchronize_event(self.number)

    class Graph:
        def replay(self):
            gpu.recorder.use(gpu.current, "replay of a CUDA graph", self.uses)

    @contextlib.contextmanager
    def capture(graph):
        gpu.recorder.synchronize_device()
        gpu.recorder.begin_capture()
        gpu.capturing = True
        with gpu.on(next(numbers)):
            yield
        gpu.capturing = False
        graph.uses = gpu.recorder.end_capture()

    for name, value in {
        "Stream": Stream, "Event": Event, "CUDAGraph": Graph, "graph": capture,
        "stream": lambda stream: gpu.on(stream.number),
        "current_stream": lambda: Stream(gpu.current),
        "synchronize": lambda: gpu.recorder.synchronize_device(),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    recorder = gpu.recorder

    def record_stream(tensor, stream):
        recorder.trace.record_stream(gpu.address_of(tensor)[0], stream.number)

    monkeypatch.setattr(torch.Tensor, "record_stream", record_stream)
    recorder.start()
    try:
        with _Functions(gpu):
            yield recorder
    finally:
        recorder.stop()
