"""What is known about the segmentations of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _arrays, _native
from .._errors import UsageError


@dataclass(frozen=True, slots=True)
class Constraints:
    """Restricts the segmentations of a batch; a segmentation must fulfil all given constraints.

    Entries after the end of a row are not read. The arrays are on the CPU, and may be lists.

    Attributes:
        allowed: (B, T, C) booleans, whether frame t may have label c.
        transitions: (C, C) booleans [from, to], whether a label may follow another.
        min_duration: (C,) integers, the fewest frames of a segment.
        max_duration: (C,) integers, the most frames of a segment.
        labels: (B, T) integers, the known label of a frame; negative if it is unknown.
        boundaries: (B, T) integers: 1 if a segment starts at the frame, 0 if not, -1 if unknown.
    """

    allowed: Any = None
    transitions: Any = None
    min_duration: Any = None
    max_duration: Any = None
    labels: Any = None
    boundaries: Any = None


def _table(name: str, values: Any, dtype: type, *, kinds: str) -> np.ndarray | None:
    if values is None:
        return None
    try:
        array = np.asarray(_arrays.readable(name, values))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} cannot be read as an array on the CPU: {error}") from error
    if array.size > 0 and array.dtype.kind not in kinds:
        raise UsageError(f"{name} holds {array.dtype} numbers, expected {np.dtype(dtype).name}")
    if array.dtype.kind == "b":
        return array.view(np.uint8)
    if array.size > 0 and dtype is not np.float64:
        limits = np.iinfo(dtype)
        if array.min() < limits.min or array.max() > limits.max:
            raise UsageError(f"{name} holds numbers from {array.min()} to {array.max()}")
    return array.astype(dtype, copy=False)


def native_tail(tail: Any) -> np.ndarray | None:
    return _table("tail", tail, np.float64, kinds="fiu")


def native_scope(constraints: Constraints | None, tail: Any) -> _native.Scope | None:
    """What the engine takes for both; None if there is neither."""
    if constraints is None and tail is None:
        return None
    c = Constraints() if constraints is None else constraints
    if not isinstance(c, Constraints):
        raise UsageError(f"constraints is of type {type(c).__name__}, expected Constraints")
    return _native.Scope(
        _table("allowed", c.allowed, np.uint8, kinds="biu"),
        _table("transitions", c.transitions, np.uint8, kinds="biu"),
        _table("min_duration", c.min_duration, np.int32, kinds="iu"),
        _table("max_duration", c.max_duration, np.int32, kinds="iu"),
        _table("labels", c.labels, np.int32, kinds="iu"),
        _table("boundaries", c.boundaries, np.int8, kinds="iu"),
        native_tail(tail),
    )


def whole_scope(constraints: Constraints | None, tail: Any) -> _native.Scope:
    """As `native_scope`, but one that allows everything if there is neither."""
    scope = native_scope(constraints, tail)
    return _native.Scope(*[None] * 7) if scope is None else scope
