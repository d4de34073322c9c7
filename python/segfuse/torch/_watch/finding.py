"""What is wrong with a number: which operation made it, out of what, and how it looks in words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ... import _native
from .operation import Operation, describe, gradient_of, has_numbers, our_dtype
from .place import Origin, Place

NAN, INFINITY, CAST, UNWRITTEN = "NaN", "infinity", "lost in a cast", "unwritten memory"


def is_bad(tensor: Tensor, nan: bool) -> Tensor:
    return torch.isnan(tensor) if nan else ~torch.isfinite(tensor)


def spell(value: Any) -> str:
    if isinstance(value, complex):
        return f"{value:.6g}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


@dataclass(eq=False, slots=True)
class Reading:
    """What the operation read: its element behind the result's, or what is in it."""

    name: str
    text: str


@dataclass(eq=False, slots=True)
class Finding:
    """The first operation of a chain: what it made reached what matters, or not yet."""

    fault: str
    operation: str
    statement: str
    number: int
    step: int
    phase: str
    place: Place
    module: str
    node: str = ""
    origin: Origin | None = None
    element: str = ""
    found: str = ""
    readings: list[Reading] = field(default_factory=list)
    cause: str = ""
    reached: str = ""
    reached_place: Place | None = None
    in_backward: bool = False
    in_output: bool = False

    def sentence(self) -> str:
        if self.fault == CAST:
            return f"{self.operation} made an integer of {self.found}{self._at()}"
        if self.operation == "input":
            return f"{self.statement} holds {self.found}{self._at()}"
        if self.fault == UNWRITTEN:
            return f"{self.operation} read memory that nothing had written"
        return f"{self.operation} gave {self.found}{self._at()}"

    def _at(self) -> str:
        return f" at {self.element}" if self.element else ""

    def rows(self) -> list[tuple[str, str]]:
        rows = [
            ("operation", f"{self.statement} (step {self.step}, number {self.number} of the run)"),
            ("phase", self.phase + (f", {self.node}" if self.node else "")),
        ]
        rows += self.place.rows()
        module = self.module
        if self.origin is not None:
            rows.append(("of", f"{self.origin.name}, {_where(self.origin.place)}"))
            module = module or self.origin.module
        if module:
            rows.append(("module", module))
        if self.element:
            rows.append(("element", self.element))
        rows += [("reads", f"{reading.name} = {reading.text}") for reading in self.readings]
        if self.cause:
            rows.append(("cause", self.cause))
        if self.reached:
            at = f" ({self.reached_place})" if self.reached_place is not None else ""
            rows.append(("reached", self.reached + at))
        return rows

    def text(self) -> str:
        lines = [f"{self.fault}: {self.sentence()}"]
        lines += [f"  {name:<10}{value}" for name, value in self.rows()]
        return "\n".join(lines) + "\n"

    def as_json(self) -> dict[str, Any]:
        return {
            "fault": self.fault,
            "operation": self.operation,
            "sentence": self.sentence(),
            "statement": self.statement,
            "number": self.number,
            "step": self.step,
            "phase": self.phase,
            "line": _file_line(self.place),
            "module": self.module or ("" if self.origin is None else self.origin.module),
            "node": self.node,
            "forward_operation": "" if self.origin is None else self.origin.name,
            "forward_line": "" if self.origin is None else _file_line(self.origin.place),
            "element": self.element,
            "found": self.found,
            "reads": [{"name": r.name, "value": r.text} for r in self.readings],
            "cause": self.cause,
            "reached": self.reached,
        }


def _where(place: Place) -> str:
    return dict(place.rows())["line"]


def _file_line(place: Place) -> str:
    return "" if place.line is None else f"{place.line.file}:{place.line.number}"


def element_of(
    result: Tensor, nan: bool, operands: list[tuple[str, Any]], pointwise: bool
) -> list[int] | None:
    """Where the result is bad, and no operand is if the operation is pointwise; None: nowhere."""
    bad = is_bad(result, nan)
    if pointwise:
        for _, operand in operands:
            if not isinstance(operand, Tensor) or not has_numbers(operand):
                continue
            try:
                bad = bad & ~is_bad(operand.to(bad.device), nan).broadcast_to(bad.shape)
            except RuntimeError:  # the shapes have nothing to do with each other
                return None
    flat = bad.reshape(-1)
    position = int(torch.argmax(flat.to(torch.uint8)).item())
    if not bool(flat[position].item()):
        return None
    if result.dim() == 0:
        return []
    return [int(i) for i in torch.unravel_index(torch.tensor(position), result.shape)]


def value_at(tensor: Tensor, element: list[int], shape: torch.Size) -> float | None:
    """The operand's element behind the result's, if they are of one shape."""
    try:
        value = tensor.broadcast_to(shape)[tuple(element)].item()
    except RuntimeError:
        return None
    return abs(value) if isinstance(value, complex) else float(value)


def summary_of(tensor: Tensor) -> str:
    if tensor.numel() == 0:
        return "nothing"
    wide = torch.view_as_real(tensor) if tensor.dtype.is_complex else tensor
    low, high = (float(x.item()) for x in torch.aminmax(wide.detach().float().reshape(-1)))
    if math.isnan(low):
        return "holds NaN"
    return f"{spell(low)}" if low == high else f"{spell(low)} to {spell(high)}"


def read_operands(
    operation: Operation, operands: list[tuple[str, Any]], element: list[int] | None, shape: Any
) -> tuple[list[Reading], list[float]]:
    """In words, and the numbers at the element if all are known."""
    readings, numbers = [], []
    for name, operand in operands:
        if isinstance(operand, bool) or operand is None:
            continue
        if isinstance(operand, (int, float)):
            if name in ("dim", "correction", "reduction", "dtype", "layout"):
                continue
            readings.append(Reading(name, spell(float(operand))))
            numbers.append(float(operand))
        elif isinstance(operand, str):
            readings.append(Reading(name, operand))
        elif isinstance(operand, Tensor):
            value = None
            if operation.pointwise and element is not None:
                value = value_at(operand, element, shape)
            if value is None:
                readings.append(Reading(f"{name} {describe(operand)}", summary_of(operand)))
            else:
                readings.append(Reading(f"{name} {describe(operand)}", spell(value)))
                numbers.append(value)
    known = operation.pointwise and len(numbers) == len(readings)
    return readings, numbers if known else []


def cause_of(
    fault: str, operation: Operation, result: Tensor, node: str, numbers: list[float]
) -> str:
    if fault in (CAST, UNWRITTEN):
        return _native.fault_cause(fault, operation.house)
    gradient = gradient_of(node) if node else None
    return _native.numerics_cause(
        gradient or operation.house,
        our_dtype(result.dtype),
        fault == NAN,
        gradient is not None,
        numbers,
    )
