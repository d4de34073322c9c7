"""The first operation of a PyTorch program whose result is not finite while its operands are.

Each result is reduced to its largest magnitude, on its device. On the CPU that is looked at at
once. On a GPU the magnitudes lie in a buffer that is copied to the host now and then, and looked
at when the copy has arrived; nothing waits before an optimizer's step or the end. Operands are
kept until then, as far as they fit into a budget.

An operation that makes a NaN or an infinity is a suspect. What its result goes into bears its mark.
It becomes a finding when the mark reaches what matters: a loss, a parameter, a gradient that an
optimizer uses, a number that the program reads.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from ... import _native
from .finding import (
    CAST,
    INFINITY,
    NAN,
    UNWRITTEN,
    Finding,
    Reading,
    cause_of,
    element_of,
    read_operands,
    summary_of,
)
from .lane import Lanes, Slot, magnitudes_at_once
from .operation import (
    Operation,
    arguments_of,
    covers_storage,
    describe,
    has_numbers,
    operation_of,
    storage_key,
    tensors_in,
    written_of,
)
from .place import Modules, Nodes, Origin, Place, here
from .statistics import Statistics

_SMALL = 1 << 16
_READS_VALUES = ("_local_scalar_dense", "item")
_UNSCALES = "_amp_foreach_non_finite_check_and_unscale_"
_GIVEN = None  # the mark of infinities that the program gave itself


@dataclass(eq=False, slots=True)
class _Result:
    tensor: Tensor | None
    key: int
    shape: torch.Size
    dtype: torch.dtype
    covers: bool
    weak: StorageWeakRef
    version: int


@dataclass(eq=False, slots=True)
class _Record:
    """An operation whose results have not been looked at, or the arrival of tensors somewhere."""

    number: int
    step: int
    operation: Operation
    phase: str
    place: Place
    module: str
    node: str
    origin: Origin | None
    results: list[_Result]
    slots: list[Slot] = field(default_factory=list)
    operands: list[tuple[str, Any]] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    keys: list[tuple[str, int]] = field(default_factory=list)
    given_infinity: bool = False
    unwritten: Place | None = None
    kept_bytes: int = 0
    arrival: str = ""
    guard: Slot | None = None


class Numerics(TorchDispatchMode):
    """The mode; also `segfuse.torch.check_numerics`'s state."""

    def __init__(self, statistics: bool = False, keep_bytes: int = 256 << 20) -> None:
        super().__init__()
        self.findings: list[Finding] = []
        self.operations = 0
        self.step = 1
        self.devices: set[str] = set()
        self.statistics = Statistics() if statistics else None
        self._modules = Modules()
        self._modules.on_result = self._on_model_output
        self._nodes = Nodes()
        self._lock = threading.RLock()
        self._inside = threading.local()
        self._pid = os.getpid()
        self._number = 0
        self._lanes = Lanes()
        self._queue: deque[_Record] = deque()
        self._kept = 0
        self._keep_bytes = keep_bytes
        # Marks by storage: the weak reference keeps the key from being used again.
        self._marks: dict[int, tuple[StorageWeakRef, Finding | None]] = {}
        self._unwritten: dict[int, tuple[StorageWeakRef, Place]] = {}
        self._suspects: list[Finding] = []
        self._scaler_seen = False
        self._backward_seen = False
        self._phase = "forward"
        self._hooks: list[Any] = []
        self._backward: Any = None
        self.on_step = lambda: None

    # Start and end.

    def start(self) -> None:
        self._modules.start()
        self._hooks = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._watched_backward
        self.__enter__()

    def stop(self) -> None:
        self.__exit__(None, None, None)
        self._modules.stop()
        for hook in self._hooks:
            hook.remove()
        torch.autograd.backward = self._backward
        self.finish()

    def finish(self) -> None:
        """Looks at all that is left, and judges the suspects that reached no step any more."""
        with self._lock, _Inside(self._inside):
            self._flush()
            for suspect in self._suspects:
                if suspect.in_backward and not self._scaler_seen:
                    self._confirm(suspect, "a gradient", None)
                elif suspect.in_output and not self._backward_seen:
                    self._confirm(suspect, "the model's output", None)

    # Operations.

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if getattr(self._inside, "on", False) or os.getpid() != self._pid:
            return func(*args, **kwargs)
        operation = operation_of(func)
        if operation.is_view:
            return func(*args, **kwargs)
        with self._lock, _Inside(self._inside):
            place = here()
            before = self._before(operation, args, kwargs)
        result = func(*args, **kwargs)
        with self._lock, _Inside(self._inside):
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
                self._unwritten[storage_key(tensor)] = (_weak(tensor), place)
            self._sweep()
            return
        results = list(written_of(operation, args, kwargs)) if operation.written else []
        for tensor in tensors_in(result):
            if all(tensor is not other for other in results):
                results.append(tensor)
        node = torch._C._current_autograd_node()
        phase = self._phase if node is None else "backward"
        if node is None and torch.is_grad_enabled():
            self._nodes.note(operation.name, place, self._modules.path())
        if operation.name == _UNSCALES:
            self._scaler_seen = True
        casts = operation.house == "cast" and not any(map(has_numbers, results))
        reads = operation.name in _READS_VALUES
        looked_at = [t for t in results if has_numbers(t)]
        if not looked_at and not casts and not reads:
            return
        self.operations += 1
        self._number += 1
        record = _Record(
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
                _Result(tensor, key, tensor.shape, tensor.dtype, covers_storage(tensor),
                        _weak(tensor), _version(tensor))
            )  # fmt: skip
            if self._unwritten and not record.arrival:
                self._unwritten.pop(key, None)
        self._take(record, looked_at)

    def _add_operands(
        self,
        record: _Record,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        before: dict[int, Tensor],
    ) -> None:
        operation = record.operation
        overwritten = {id(tensor) for tensor in written_of(operation, args, kwargs)}
        for name, value in arguments_of(operation, args, kwargs):
            if name == "out":
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
                unwritten = self._unwritten.get(storage_key(tensor)) if self._unwritten else None
                if unwritten is not None and id(tensor) not in overwritten:
                    record.unwritten = unwritten[1]
                elif unwritten is not None and operation.name.endswith("_"):
                    if operation.name not in ("copy_", "fill_", "zero_") and not operation.random:
                        record.unwritten = unwritten[1]
                if id(tensor) not in overwritten:
                    record.operands.append((label, tensor))
                    record.versions.append(_version(tensor))
                elif id(tensor) in before:
                    record.operands.append((label, before[id(tensor)]))
                    record.versions.append(_version(before[id(tensor)]))

    def _take(self, record: _Record, tensors: list[Tensor]) -> None:
        """Looks at the results at once, or puts the record into the queue."""
        for tensor in tensors:
            self.devices.add(tensor.device.type)
        if all(tensor.device.type != "cuda" for tensor in tensors) and not self._queue:
            magnitudes = magnitudes_at_once(tensors)
            self._resolve(record, magnitudes)
            return
        if any(t.device.type == "cuda" for t in tensors):
            if torch.cuda.is_current_stream_capturing():
                return
        record.slots = self._lanes.reduce(tensors)
        record.kept_bytes = sum(t.numel() * t.element_size() for t in tensors)
        self._kept += record.kept_bytes
        self._queue.append(record)
        if self._kept > self._keep_bytes:
            self._let_go()
        if len(self._queue) % 32 == 0:
            self._poll()

    def _let_go(self) -> None:
        """Forgets the operands of the oldest records, so that what is kept fits the budget."""
        self._poll()
        for record in self._queue:
            if self._kept <= self._keep_bytes:
                return
            self._kept -= record.kept_bytes
            record.kept_bytes = 0
            record.operands = [(n, v) for n, v in record.operands if not isinstance(v, Tensor)]
            record.versions = []
            for result in record.results:
                result.tensor = None

    def _poll(self) -> None:
        self._lanes.send()
        while self._queue and all(slot.arrived() for slot in self._queue[0].slots):
            self._resolve_front()

    def _flush(self) -> None:
        self._lanes.send()
        while self._queue:
            for slot in self._queue[0].slots:
                slot.wait()
            self._resolve_front()

    def _resolve_front(self) -> None:
        record = self._queue.popleft()
        self._kept -= record.kept_bytes
        if record.guard is not None and record.guard.value() > 0:
            return
        self._resolve(record, [slot.value() for slot in record.slots])

    # Judging.

    def _resolve(self, record: _Record, magnitudes: list[float]) -> None:
        if self.statistics is not None and not record.arrival:
            self.statistics.add(record.step, record.operation.name, record.place, record.module,
                                record.phase, max(magnitudes, default=0.0))  # fmt: skip
        for i, magnitude in enumerate(magnitudes):
            result = record.results[i]
            if record.arrival:
                if not math.isfinite(magnitude):
                    self._arrive(record, result, math.isnan(magnitude))
            elif math.isfinite(magnitude):
                if self._marks and result.covers:
                    self._marks.pop(result.key, None)
            else:
                self._judge(record, i, math.isnan(magnitude))

    def _judge(self, record: _Record, index: int, nan: bool) -> None:
        result = record.results[index]
        tensor = result.tensor
        if tensor is not None and _version(tensor) != result.version:
            tensor = None
        operands = self._readable(record)
        bad = self._bad_operands(record, operands)
        made, element = not any(b == NAN or not nan for _, b, _ in bad), None
        if record.given_infinity and not nan:
            made = False
        if tensor is not None:
            checked = record.operation.pointwise and bool(operands)
            element = element_of(tensor, nan, operands, checked and not made)
            if not made and checked and element is not None and not record.given_infinity:
                made = True
        mark: Finding | None
        # What is made of infinities belongs to their chain, unless the program gave them.
        mark = self._earliest(bad)
        if made and mark is None:
            mark = self._suspect(record, tensor, result, nan, element, operands)
        elif not made:
            if mark is None and nan and any(b == NAN for _, b, _ in bad):
                mark = self._given(record, bad)
        self._marks[result.key] = (result.weak, mark)
        if len(self._marks) % 1024 == 0:
            self._sweep()
        if mark is not None and record.phase == "backward":
            mark.in_backward = True

    def _readable(self, record: _Record) -> list[tuple[str, Any]]:
        """The operands that are what they were."""
        versions = iter(record.versions)
        kept = []
        for name, value in record.operands:
            if isinstance(value, Tensor):
                if _version(value) != next(versions):
                    continue
            kept.append((name, value))
        return kept

    def _bad_operands(
        self, record: _Record, operands: list[tuple[str, Any]]
    ) -> list[tuple[str, str, int]]:
        """Name, fault and storage of the operands that are not finite."""
        bad, seen, keys = [], set(), dict(record.keys)
        for name, value in operands:
            if isinstance(value, Tensor):
                seen.add(name)
                if has_numbers(value):
                    magnitude = magnitudes_at_once([value])[0]
                    if not math.isfinite(magnitude):
                        fault = NAN if math.isnan(magnitude) else INFINITY
                        bad.append((name, fault, keys[name]))
        for name, key in record.keys:
            if name not in seen and key in self._marks:
                bad.append((name, NAN, key))
        return bad

    def _earliest(self, bad: list[tuple[str, str, int]]) -> Finding | None:
        found = [self._marks[key][1] for _, _, key in bad if key in self._marks]
        marks = [mark for mark in found if mark is not None]
        return min(marks, key=lambda mark: mark.number) if marks else None

    def _suspect(  # type: ignore[no-untyped-def]
        self, record: _Record, tensor, result: _Result, nan: bool, element, operands
    ) -> Finding:
        fault = NAN if nan else INFINITY
        statement = f"{record.operation.name}({', '.join(_spell(record, operands))}) -> "
        finding = Finding(
            fault, record.operation.name, statement + _shape(result), record.number, record.step,
            record.phase, record.place, record.module, record.node, record.origin,
            found="nan" if nan else "inf",
        )  # fmt: skip
        numbers: list[float] = []
        if tensor is None:
            finding.readings = [Reading("operands", "overwritten or let go before they were read")]
        else:
            if element is not None:
                finding.element = str(element) if element else ""
                value = tensor[tuple(element)].item()
                finding.found = "nan" if nan else str(value)
            finding.readings, numbers = read_operands(
                record.operation, operands, element, result.shape
            )
        if record.unwritten is not None:
            finding.fault = UNWRITTEN
            finding.readings.append(Reading("memory", f"allocated at {record.unwritten}"))
            finding.cause = _native.fault_cause(UNWRITTEN, record.operation.house)
        else:
            like = torch.empty(0, dtype=result.dtype)
            finding.cause = cause_of(fault, record.operation, like, record.node, numbers)
        self._suspects.append(finding)
        return finding

    def _given(self, record: _Record, bad: list[tuple[str, str, int]]) -> Finding:
        """A NaN that no operation made."""
        name, _, key = next(entry for entry in bad if entry[1] == NAN)
        value = dict(record.operands).get(name)
        finding = Finding(
            NAN, "input", f"{name} of {record.operation.name}", record.number, record.step,
            record.phase, record.place, record.module, record.node, record.origin, found="nan",
            cause=_native.fault_cause(NAN, "constant"),
        )  # fmt: skip
        if record.unwritten is not None:
            finding.fault, finding.operation = UNWRITTEN, record.operation.name
            finding.readings.append(Reading("memory", f"allocated at {record.unwritten}"))
            finding.cause = _native.fault_cause(UNWRITTEN, record.operation.house)
        elif isinstance(value, Tensor):
            element = element_of(value, True, [], False)
            finding.element = str(element) if element else ""
            finding.readings = [Reading(f"{name} {describe(value)}", summary_of(value))]
            if storage_key(value) == key:
                self._marks[key] = (_weak(value), finding)
        self._suspects.append(finding)
        return finding

    # Arrivals.

    def _arrive(self, record: _Record, result: _Result, nan: bool) -> None:
        mark = self._marks.get(result.key)
        suspect = mark[1] if mark is not None else None
        if record.arrival == "cast":
            if mark is None or suspect is None:
                suspect = Finding(
                    CAST, record.operation.name, record.operation.name, record.number, record.step,
                    record.phase, record.place, record.module, found="nan" if nan else "inf",
                    cause=_native.fault_cause(CAST, "cast"),
                )  # fmt: skip
                self._suspects.append(suspect)
            self._confirm(suspect, "an integer, which shows nothing of it", record.place)
            return
        if suspect is None:
            if not nan:
                return
            suspect = Finding(
                NAN, "input", record.arrival, record.number, record.step, record.phase,
                record.place, record.module, found="nan",
                cause=_native.fault_cause(NAN, "constant"),
            )  # fmt: skip
            self._suspects.append(suspect)
        if self._scaler_seen and suspect.in_backward and not record.arrival.startswith("parameter"):
            return
        self._confirm(suspect, record.arrival, record.place)

    def _confirm(self, suspect: Finding, reached: str, place: Place | None) -> None:
        if not suspect.reached:
            suspect.reached, suspect.reached_place = reached, place
            self.findings.append(suspect)
            self.findings.sort(key=lambda finding: finding.number)

    def _expect(self, what: str, tensors: list[tuple[str, Tensor]], guard: Tensor | None) -> None:
        """Tensors that have to be finite have arrived where they matter."""
        kept = [(name, t) for name, t in tensors if type(t) is not None and has_numbers(t)]
        if not kept:
            return
        for name, tensor in kept:
            record = _Record(
                self._number, self.step, operation_of(torch.ops.aten.detach.default),
                "forward", here(), "", "", None, [], arrival=f"{what}{name}",
            )  # fmt: skip
            key = storage_key(tensor)
            if tensor.device.type != "cuda" and key not in self._marks and not self._queue:
                if what != "the loss":
                    continue  # no operation gave it anything bad
            record.results = [
                _Result(None, key, tensor.shape, tensor.dtype, False, _weak(tensor), 0)
            ]
            if guard is not None and tensor.device.type == "cuda":
                record.guard = self._lanes.reduce([guard])[0]
            elif guard is not None and guard.item() > 0:
                return
            self._take(record, [tensor])

    def _watched_backward(self, tensors, *args, **kwargs):  # type: ignore[no-untyped-def]
        self._backward_seen = True
        with self._lock, _Inside(self._inside):
            roots = [("", t.detach()) for t in tensors_in(tensors)]
            self._expect("the loss", roots, None)
        return self._backward(tensors, *args, **kwargs)

    def _named(self, optimizer: Any) -> list[tuple[str, Tensor]]:
        named = []
        for g, group in enumerate(optimizer.param_groups):
            names = group.get("param_names") or [f"{g}.{i}" for i in range(len(group["params"]))]
            named += list(zip(names, group["params"], strict=False))
        return named

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        with self._lock, _Inside(self._inside):
            guard = getattr(optimizer, "found_inf", None)
            grads = [
                (f" of parameter {name}", local)
                for name, p in self._named(optimizer)
                if p.grad is not None
                for local in tensors_in(p.grad)
            ]
            self._expect("the gradient", grads, guard)
            if self.statistics is not None:
                self.statistics.gradients(self.step, grads)
            self._phase = "optimizer"

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        with self._lock, _Inside(self._inside):
            self._phase = "forward"
            named = self._named(optimizer)
            self._expect("parameter ", [(n, t) for n, p in named for t in tensors_in(p.data)], None)
            self._expect("the optimizer's state of parameter ", [
                (f"{name} ({key})", local)
                for name, p in named
                for key, value in optimizer.state.get(p, {}).items()
                for local in tensors_in(value)
            ], None)  # fmt: skip
            if self.statistics is not None:
                self.statistics.parameters(self.step, named)
            self._flush()
            for suspect in self._suspects:
                suspect.in_backward = False  # the optimizer's gradients have been judged
            self.step += 1
        self.on_step()

    def _on_model_output(self, _module: Any, output: Any) -> None:
        if self._backward_seen or not (self._marks or self._queue):
            return
        with self._lock, _Inside(self._inside):
            self._flush()
            values = output.values() if isinstance(output, dict) else output
            for tensor in tensors_in(list(values) if isinstance(output, dict) else values):
                mark = self._marks.get(storage_key(tensor))
                if mark is not None and mark[1] is not None and has_numbers(tensor):
                    if not math.isfinite(magnitudes_at_once([tensor])[0]):
                        mark[1].in_output = True

    def _sweep(self) -> None:
        for table in (self._marks, self._unwritten):
            if len(table) > 4096:
                for key in [k for k, v in table.items() if v[0].expired()]:
                    del table[key]

    # The report.

    def put_aside(self) -> list[Finding]:
        return [suspect for suspect in self._suspects if not suspect.reached]


class _Inside:
    """Operations of our own are let through."""

    def __init__(self, local: threading.local) -> None:
        self._local = local

    def __enter__(self) -> None:
        self._before = getattr(self._local, "on", False)
        self._local.on = True

    def __exit__(self, *_: object) -> None:
        self._local.on = self._before


def _weak(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _shape(result: _Result) -> str:
    return f"{str(result.dtype).removeprefix('torch.')}{list(result.shape)}"


def _spell(record: _Record, operands: list[tuple[str, Any]]) -> list[str]:
    return [
        f"{name} {describe(v)}" if isinstance(v, Tensor) else f"{name}={v}"
        for name, v in operands
        if v is not None and not isinstance(v, bool)
    ]
