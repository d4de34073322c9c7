"""Largest magnitudes by step: of results, gradients and parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .lane import magnitudes_at_once
from .operation import has_numbers
from .place import Place


@dataclass(slots=True)
class _Largest:
    value: float = 0.0
    of: str = ""

    def raise_to(self, value: float, of: str) -> None:
        if math.isnan(self.value):
            return
        if math.isnan(value) or value > self.value:
            self.value, self.of = value, of


class Statistics:
    """A row for each step of an optimizer."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, _Largest]] = {}

    def _row(self, step: int) -> dict[str, _Largest]:
        if step not in self.steps:
            kinds = ("forward", "backward", "optimizer", "gradient", "parameter")
            self.steps[step] = {kind: _Largest() for kind in kinds}
        return self.steps[step]

    def add(
        self, step: int, name: str, place: Place, module: str, phase: str, magnitude: float
    ) -> None:
        self._row(step)[phase].raise_to(magnitude, f"{name}, {module or place}")

    def _tensors(self, step: int, kind: str, names: list[str], tensors: list[Tensor]) -> None:
        row = self._row(step)[kind]
        kept = [(name, t) for name, t in zip(names, tensors, strict=True) if has_numbers(t)]
        values = magnitudes_at_once([tensor for _, tensor in kept])
        for (name, _), value in zip(kept, values, strict=True):
            row.raise_to(value, name)

    def gradients(self, step: int, names: list[str], tensors: list[Tensor]) -> None:
        self._tensors(step, "gradient", [f"parameter {name}" for name in names], tensors)

    def parameters(self, step: int, names: list[str], tensors: list[Tensor]) -> None:
        self._tensors(step, "parameter", names, tensors)

    def text(self) -> str:
        lines = ["largest magnitudes by step"]
        for step, row in self.steps.items():
            for kind, largest in row.items():
                if largest.of:
                    lines.append(f"  {step:>6}  {kind:<9}  {largest.value:<11.5g}  {largest.of}")
        return "\n".join(lines) + "\n"

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {"step": step, **{k: {"value": x.value, "of": x.of} for k, x in row.items()}}
            for step, row in self.steps.items()
        ]
