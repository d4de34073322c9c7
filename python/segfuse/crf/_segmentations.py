"""Packed segmentations of a batch, and lists of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _arrays, _native
from .._errors import UsageError
from .._numbers import whole

IGNORE = -100
"""The label that marks padding, as in PyTorch's losses."""


def _segments_of(index: int, row: Any) -> list[tuple[int, ...]]:
    """The segments of the row with that index, as tuples of three numbers."""
    if not isinstance(row, Iterable):
        raise UsageError(
            f"row {index} is a {type(row).__name__}, expected a list of (start, duration, label)"
        )
    segments = []
    for segment in row:
        if not isinstance(segment, Iterable):
            raise UsageError(
                f"a segment of batch {index} is a {type(segment).__name__}, expected three "
                "numbers: start, duration, label; labels per frame are passed as an array"
            )
        segments.append(tuple(segment))
        if len(segments[-1]) != 3:
            raise UsageError(
                f"a segment of batch {index} has {len(segments[-1])} numbers, expected three: "
                "start, duration, label"
            )
    return segments


class Segmentations:
    """Segmentations of B rows. Row b has the segments from index ``row_pointer[b]`` up to, but not
    including, ``row_pointer[b + 1]``.

    A segment is (start, duration, label): its first frame, its number of frames and its class.
    Iteration, indexing and ``len`` refer to rows; a row is a list of (start, duration, label).

    Attributes:
        row_pointer: (B + 1,) int64, not decreasing, from 0 to the number of segments n.
        start: (n,) int32, the first frame of each segment.
        duration: (n,) int32, its number of frames, at least 1.
        label: (n,) int32, its class.
        score: (B,) float64, the score of the segmentation of each row, or None.
        frames: T of the batch, or None if it is unknown.

    The arrays belong to the library, and are on the device, of the inputs.
    """

    __slots__ = ("row_pointer", "start", "duration", "label", "score", "frames")

    def __init__(
        self,
        row_pointer: Any,
        start: Any,
        duration: Any,
        label: Any,
        *,
        score: Any = None,
        frames: int | None = None,
    ) -> None:
        self.row_pointer = row_pointer
        self.start = start
        self.duration = duration
        self.label = label
        self.score = score
        self.frames = frames

    @classmethod
    def from_rows(cls, rows: Iterable[Iterable[Sequence[int]]]) -> Segmentations:
        """Makes segmentations, as NumPy arrays, of a list of (start, duration, label) for each row.

        Raises:
            UsageError: a segment is not three integers.
        """
        pointer, segments = [0], []
        for index, row in enumerate(rows):
            segments += _segments_of(index, row)
            pointer.append(len(segments))
        table = np.asarray(_arrays.integers("segments", segments)).reshape(-1, 3)
        return cls(np.array(pointer, dtype=np.int64), table[:, 0], table[:, 1], table[:, 2])

    @classmethod
    def from_labels(
        cls,
        labels: Any,
        lengths: Any = None,
        *,
        max_duration: int,
        num_classes: int,
        ignore: int = IGNORE,
        long_runs: str = "error",
    ) -> Segmentations:
        """Makes a segment of each maximal run of equal labels.

        Args:
            labels: (B, T) int32 or int64, a class for each frame.
            lengths: (B,) frames of each row; without it, a row ends at its first ``ignore``.
            max_duration: K, the length of the longest segment in frames.
            num_classes: C; labels are in [0, C).
            ignore: the label of padding.
            long_runs: what to do with a run longer than K: ``"error"``, or ``"split"``, which
                divides it into as few segments as possible, whose lengths differ by at most one.
                With K = 1, every frame is a segment.

        Raises:
            DataError: a label is out of range, or a run is longer than K.
            UsageError: a shape or dtype is wrong, or a length is outside [0, T].
        """
        native = native_from_labels(
            labels, lengths, max_duration, num_classes, ignore=ignore, long_runs=long_runs
        )
        return from_arrays(native.arrays(), like=labels, frames=int(np.shape(labels)[1]))

    def __len__(self) -> int:
        return len(self.row_pointer) - 1

    @property
    def num_segments(self) -> int:
        """The number of segments of all rows together."""
        return len(self.start)

    def __getitem__(self, row: int) -> list[tuple[int, int, int]]:
        rows = len(self)
        if not -rows <= row < rows:
            raise IndexError(f"row {row} of {rows}")
        row %= rows
        part = slice(int(self.row_pointer[row]), int(self.row_pointer[row + 1]))
        columns = (self.start[part], self.duration[part], self.label[part])
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        return (self[row] for row in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Segmentations):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Segmentations({len(self)} rows, {self.num_segments} segments)"

    def to_labels(self, frames: int | None = None, *, ignore: int = IGNORE) -> Any:
        """The label of each frame.

        Args:
            frames: T; by default T of the batch if it is known, otherwise the end of the last
                segment.
            ignore: the label of frames that no segment covers.

        Returns:
            (B, T) int64 of the same library, and on the same device, as the segments.

        Raises:
            UsageError: a segment is not inside [0, T).
        """
        if frames is None:
            frames = self.frames
        kind = _arrays.kind_of(self.start)
        packed = self._packed()
        if frames is None:
            _, start, duration, _ = packed.arrays()
            frames = int((start + duration).max(initial=0))
        labels = np.empty((len(self), whole("frames", frames, 0)), np.int64)
        packed.write_labels(labels, whole("ignore", ignore))
        return kind.moved(labels, self.start) if kind.on_cuda(self.start) else kind.result(labels)

    def _packed(self) -> _native.Segments:
        columns = (self.row_pointer, self.start, self.duration, self.label)
        names = ("row_pointer", "start", "duration", "label")
        if _arrays.kind_of(self.start).on_cuda(self.start):
            columns = tuple(column.cpu() for column in columns)
        return _native.Segments(*map(_arrays.integers, names, columns))


