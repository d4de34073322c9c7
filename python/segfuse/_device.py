"""Gold segmentations from labels on a device, in PyTorch, without waiting for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


def packed_from_labels(
    labels: Tensor, lengths: Tensor | None, longest: int, *, ignore: int, split: bool
) -> tuple[tuple[Tensor, ...], Tensor]:
    """(row_pointer, start, duration, label) of the maximal runs, and the lengths of the rows.

    The columns have room for B * T segments. A label out of range or a run that is too long (unless
    split as `Segmentations.from_labels` does) is left to the engine to find.
    """
    import torch

    if labels.dtype not in (torch.int32, torch.int64):
        raise UsageError(f"labels is {str(labels.dtype)[6:]}, expected int32 or int64")
    batch, frames = labels.shape
    time = torch.arange(frames, device=labels.device).expand(batch, -1)
    if lengths is None:
        lengths = labels.eq(ignore).cumsum(1).eq(0).sum(1)
    inside = time < lengths[:, None]
    first = inside.clone()
    first[:, 1:] &= labels[:, 1:] != labels[:, :-1]
    begin = torch.where(first, time, -1).cummax(1).values
    if split:
        first |= inside & _splits(
            time - begin, _until_next(first, time, lengths) + time - begin, longest
        )
    frames_of = _until_next(first, time, lengths)
    pointer = torch.nn.functional.pad(first.sum(1).cumsum(0), (1, 0))
    # Compaction without knowing the number of segments: frames that start none go to the last
    # place.
    place = torch.where(first.flatten(), first.flatten().cumsum(0) - 1, batch * frames)
    columns = (
        labels.new_zeros(batch * frames + 1, dtype=torch.int32).scatter_(
            0, place, column.flatten().int()
        )[:-1]
        for column in (time, frames_of, labels)
    )
    return (pointer, *columns), lengths


def _until_next(first: Tensor, time: Tensor, lengths: Tensor) -> Tensor:
    """Frames from each frame to the next start after it, or to the end of its row."""
    import torch

    ends = lengths[:, None].to(time.dtype).expand(-1, time.shape[1])
    starts = torch.where(first, time, ends)
    after = torch.cat([starts[:, 1:], ends[:, :1]], dim=1)
    return torch.minimum(after.flip(1).cummin(1).values.flip(1), ends) - time


def _splits(offset: Tensor, run: Tensor, longest: int) -> Tensor:
    """Whether a piece starts at an offset in a run: the fewest pieces, longer ones first."""
    import torch

    pieces = (run + longest - 1).div(longest, rounding_mode="floor").clamp(min=1)
    short = run.div(pieces, rounding_mode="floor").clamp(min=1)
    in_long_ones = (run - short * pieces) * (short + 1)
    return torch.where(
        offset < in_long_ones,
        offset.remainder(short + 1).eq(0),
        (offset - in_long_ones).remainder(short).eq(0),
    )


def columns_on(kind: Any, columns: tuple[Any, ...], like: Any) -> tuple[Any, ...]:
    """The four arrays of segmentations as the engine of the device of `like` reads them."""
    dtypes = ("int64", "int32", "int32", "int32")
    return tuple(kind.moved(x, like, dtype) for x, dtype in zip(columns, dtypes, strict=True))
