"""The memory of segfuse as PyTorch's allocator of CUDA memory.

    import segfuse.torch.allocator as allocator
    allocator.enable()        # before the first use of a GPU

Freed memory is reused when the work that used it is over, on every stream of
PyTorch that may have had it: `Tensor.record_stream` is not needed. See docs/memory.md.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.cuda import _gpu_trace as trace

from .. import _native
from .._errors import DeviceError, UsageError
from .._numbers import whole

__all__ = ["enable", "enabled", "keep_history", "reset_peaks", "snapshot", "statistics", "trim"]

_allocator: Any = None


def enabled() -> bool:
    return _allocator is not None


def enable(*, limit: int | None = None) -> None:
    """All CUDA memory of PyTorch in this process comes from segfuse's heap from now on.

    Call it before anything uses a GPU. Where it is enabled already, the limit changes.

    Args:
        limit: most bytes to hold on each device; None: what the device has.

    Raises:
        UsageError: PyTorch has used a GPU already.
        DeviceError: there is no CUDA device, or PyTorch is too old.
    """
    global _allocator
    most = 0 if limit is None else whole("limit", limit, 1)
    if _allocator is None:
        _check()
        _allocator = _install()
        _follow_streams()
        _follow_captures()
        _refuse_pools()
    _native.memory_limit(most)


def _check() -> None:
    if not torch.cuda.is_available():
        raise DeviceError("enable: PyTorch sees no CUDA device here, expected at least one")
    if torch.cuda.is_initialized():
        raise UsageError(
            "enable: PyTorch has used a GPU already, expected no use before; call "
            "segfuse.torch.allocator.enable() at the start of the program"
        )


def _install() -> Any:
    callbacks = _native.memory_callbacks()
    made = torch._C._cuda_customAllocator(callbacks.pop("allocate"), callbacks.pop("release"))
    for setter, address in callbacks.items():
        if not hasattr(made, setter):
            raise DeviceError(
                f"enable: found no {setter} in PyTorch {torch.__version__}, expected PyTorch 2.6 "
                "or later; install a later one"
            )
        getattr(made, setter)(address)
    torch._C._cuda_changeCurrentAllocator(made)
    return made


def _follow_streams() -> None:
    """Streams become known when Python enters them or makes them wait; see docs/decisions/162-*."""
    enter, mark = _native.memory_enter, _native.memory_mark

    def current(device: int) -> None:
        enter(device, torch.cuda.current_stream(device).cuda_stream)

    _after(torch.cuda, "set_stream", lambda stream: enter(stream.device_index, stream.cuda_stream))
    _after(torch.accelerator, "set_stream", lambda stream: current(stream.device_index))
    for name in ("__enter__", "__exit__"):
        _after(torch.cuda.Stream, name, lambda stream: current(stream.device_index))
    trace.register_callback_for_event_wait(
        lambda _, stream: mark(torch.cuda.current_device(), stream)
    )
    for register in (
        trace.register_callback_for_device_synchronization,
        trace.register_callback_for_stream_synchronization,
        trace.register_callback_for_event_synchronization,
    ):
        register(lambda *_: _native.memory_mark_all())
    torch._C._activate_gpu_trace()


def _after(owner: Any, name: str, tell: Callable[..., None]) -> None:
    """`tell` is called with the first argument of each call, when it has returned."""
    original = getattr(owner, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        stream = arguments[0] if arguments else next(iter(keywords.values()))
        if stream is not None:
            tell(stream)
        return result

    setattr(owner, name, call)


def _follow_captures() -> None:
    """The allocator's own hook is not called where a capture fails to end."""
    original = torch.cuda.CUDAGraph.capture_end

    @functools.wraps(original)
    def capture_end(graph: Any) -> None:
        try:
            original(graph)
        finally:
            _native.memory_abandon_captures()

    torch.cuda.CUDAGraph.capture_end = capture_end


def _refuse_pools() -> None:
    """Pools that are not those of a `torch.cuda.CUDAGraph`, before PyTorch begins them: the
    allocator's own hook is called when PyTorch has entered a stream for them."""
    beginnings = [
        (torch.cuda.MemPool, "__init__"),
        (torch._C, "_cuda_beginAllocateToPool"),
        (torch._C, "_cuda_beginAllocateCurrentThreadToPool"),
        (torch._C, "_cuda_beginAllocateCurrentStreamToPool"),
        (torch._C, "_cuda_checkPoolLiveAllocations"),
    ]
    if hasattr(torch.accelerator, "Graph"):  # later than PyTorch 2.11
        beginnings += [(torch.accelerator.Graph, name) for name in ("__enter__", "capture_begin")]
    for owner, name in beginnings:
        if hasattr(owner, name):
            setattr(owner, name, _refused)


def _refused(*_: Any, **__: Any) -> None:
    raise DeviceError(
        "segfuse.torch.allocator: a MemPool, mode='reduce-overhead' or a torch.accelerator.Graph "
        "asks for memory of its own, expected none or a torch.cuda.CUDAGraph; do not enable the "
        "allocator in a program that uses the former"
    )


def _device(device: Any) -> int:
    if not enabled():
        raise UsageError(
            "the allocator is not enabled; call segfuse.torch.allocator.enable() at the start of "
            "the program"
        )
    return torch.cuda._utils._get_device_index(device, optional=True)


def statistics(device: Any = None) -> dict[str, int]:
    """The state of a device's memory, in bytes and counts.

    Returns:
        The bytes that the heap holds (``held``, ``peak_held``), that are allocated (``live``, with
        rounding) and that were requested for these (``requested``), the number of allocated blocks
        (``blocks``), and the ``limit`` in bytes. Since the beginning: how often the heap took
        memory from the device (``grown``), and how often a stream (``waits``) or the host
        (``host_waits``) had to wait for memory.
    """
    return _native.memory_statistics(_device(device))


def reset_peaks(device: Any = None) -> None:
    """`peak_held` of `statistics()` restarts from the memory held now."""
    _native.memory_reset_peaks(_device(device))


def trim() -> None:
    """Waits for all streams and gives memory that nothing uses back to the device.

    `torch.cuda.empty_cache()` does the same.
    """
    _device(None)
    _native.memory_trim()


def keep_history(events: int, device: Any = None) -> None:
    """Keeps the last `events` allocations and frees for `snapshot()`; 0 turns it off."""
    _native.memory_keep_history(_device(device), whole("events", events, 0))


def snapshot(path: str | os.PathLike[str] | None = None, device: Any = None) -> dict[str, Any]:
    """A record of the memory, which is written to a new file if there is a path.

    ``segfuse doctor memory FILE`` reads the file.
    """
    record = _native.memory_record(_device(device))
    if path is not None:
        with open(path, "x", encoding="utf-8") as file:
            file.write(record)
    return json.loads(record)
