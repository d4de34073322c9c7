"""Gold segmentations on a CUDA device, without waiting for it."""

from __future__ import annotations

from typing import Any

from . import _native
from ._errors import UsageError


def packed_from_labels(
    kind: Any,
    labels: Any,
    lengths: Any,
    longest: int,
    classes: int,
    *,
    ignore: int,
    split: bool,
) -> tuple[tuple[Any, ...], Any]:
    """(row_pointer, start, duration, label) of the maximal runs, and the lengths of the rows.

    `kind` is the library of `labels`, (B, T) int32 or int64 on a device. The columns have room for
    B * T segments. A row with a label out of range or a run that is too long has no segment; the
    engine's `check` names it.
    """
    dtype = str(labels.dtype).rpartition(".")[2]
    if dtype not in ("int32", "int64"):
        raise UsageError(f"labels is {dtype}, expected int32 or int64")
    batch, frames = labels.shape
    pointer = kind.empty((batch + 1,), "int64", labels)
    start, duration, label = (kind.empty((batch * frames,), "int32", labels) for _ in range(3))
    found = kind.empty((batch,), "int64", labels) if lengths is None else None
    stream = kind.stream(labels)[1]
    columns = (pointer, start, duration, label)
    rules = (longest, classes, ignore, split)
    _native.segments_on_device(labels, lengths, *rules, stream, *columns, found)
    return columns, found if lengths is None else lengths


def columns_on(kind: Any, columns: tuple[Any, ...], like: Any) -> tuple[Any, ...]:
    """The four arrays of segmentations as the engine of the device of `like` reads them."""
    dtypes = ("int64", "int32", "int32", "int32")
    return tuple(kind.moved(x, like, dtype) for x, dtype in zip(columns, dtypes, strict=True))
