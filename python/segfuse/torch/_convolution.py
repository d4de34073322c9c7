"""Convolutions of PyTorch as windows and one product of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .._program.lift import make, part
from .._program.value import Value
from ..ops import flip, matmul, pad, reshape, transpose


def convolution(
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    """aten.convolution of (N, channels, sizes...) with weights (outputs, channels / groups,
    kernel...); transposed, with (channels, outputs / groups, kernel...)."""
    axes = x.ndim - 2
    if transposed:
        gaps = each_axis(dilation, axes)
        sides = (
            each_axis(stride, axes),
            each_axis(padding, axes),
            each_axis(output_padding, axes),
            gaps,
        )
        x = _spread(x, [int(size) for size in weight.shape[2:]], *sides)
        weight = _turned(weight, groups)
        stride, padding, dilation = [1] * axes, [0] * axes, gaps
    kernel = [int(size) for size in weight.shape[2:]]
    x = transpose(x, (0, *range(2, x.ndim), 1))
    x = pad(x, [(0, 0), *((p, p) for p in each_axis(padding, axes)), (0, 0)])
    steps = zip(kernel, each_axis(stride, axes), each_axis(dilation, axes), strict=True)
    for i, (size, step, gap) in enumerate(steps):
        x = make("unfold", [x], 1 + 2 * i, size, step, gap)
    # (N, windows, kernel, windows, kernel, ..., channels)
    places, offsets = range(1, 1 + 2 * axes, 2), range(2, 2 + 2 * axes, 2)
    x = transpose(x, (0, *places, *offsets, x.ndim - 1))
    rows = x.shape[: 1 + axes]
    outputs = int(weight.shape[0])
    y = _products(x, weight, rows, math.prod(kernel), groups)
    if bias is not None:
        y = y + bias
    y = reshape(y, (*rows, outputs))
    return transpose(y, (0, y.ndim - 1, *range(1, y.ndim - 1)))


def _spread(
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
) -> Value:
    """What a plain convolution makes the transposed one of: zeros between the elements, and as many
    around them as windows reach beyond."""
    for i, (size, step, less, more, gap) in enumerate(
        zip(kernel, stride, padding, output_padding, dilation, strict=True)
    ):
        axis, shape = 2 + i, x.shape
        if step > 1:
            x = reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
            x = pad(x, [(0, step - 1) if j == axis + 1 else (0, 0) for j in range(x.ndim)])
            x = reshape(x, (*shape[:axis], shape[axis] * step, *shape[axis + 1 :]))
        before = gap * (size - 1) - less
        after = before + more - (step - 1)
        widths = [(max(before, 0), max(after, 0)) if j == axis else (0, 0) for j in range(x.ndim)]
        x = pad(x, widths)
        start = max(-before, 0)
        x = part(x, axis, start, x.shape[axis] - start - max(-after, 0))
    return x


def _turned(weight: Value, groups: int) -> Value:
    """(outputs, channels / groups, kernel...), the kernel from its end, of the weights of a
    transposed convolution."""
    channels, share = int(weight.shape[0]), int(weight.shape[1])
    kernel = [int(size) for size in weight.shape[2:]]
    w = reshape(weight, (groups, channels // groups, share, *kernel))
    w = transpose(w, (0, 2, 1, *range(3, w.ndim)))
    w = reshape(w, (groups * share, channels // groups, *kernel))
    return flip(w, tuple(range(2, w.ndim)))


def each_axis(given: Sequence[int], axes: int) -> list[int]:
    """PyTorch may give one number for all axes."""
    return list(given) * axes if len(given) == 1 and axes > 1 else list(given)


def _products(x: Value, weight: Value, rows: Any, offsets: int, groups: int) -> Value:
    """(rows..., outputs) of windows (rows..., kernel..., channels)."""
    outputs, channels = int(weight.shape[0]), int(weight.shape[1])
    share = outputs // groups
    # (offsets, channels of a group, groups, outputs of a group)
    w = reshape(weight, (groups, share, channels, offsets))
    w = transpose(w, (3, 2, 0, 1))
    if groups == 1:
        y = matmul(
            reshape(x, (*rows, offsets * channels)), reshape(w, (offsets * channels, outputs))
        )
    elif channels == 1:
        windows = reshape(x, (*rows, offsets, groups, 1))
        y = reshape(
            (windows * reshape(w, (offsets, groups, share))).sum(len(rows)), (*rows, outputs)
        )
    else:
        count = math.prod(rows[1:], start=rows[0])
        windows = transpose(reshape(x, (count, offsets, groups, channels)), (2, 0, 1, 3))
        windows = reshape(windows, (groups, count, offsets * channels))
        w = reshape(transpose(w, (2, 0, 1, 3)), (groups, offsets * channels, share))
        y = reshape(transpose(matmul(windows, w), (1, 0, 2)), (*rows, outputs))
    return y
