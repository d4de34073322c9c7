"""Rows of the table: movement of elements, casts, and new values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ... import ops as sf
from ..._program.index import is_from_the_end
from ..._program.lift import as_value, make, part
from ..._program.sizes import Size, native_size, native_sizes
from ..._program.value import Value
from .sizes import memory_order
from .table import Arguments, Result, cast, exact_numbers, rows


def _shaped(x: Value, shape: Sequence[Any]) -> Value:
    return sf.reshape(x, tuple(shape))


@rows("view _unsafe_view reshape unsqueeze squeeze.dims squeeze.dim squeeze", view=True)
def _view(result: Result, self: Value, **_: Any) -> Value:
    return _shaped(self, result.shape)


def _refuses_strides(arguments: Arguments) -> str | None:
    """All elements in order under another shape are a view that has a meaning here."""
    x, sizes, strides = arguments["self"], arguments["size"], arguments["stride"]
    order, expected = memory_order(x), 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if not isinstance(size, int) or not isinstance(stride, int):
            return "its sizes are symbolic"
        if size != 1 and stride != expected:
            return "its strides are not those of all elements in order"
        expected *= size
    offset = arguments["storage_offset"]
    whole = order == list(range(x.ndim)) and x.numel() == expected
    if not whole or offset not in (None, x.storage_offset()):
        return "its strides are not those of all elements in order"
    return None


@rows("as_strided", view=True, refuses=_refuses_strides)
def _as_strided(result: Result, self: Value, **_: Any) -> Value:
    return _shaped(self, result.shape)


@rows("alias detach", view=True)
def _alias(result: Result, self: Value) -> Value:
    return self


@rows("clone lift_fresh_copy")
def _clone(result: Result, self: Value, **_: Any) -> Value:
    return self


@rows("permute", view=True)
def _permute(result: Result, self: Value, dims: Sequence[int]) -> Value:
    return sf.transpose(self, list(dims)) if dims else self


@rows("t", view=True)
def _t(result: Result, self: Value) -> Value:
    return sf.transpose(self)


@rows("transpose.int", view=True)
def _transpose(result: Result, self: Value, dim0: int, dim1: int) -> Value:
    return sf.swapaxes(self, dim0, dim1) if self.ndim else self


@rows("expand", view=True)
def _expand(result: Result, self: Value, size: Any, implicit: bool) -> Value:
    return sf.broadcast_to(self, result.shape)


@rows("slice.Tensor", view=True)
def _slice(result: Result, self: Value, dim: int, start: Any, end: Any, step: int) -> Value:
    axis = dim % self.ndim
    return _strided(self, axis, _start(self, axis, start), result.shape[axis], step)


def _start(x: Value, axis: int, start: Any) -> Any:
    """A bound of a slice within [0, size]; PyTorch takes what lies outside for the end itself."""
    size, known = x.shape[axis], x._fusion._known
    if start is None:
        return 0
    if is_from_the_end(x, start):
        start = size + start
        return start if known(">=", start, 0, True) else 0
    return start if known("<=", start, size, True) else size


def _strided(x: Value, axis: int, start: Any, count: Any, step: int) -> Value:
    """`count` elements along an axis, `step` apart."""
    if step == 1 or not x._fusion._known(">", count, 0, True):
        return part(x, axis, start, count)
    span = (count - 1) * step + 1
    windows = make("unfold", [part(x, axis, start, span)], axis, 1, step, 1)
    return _shaped(windows, (*x.shape[:axis], count, *x.shape[axis + 1 :]))


@rows("select.int", view=True)
def _select(result: Result, self: Value, dim: int, index: Any) -> Value:
    axis = dim % self.ndim
    at = self.shape[axis] + index if is_from_the_end(self, index) else index
    return make("squeeze", [part(self, axis, at, 1)], [axis])


@rows("split_with_sizes", view=True)
def _split(result: list[Result], self: Value, split_sizes: Any, dim: int) -> tuple[Value, ...]:
    axis, start, parts = dim % self.ndim, 0, []
    for each in result:
        size = each.shape[axis]
        parts.append(part(self, axis, start, size))
        start = start + size
    return tuple(parts)


@rows("unfold", view=True, refuses=lambda given: None if given["self"].ndim else "a scalar")
def _unfold(result: Result, self: Value, dimension: int, size: int, step: int) -> Value:
    axis = dimension % self.ndim
    windows = make("unfold", [self], axis, size, step, 1)
    return sf.moveaxis(windows, axis + 1, windows.ndim - 1)


def _refuses_device(arguments: Arguments) -> str | None:
    device = arguments["device"]
    if device is not None and torch.device(device).type != arguments["self"].device.type:
        return "it moves a tensor to another device"
    return None


@rows("_to_copy", refuses=_refuses_device)
def _to_copy(result: Result, self: Value, **_: Any) -> Value:
    return cast(self, result.dtype)


@rows("copy")
def _copy(result: Result, self: Value, src: Value, non_blocking: bool) -> Value:
    return sf.broadcast_to(cast(src, result.dtype), result.shape)


@rows("cat")
def _cat(result: Result, tensors: Sequence[Value], dim: int) -> Value:
    rank = len(result.shape)
    kept = [x for x in tensors if x.ndim == rank and not (rank > 1 and x.ndim == 1)]
    return sf.concatenate([cast(x, result.dtype) for x in kept], dim % rank)


def _refuses_pad(arguments: Arguments) -> str | None:
    if any(isinstance(n, int) and n < 0 for n in arguments["pad"]):
        return "it takes elements away"
    if not arguments["self"].dtype.is_floating_point:
        return "segfuse pads floats only"
    return None


@rows("constant_pad_nd", refuses=_refuses_pad)
def _pad(result: Result, self: Value, pad: Sequence[Any], value: float) -> Value:
    pairs = [(0, 0)] * (self.ndim - len(pad) // 2)
    pairs += [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    for axis, pair in enumerate(pairs):  # a calculated size may be below 0: it takes elements away
        low, high = (-n if is_from_the_end(self, n) else 0 for n in pair)
        if isinstance(low, Size) or isinstance(high, Size):
            self = part(self, axis, low, self.shape[axis] - low - high)
            pairs[axis] = (
                0 if isinstance(low, Size) else pair[0],
                0 if isinstance(high, Size) else pair[1],
            )
    return sf.pad(self, pairs, constant_values=value)


@rows("flip")
def _flip(result: Result, self: Value, dims: Sequence[int]) -> Value:
    return sf.flip(self, tuple(dims)) if self.ndim and dims else self


@rows("repeat")
def _repeat(result: Result, self: Value, repeats: Sequence[Any]) -> Value:
    x = _shaped(self, (*(1,) * (len(repeats) - self.ndim), *self.shape))
    if not repeats:
        return x
    shape = x.shape
    x = _shaped(x, [n for size in shape for n in (1, size)])
    x = sf.broadcast_to(x, tuple(n for pair in zip(repeats, shape, strict=True) for n in pair))
    return _shaped(x, result.shape)


@rows("slice_scatter", refuses=lambda given: None if given["step"] == 1 else "it has steps")
def _slice_scatter(
    result: Result, self: Value, src: Value, dim: int, start: Any, end: Any, step: int
) -> Value:
    axis = dim % self.ndim
    first = _start(self, axis, start)
    after = first + src.shape[axis]
    rest = part(self, axis, after, self.shape[axis] - after)
    return sf.concatenate([part(self, axis, 0, first), cast(src, result.dtype), rest], axis)


# --- by index: below 0 an index counts from the end in `index` alone ---


def _refuses_indices(arguments: Arguments) -> str | None:
    index = arguments.get("index", arguments.get("indices"))
    if index.dtype not in (torch.int32, torch.int64):
        return "the index is not int32 or int64"
    if arguments.get("self", index).ndim == 0:
        return "a scalar is indexed"
    return None


@rows("index_select", refuses=_refuses_indices)
def _index_select(result: Result, self: Value, dim: int, index: Value) -> Value:
    index = _shaped(index, (1,)) if index.ndim == 0 else index
    return make("take", [self, index], dim % self.ndim)


@rows("embedding", refuses=_refuses_indices)
def _embedding(result: Result, weight: Value, indices: Value, **_: Any) -> Value:
    return make("take", [weight, indices], 0)


def _refuses_scaling(arguments: Arguments) -> str | None:
    return (
        "it scales by frequency" if arguments["scale_grad_by_freq"] else _refuses_indices(arguments)
    )


@rows("embedding_dense_backward", refuses=_refuses_scaling)
def _embedding_backward(
    result: Result, grad_output: Value, indices: Value, num_weights: Any, padding_idx: int,
    scale_grad_by_freq: bool,
) -> Value:  # fmt: skip
    width = grad_output.shape[-1]
    at = _shaped(indices, (-1,))
    updates = _shaped(grad_output, (at.shape[0], width))
    if padding_idx >= 0:
        updates = sf.where(sf.expand_dims(at != padding_idx, 1), updates, 0.0)
    dtype = updates.dtype
    updates = cast(updates, "float32") if dtype in ("float16", "bfloat16") else updates
    return cast(sf.scatter_add(updates, at, 0, num_weights), dtype)


@rows("gather", refuses=_refuses_indices)
def _gather(result: Result, self: Value, dim: int, index: Value, sparse_grad: bool) -> Value:
    axis = dim % self.ndim
    for other in range(self.ndim):
        if other != axis and self.shape[other] is not index.shape[other]:
            self = part(self, other, 0, index.shape[other])
    return make("gather", [self, index], axis)


def _refuses_index(arguments: Arguments) -> str | None:
    given = [x for x in arguments["indices"] if x is not None]
    if len(given) != 1:
        return "it has several index tensors"
    return _refuses_indices({"index": given[0], "self": arguments["self"]})


@rows("index.Tensor", refuses=_refuses_index)
def _index(result: Result, self: Value, indices: Sequence[Value | None]) -> Value:
    axis, index = next((i, x) for i, x in enumerate(indices) if x is not None)
    return sf.take(self, index, axis)


# --- new values ---


def _number_only(arguments: Arguments) -> str | None:
    return exact_numbers({"value": arguments.get("fill_value", arguments.get("s"))})


@rows("full full_like scalar_tensor", refuses=_number_only)
def _full(result: Result, self: Any = None, **given: Any) -> Value:
    native = result.fusion._native
    number: Any = given["fill_value" if "fill_value" in given else "s"]
    if isinstance(number, Size):
        return sf.broadcast_to(as_value(result.fusion, number, result.dtype), result.shape)
    sizes = native_sizes(result.shape)
    return Value(result.fusion, native.full(float(number), sizes, result.dtype))


def _refuses_float_steps(arguments: Arguments) -> str | None:
    bounds = [arguments["start"], arguments["step"]]
    dtype = arguments["dtype"]
    if any(isinstance(x, float) for x in bounds) or (dtype and dtype.is_floating_point):
        return "its elements are floats"
    return exact_numbers(arguments)


@rows("arange.start_step", refuses=_refuses_float_steps)
def _arange(result: Result, start: Any, end: Any, step: Any, **_: Any) -> Value:
    count = native_size(result.shape[0])
    x = Value(result.fusion, result.fusion._native.iota(count, result.dtype))
    return x * step + start