@dataclass(frozen=True, slots=True)
class SegmentationLists:
    """Several segmentations of each row; ``lists[b]`` has those of row b, as `Segmentations`.

    Attributes:
        list_pointer: (B + 1,) int64, NumPy; row b has the segmentations from index
            ``list_pointer[b]`` up to, but not including, ``list_pointer[b + 1]``.
        segmentations: all segmentations, one after another, with their scores.
    """

    list_pointer: np.ndarray
    segmentations: Segmentations

    def __len__(self) -> int:
        return len(self.list_pointer) - 1

    def __iter__(self) -> Iterator[Segmentations]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, row: int) -> Segmentations:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        first, last = (int(self.list_pointer[i]) for i in (row, row + 1))
        every = self.segmentations
        pointer = every.row_pointer[first : last + 1]
        part = slice(int(pointer[0]), int(pointer[-1]))
        columns = (every.start[part], every.duration[part], every.label[part])
        score = every.score[first:last]
        return Segmentations(pointer - pointer[0], *columns, score=score, frames=every.frames)


def from_arrays(arrays: tuple[Any, ...], *, like: Any, **more: Any) -> Segmentations:
    """From the engine's four NumPy arrays, in the library of `like`."""
    result = _arrays.kind_of(like).result
    return Segmentations(*map(result, arrays), **more)


def native_from_labels(
    labels: Any,
    lengths: Any,
    max_duration: int,
    num_classes: int,
    *,
    ignore: int,
    long_runs: str,
) -> _native.Segments:
    split = split_of(long_runs)
    if labels is None:
        raise UsageError("labels is None, expected (B, T) integers")
    return _native.Segments.from_labels(
        _arrays.integers("labels", labels),
        _arrays.integers("lengths", lengths),
        whole("max_duration", max_duration),
        whole("num_classes", num_classes),
        whole("ignore", ignore),
        split,
    )


def split_of(long_runs: str) -> bool:
    if long_runs not in ("error", "split"):
        raise UsageError(f'long_runs is {long_runs!r}, expected "error" or "split"')
    return long_runs == "split"


def native_of(segments: Any) -> _native.Segments:
    """Segmentations, or rows of (start, duration, label), as the engine takes them."""
    if not isinstance(segments, Segmentations):
        segments = Segmentations.from_rows(segments)
    return segments._packed()
