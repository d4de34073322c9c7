"""Looks at the operations by a dispatch mode: on the CPU, and where nothing can be compiled.

Each result is reduced to its largest magnitude, on its device. On the CPU it is examined
at once. On a GPU the magnitudes are collected in a buffer that is copied to the host now and then,
and examined when the copy has arrived; nothing waits before an optimizer's step or the end.
Operands are kept until then, as far as they fit into a budget.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .captures import Captures
from .dispatch import Dispatch
from .judge import Judge, Record, Result, version_of, weak_of
from .lane import Lanes, Slot, magnitudes_at_once
from .operation import (
    READS_VALUES,
    UNSCALES,
    Operation,
    arguments_of,
    covers_storage,
    has_arrived,
    has_numbers,
    is_only_written,
    operation_of,
    storage_key,
    tensors_in,
    written_of,
)
from .place import Modules, Nodes, Place, here
from .unwritten import Unwritten

_SMALL = 1 << 22
"""Elements that a copy before an operation may have."""


@dataclass(eq=False, slots=True)
class _Queued:
    """A record whose magnitudes are on their way to the host."""

    record: Record
    slots: list[Slot] = field(default_factory=list)
    kept_bytes: int = 0
    guard: Slot | None = None


class Mode(Dispatch):
    """Gives the judge a record for each operation."""

    def __init__(self, judge: Judge, modules: Modules, keep_bytes: int) -> None:
        super().__init__()
        self.operations = 0
        self.step = 1
        self.phase = "forward"
        self.devices: set[str] = set()
        self._judge = judge
        self._modules = modules
        self._nodes = Nodes()
        self._lock = threading.RLock()
        self._inside = threading.local()
        self._pid = os.getpid()
        self._number = 0
        self._lanes = Lanes()
        self.captures = Captures(self._flush_quietly)
        self._queue: deque[_Queued] = deque()
        self._kept = 0
        self._keep_bytes = keep_bytes
        self._unwritten = Unwritten()

    def start(self) -> None:
        self._modules.start()
        self.captures.start()
        self.__enter__()

    def stop(self) -> None:
        self.__exit__(None, None, None)
        self.captures.stop()
        self._modules.stop()

    def pending(self) -> bool:
        return bool(self._queue)

    def data_of(self, parameters: list[Tensor]) -> list[Tensor]:
        return [p.data for p in parameters]

    def quiet(self) -> Inside:
        """For operations that are not the program's."""
        return Inside(self._inside, self._lock)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if getattr(self._inside, "on", False) or os.getpid() != self._pid:
            return func(*args, **kwargs)
        operation = operation_of(func)
        if operation.is_view or self.captures.going_on():
            return func(*args, **kwargs)
        with self.quiet():
            place = here()
            before = self._before(operation, args, kwargs)
        result = func(*args, **kwargs)
        with self.quiet():
            self._look(operation, args, kwargs, result, before, place)
        return result

    def _before(
        self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[int, Tensor]:
        """Copies of what the operation overwrites, where that is small."""
        copies: dict[int, Tensor] = {}
        if operation.written and "out" not in kwargs and operation.makes_numbers:
            written = list(written_of(operation, args, kwargs))
            if len(written) == 1 and written[0].numel() <= _SMALL and has_numbers(written[0]):
                if written[0].device.type == "cpu":
                    copies[id(written[0])] = written[0].detach().clone()
        return copies

    def _look(  # type: ignore[no-untyped-def]
        self, operation, args, kwargs, result, before: dict[int, Tensor], place: Place
    ) -> None:
        if operation.leaves_unwritten:
            for tensor in tensors_in(result):
                self._unwritten.allocated(tensor, place)
            return
        if not has_arrived(operation, result):
            return
        results = list(written_of(operation, args, kwargs)) if operation.written else []
        for tensor in tensors_in(result):
            if all(tensor is not other for other in results):
                results.append(tensor)
        node = torch._C._current_autograd_node()
        phase = self.phase if node is None else "backward"
        if node is None and torch.is_grad_enabled():
            self._nodes.note(operation.name, place, self._modules.path())
        if operation.name == UNSCALES:
            self._judge.scaler_seen = True
        casts = operation.house == "cast" and not any(map(has_numbers, results))
        reads = operation.name in READS_VALUES
        looked_at = [t for t in results if has_numbers(t)]
        if not looked_at and not casts and not reads:
            return
        self.operations += 1
        self._number += 1
        record = Record(
            self._number, self.step, operation, phase, place, self._modules.path(),
            "" if node is None else node.name(),
            None if node is None else self._nodes.origin(node), [],
        )  # fmt: skip
        self._add_operands(record, args, kwargs, before)
        if reads or casts:
            record.arrival = "cast" if casts else "a number that the program reads"
            looked_at = [t for _, t in record.operands if isinstance(t, Tensor) and has_numbers(t)]
        for tensor in looked_at:
            key = storage_key(tensor)
            record.results.append(
                Result(tensor, key, tensor.shape, tensor.dtype, covers_storage(tensor),
                       weak_of(tensor), version_of(tensor))
            )  # fmt: skip
            if not record.arrival:
                self._unwritten.written(tensor)
        self._take(record, looked_at)

    def _add_operands(
        self,
        record: Record,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        before: dict[int, Tensor],
    ) -> None:
        operation = record.operation
        overwritten = {id(tensor) for tensor in written_of(operation, args, kwargs)}
        for name, value in arguments_of(operation, args, kwargs):
            if is_only_written(operation, name):
                continue
            if isinstance(value, float) and not math.isfinite(value):
                record.given_infinity = True
            if isinstance(value, (int, float)):
                record.operands.append((name, value))
                continue
            many = isinstance(value, (list, tuple))
            for i, tensor in enumerate(tensors_in(value)):
                label = f"{name}[{i}]" if many else name
                record.keys.append((label, storage_key(tensor)))
                unwritten = self._unwritten.place_of(tensor)
                if unwritten is not None and id(tensor) not in overwritten:
                    record.unwritten = unwritten
                elif unwritten is not None and operation.name.endswith("_"):
                    if operation.name not in ("copy_", "fill_", "zero_") and not operation.random:
                        record.unwritten = unwritten
                if id(tensor) not in overwritten:
                    record.operands.append((label, tensor))
                    record.versions.append(version_of(tensor))
                elif id(tensor) in before:
                    record.operands.append((label, before[id(tensor)]))
                    record.versions.append(version_of(before[id(tensor)]))

    def expect(
        self,
        name: Callable[[int], str],
        tensors: list[Tensor],
        guard: Tensor | None = None,
        always: bool = False,
        bounded: bool = False,
    ) -> None:
        """Tensors that have to be finite have arrived where they matter; `name` tells of each where
        that is. `bounded`: a bound of what operations have left there is enough, where there are
        bounds."""
        if self.captures.going_on():
            return
        for i, tensor in enumerate(tensors):
            if not has_numbers(tensor):
                continue
            key = storage_key(tensor)
            if tensor.device.type != "cuda" and key not in self._judge.marks and not self._queue:
                if not always:
                    continue  # no operation gave it anything bad
            result = Result(None, key, tensor.shape, tensor.dtype, False, weak_of(tensor), 0)
            record = Record(
                self._number, self.step, operation_of(torch.ops.aten.detach.default),
                "forward", here(), "", "", None, [result], arrival=name(i),
            )  # fmt: skip
            on_device = guard is not None and tensor.device.type == "cuda"
            if guard is not None and not on_device and guard.item() > 0:
                return
            self._take(record, [tensor], guard if on_device else None)

    def _take(self, record: Record, tensors: list[Tensor], guard: Tensor | None = None) -> None:
        """Looks at the results at once, or puts the record into the queue."""
        for tensor in tensors:
            self.devices.add(tensor.device.type)
        if all(tensor.device.type != "cuda" for tensor in tensors) and not self._queue:
            magnitudes = magnitudes_at_once(tensors)
            self._judge.resolve(record, magnitudes)
            return
        queued = _Queued(record, self._lanes.reduce(tensors))
        if guard is not None:
            queued.guard = self._lanes.reduce([guard])[0]
        queued.kept_bytes = sum(t.numel() * t.element_size() for t in tensors)
        self._kept += queued.kept_bytes
        self._queue.append(queued)
        if self._kept > self._keep_bytes:
            self._let_go()
        if len(self._queue) % 32 == 0:
            self._poll()

    def _let_go(self) -> None:
        """Forgets the operands of the oldest records, so that what is kept fits the budget."""
        self._poll()
        for queued in self._queue:
            if self._kept <= self._keep_bytes:
                return
            self._kept -= queued.kept_bytes
            queued.kept_bytes = 0
            record = queued.record
            record.operands = [(n, v) for n, v in record.operands if not isinstance(v, Tensor)]
            record.versions = []
            for result in record.results:
                result.tensor = None

    def _poll(self) -> None:
        self._lanes.send()
        while self._queue and all(slot.arrived() for slot in self._queue[0].slots):
            self._resolve_front()

    def _flush_quietly(self) -> None:
        with self.quiet():
            self.flush()

    def flush(self) -> None:
        if self.captures.going_on():
            return
        self._lanes.send()
        while self._queue:
            for slot in self._queue[0].slots:
                slot.wait()
            self._resolve_front()

    def _resolve_front(self) -> None:
        queued = self._queue.popleft()
        self._kept -= queued.kept_bytes
        if queued.guard is not None and queued.guard.value() > 0:
            return
        self._judge.resolve(queued.record, [slot.value() for slot in queued.slots])


class Inside:
    """Operations of our own are let through."""

    def __init__(self, local: threading.local, lock: threading.RLock) -> None:
        self._local = local
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.acquire()
        self._before = getattr(self._local, "on", False)
        self._local.on = True

    def __exit__(self, *_: object) -> None:
        self._local.on = self._before
        self._lock.release()
