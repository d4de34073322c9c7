"""Which operation of a chain made the first number that is not finite.

An operation that makes a NaN or an infinity is a suspect. Its mark passes to all that is computed
from its result. It becomes a finding when the mark reaches what matters: a loss, a parameter, a
gradient that an optimizer uses, a number that the program reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

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
from .lane import magnitudes_at_once
from .operation import Operation, describe, has_numbers, is_there, storage_key
from .place import Origin, Place
from .statistics import Statistics


@dataclass(eq=False, slots=True)
class Result:
    tensor: Tensor | None
    key: int
    shape: torch.Size | None
    """None if the tensor was given other memory, or only where it arrives matters."""
    dtype: torch.dtype
    covers: bool
    weak: StorageWeakRef | None
    """None if its number matters only where it arrives, or is finite for certain."""
    version: int


@dataclass(eq=False, slots=True)
class Record:
    """An operation whose results have not been looked at, or the arrival of tensors somewhere."""

    number: int
    step: int
    operation: Operation
    phase: str
    place: Place
    module: str
    node: str
    origin: Origin | None
    results: list[Result]
    operands: list[tuple[str, Any]] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    keys: list[tuple[str, int]] = field(default_factory=list)
    given_infinity: bool = False
    unwritten: Place | None = None
    arrival: str = ""
    readable: list[tuple[str, Any]] | None = None
    bad: list[tuple[str, str, int]] = field(default_factory=list)
    suspects: dict[bool, Finding] = field(default_factory=dict)


class Judge:
    """Takes records in the order of the operations."""

    def __init__(self, statistics: Statistics | None) -> None:
        self.findings: list[Finding] = []
        self.statistics = statistics
        self.suspects: list[Finding] = []
        self.scaler_seen = False
        # Marks by storage: the weak reference keeps the key from being used again.
        self.marks: dict[int, tuple[StorageWeakRef, Finding | None]] = {}

    def resolve(self, record: Record, magnitudes: list[float]) -> None:
        if self.statistics is not None and not record.arrival:
            self.statistics.add(record.step, record.operation.name, record.place, record.module,
                                record.phase, max(magnitudes, default=0.0))  # fmt: skip
        for i, magnitude in enumerate(magnitudes):
            result = record.results[i]
            if record.arrival:
                if not math.isfinite(magnitude):
                    self._arrive(record, result, math.isnan(magnitude))
            elif math.isfinite(magnitude):
                if self.marks and result.covers:
                    self.marks.pop(result.key, None)
            else:
                self._judge(record, i, math.isnan(magnitude))

    def _judge(self, record: Record, index: int, nan: bool) -> None:
        result = record.results[index]
        tensor = result.tensor
        if tensor is not None:
            if version_of(tensor) != result.version or not is_there(tensor):
                tensor = None
        if record.readable is None:  # once for all results of a list
            record.readable = self._readable(record)
            record.bad = self._bad_operands(record)
        operands = record.readable
        bad = record.bad + self._marked_operands(record)
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
        if made and mark is None:  # one for all results of a list
            mark = record.suspects.get(nan)
            if mark is None:
                mark = self._suspect(record, tensor, result, nan, element, operands)
                record.suspects[nan] = mark
        elif not made:
            if mark is None and nan and any(b == NAN for _, b, _ in bad):
                mark = self._given(record, bad)
        assert result.weak is not None
        self.marks[result.key] = (result.weak, mark)
        if len(self.marks) % 1024 == 0:
            self._sweep()
        if mark is not None and record.phase == "backward":
            mark.in_backward = True

    def _readable(self, record: Record) -> list[tuple[str, Any]]:
        """The operands that are what they were."""
        versions = iter(record.versions)
        kept = []
        for name, value in record.operands:
            if isinstance(value, Tensor):
                if version_of(value) != next(versions) or not is_there(value):
                    continue
            kept.append((name, value))
        return kept

    def _bad_operands(self, record: Record) -> list[tuple[str, str, int]]:
        """Name, fault and storage of the readable operands that are not finite."""
        bad, keys = [], dict(record.keys)
        tensors = [(n, v) for n, v in record.readable or [] if isinstance(v, Tensor)]
        for name, value in tensors:
            if has_numbers(value):
                magnitude = magnitudes_at_once([value])[0]
                if not math.isfinite(magnitude):
                    fault = NAN if math.isnan(magnitude) else INFINITY
                    bad.append((name, fault, keys[name]))
        read = {name for name, _ in tensors}
        record.keys = [(name, key) for name, key in record.keys if name not in read]
        return bad

    def _marked_operands(self, record: Record) -> list[tuple[str, str, int]]:
        """Those that cannot be read, and hold what was not finite."""
        return [(name, NAN, key) for name, key in record.keys if key in self.marks]

    def _earliest(self, bad: list[tuple[str, str, int]]) -> Finding | None:
        found = [self.marks[key][1] for _, _, key in bad if key in self.marks]
        marks = [mark for mark in found if mark is not None]
        return min(marks, key=lambda mark: mark.number) if marks else None

    def _suspect(  # type: ignore[no-untyped-def]
        self, record: Record, tensor, result: Result, nan: bool, element, operands
    ) -> Finding:
        fault = NAN if nan else INFINITY
        unread = _unread(record)
        spelled = ", ".join([*unread, *_spell(record, operands)])
        statement = f"{record.operation.name}({spelled}) -> "
        finding = Finding(
            fault, record.operation.name, statement + _shape(result), record.number, record.step,
            record.phase, record.place, record.module, record.node, record.origin,
            found="nan" if nan else "inf",
        )  # fmt: skip
        if tensor is not None and element is not None:
            finding.element = str(element) if element else ""
            value = tensor[tuple(element)].item()
            finding.found = "nan" if nan else str(value)
        shape = None if tensor is None else tensor.shape
        finding.readings, numbers = read_operands(record.operation, operands, element, shape)
        if unread:
            text = "overwritten or let go before being read"
            finding.readings.append(Reading(", ".join(unread), text))
            numbers = []
        if record.unwritten is not None:
            finding.fault = UNWRITTEN
            finding.readings.append(Reading("memory", f"allocated at {record.unwritten}"))
            finding.cause = _native.fault_cause(UNWRITTEN, record.operation.house)
        else:
            like = torch.empty(0, dtype=result.dtype)
            finding.cause = cause_of(fault, record.operation, like, record.node, numbers)
        self.suspects.append(finding)
        return finding

    def _given(self, record: Record, bad: list[tuple[str, str, int]]) -> Finding:
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
                self.marks[key] = (weak_of(value), finding)
        self.suspects.append(finding)
        return finding

    # Arrivals.

    def _arrive(self, record: Record, result: Result, nan: bool) -> None:
        mark = self.marks.get(result.key)
        suspect = mark[1] if mark is not None else None
        if record.arrival == "cast":
            if not nan:  # the least or largest integer, as for positions far away: no surprise
                return
            if mark is None or suspect is None:
                suspect = Finding(
                    CAST, record.operation.name, record.operation.name, record.number, record.step,
                    record.phase, record.place, record.module, found="nan",
                    cause=_native.fault_cause(CAST, "cast"),
                )  # fmt: skip
                self.suspects.append(suspect)
            self.confirm(suspect, "an integer, which shows nothing of it", record.place)
            return
        if suspect is None:
            if not nan:
                return
            suspect = Finding(
                NAN, "input", record.arrival, record.number, record.step, record.phase,
                record.place, record.module, found="nan",
                cause=_native.fault_cause(NAN, "constant"),
            )  # fmt: skip
            self.suspects.append(suspect)
        if self.scaler_seen and suspect.in_backward and not record.arrival.startswith("parameter"):
            return
        self.confirm(suspect, record.arrival, record.place)

    def confirm(self, suspect: Finding, reached: str, place: Place | None) -> None:
        if not suspect.reached:
            suspect.reached, suspect.reached_place = reached, place
            self.findings.append(suspect)
            self.findings.sort(key=lambda finding: finding.number)

    def _sweep(self) -> None:
        if len(self.marks) > 4096:
            for key in [k for k, v in self.marks.items() if v[0].expired()]:
                del self.marks[key]

    def put_aside(self) -> list[Finding]:
        return [suspect for suspect in self.suspects if not suspect.reached]


def weak_of(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def version_of(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _shape(result: Result) -> str:
    shape = "" if result.shape is None else str(list(result.shape))
    return f"{str(result.dtype).removeprefix('torch.')}{shape}"


def _unread(record: Record) -> list[str]:
    """Names of the operands whose content is not known any more."""
    names = [name for name, _ in record.keys]
    return names if len(names) <= 3 else [f"{len(names)} operands"]


def _spell(record: Record, operands: list[tuple[str, Any]]) -> list[str]:
    return [
        f"{name} {describe(v)}" if isinstance(v, Tensor) else f"{name}={v}"
        for name, v in operands
        if v is not None and not isinstance(v, bool)
    ]
