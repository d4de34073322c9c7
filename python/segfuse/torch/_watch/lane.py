"""Largest magnitudes of tensors: at once on the CPU, through a buffer from a GPU."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_CHUNK = 512


def _at_once(tensor: Tensor) -> float:
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.element_size() < 2:  # float8 has no arithmetic
        tensor = tensor.float()
    low, high = torch.aminmax(tensor.detach())
    low, high = float(low.item()), float(high.item())
    return math.nan if math.isnan(low) else max(abs(low), abs(high))


def magnitudes_at_once(tensors: list[Tensor]) -> list[float]:
    """NaN if there is one, else the largest absolute value. Waits for a device."""
    return [_at_once(tensor) for tensor in tensors]


class _Chunk:
    """Magnitudes on the device and their copies on the host."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        with torch.inference_mode(False):  # it may be written out of that mode, too
            self.device_values = torch.empty(_CHUNK, dtype=dtype, device=device)
            self.cells = self.device_values.unbind()
            self.host = torch.empty(_CHUNK, dtype=dtype, pin_memory=device.type == "cuda")
        self.used = 0
        self.sent = 0
        self.events: list[tuple[int, Any]] = []  # cells before this number have arrived with it


class Slot:
    """A magnitude that is on its way to the host."""

    __slots__ = ("_chunk", "_index")

    def __init__(self, chunk: _Chunk, index: int) -> None:
        self._chunk = chunk
        self._index = index

    def _event(self) -> Any:
        return next((event for end, event in self._chunk.events if self._index < end), None)

    def arrived(self) -> bool:
        event = self._event()
        return event is not None and event.query()

    def wait(self) -> None:
        event = self._event()
        if event is not None:
            event.synchronize()

    def value(self) -> float:
        return float(self._chunk.host[self._index].item())


class Lanes:
    """A buffer for each stream and width of numbers."""

    def __init__(self) -> None:
        self._chunks: dict[tuple[Any, ...], _Chunk] = {}

    def _cells(self, device: torch.device, wide: bool, count: int) -> tuple[_Chunk, int]:
        stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        key = (device, stream.cuda_stream if stream is not None else 0, wide)
        chunk = self._chunks.get(key)
        if chunk is None or chunk.used + count > _CHUNK:
            if chunk is not None:
                self._send(chunk, stream)
            chunk = _Chunk(device, torch.float64 if wide else torch.float32)
            chunk.stream = stream  # type: ignore[attr-defined]
            self._chunks[key] = chunk
        at = chunk.used
        chunk.used += count
        return chunk, at

    def reduce(self, tensors: list[Tensor]) -> list[Slot]:
        """One reduction for each tensor, on its device and the current stream."""
        slots = []
        for tensor in tensors:
            wide = tensor.dtype in (torch.float64, torch.complex128)
            chunk, at = self._cells(tensor.device, wide, 1)
            tensor = tensor.detach()
            if tensor.dtype.is_complex:
                tensor = torch.view_as_real(tensor.resolve_conj())
            if tensor.element_size() < 2:
                tensor = tensor.float()
            torch.linalg.vector_norm(
                tensor, math.inf, dtype=chunk.device_values.dtype, out=chunk.cells[at]
            )
            slots.append(Slot(chunk, at))
        return slots

    def _send(self, chunk: _Chunk, stream: Any) -> None:
        if chunk.sent == chunk.used:
            return
        event: Any = _Done()
        part = slice(chunk.sent, chunk.used)
        if stream is None:
            chunk.host[part].copy_(chunk.device_values[part])
        else:
            with torch.cuda.stream(stream):
                chunk.host[part].copy_(chunk.device_values[part], non_blocking=True)
                event = torch.cuda.Event()
                event.record(stream)
        chunk.sent = chunk.used
        chunk.events.append((chunk.used, event))

    def send(self) -> None:
        """Lets all that was reduced travel to the host."""
        for chunk in self._chunks.values():
            self._send(chunk, chunk.stream)  # type: ignore[attr-defined]


class _Done:
    """The event of what is on the host already."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass
