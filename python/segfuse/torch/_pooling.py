"""Pooling of PyTorch as windows and what is made of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .._errors import UsageError
from .._program.lift import make, part
from .._program.value import Value
from ..ops import full_like, isnan, pad, reshape, where
from ._convolution import each_axis


class TwoAxes(TorchFunctionMode):
    """Pooling of one axis as that of two, which PyTorch traces for any number of frames."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.max_pool1d, nn.functional.max_pool1d):
            return _max_pool1d(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _max_pool1d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    if return_indices:
        raise UsageError("max_pool1d of it returns indices, for which there is no program")

    def two(value: Any, other: int) -> list[int]:
        return [other, value[0] if isinstance(value, (tuple, list)) else value]

    steps = two(kernel_size if stride is None or stride == () else stride, 1)
    how = (two(kernel_size, 1), steps, two(padding, 0), two(dilation, 1), ceil_mode)
    return torch.max_pool2d(x[..., None, :], *how)[..., 0, :]


def max_pool(
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Value, None]:
    """aten.max_pool2d_with_indices of (N, channels, sizes...), without the indices. The first of
    equal values gets the gradient, and NaN wins, as in PyTorch."""
    _refuse(ceil_mode)
    axes = len(kernel)
    places = zip(
        range(x.ndim - axes, x.ndim),
        kernel,
        each_axis(stride or kernel, axes),
        each_axis(padding, axes),
        each_axis(dilation, axes),
        strict=True,
    )
    for axis, size, step, around, gap in reversed(list(places)):  # the last axis runs fastest
        windows = _windows(x, axis, size, step, around, gap, -math.inf)
        best = _at(windows, axis, 0)
        for i in range(1, size):
            other = _at(windows, axis, i)
            best = where((other > best) | isnan(other), other, best)
        x = best
    return x, None


def mean_pool(
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    """aten.avg_pool2d of (N, channels, sizes...)."""
    _refuse(ceil_mode)
    axes = len(kernel)
    around = each_axis(padding, axes)
    places = list(
        zip(
            range(x.ndim - axes, x.ndim),
            kernel,
            each_axis(stride or kernel, axes),
            around,
            strict=True,
        )
    )

    def sums(y: Value) -> Value:
        for axis, size, step, edge in places:
            y = _windows(y, axis, size, step, edge, 1, 0.0).sum(axis + 1)
        return y

    if divisor_override is not None:
        return sums(x) / divisor_override
    if count_include_pad or not any(around):
        return sums(x) / math.prod(kernel)
    return sums(x) / sums(full_like(x, 1))


def _refuse(ceil_mode: bool) -> None:
    if ceil_mode:
        raise UsageError("its ceil_mode is True, expected False")


def _windows(
    x: Value, axis: int, size: int, step: int, around: int, gap: int, outside: float
) -> Value:
    """(..., windows, size, ...)"""
    if around:
        widths = [(around, around) if i == axis else (0, 0) for i in range(x.ndim)]
        x = pad(x, widths, constant_values=outside)
    return make("unfold", [x], axis, size, step, gap)


def _at(windows: Value, axis: int, i: int) -> Value:
    shape = windows.shape
    return reshape(part(windows, axis + 1, i, 1), (*shape[: axis + 1], *shape[axis + 2 :]))


__all__ = ["TwoAxes", "max_pool", "mean_pool"]
