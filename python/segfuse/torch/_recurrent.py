"""Recurrent layers of PyTorch as operations that a traced graph keeps whole, and their programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .._compile.scan import scan
from .._errors import UsageError
from .._program.value import Value
from ..ops import matmul, maximum, sigmoid, tanh, transpose

_NAMES = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu"}
_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@torch.library.custom_op("segfuse::recurrence", mutates_args=())
def recurrence(
    x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor], kind: str, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer in one direction: x (steps, rows, inputs), the states h (rows, outputs) and, for an
    LSTM, c (rows, states), the layer's weights as PyTorch orders them: y (steps, rows, outputs) in
    the order of x, and the last states."""
    along = x.flip(0) if reverse else x
    has_bias = len(weights) >= 4
    how = (list(weights), has_bias, 1, 0.0, False, False, False)
    last_c = torch.zeros_like(c)
    if kind == "lstm":
        y, last, last_c = torch.lstm(along, (h[None], c[None]), *how)
        last_c = last_c[0]
    else:
        y, last = getattr(torch, kind)(along, h[None], *how)
    return (y.flip(0) if reverse else y.clone()), last[0].clone(), last_c.clone()


@recurrence.register_fake
def _(
    x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor], kind: str, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty((x.shape[0], *h.shape)), torch.empty_like(h), torch.empty_like(c)


@contextmanager
def kept_whole(module: nn.Module) -> Iterator[None]:
    """Within it the recurrent layers of a module are calls of `recurrence`."""
    layers = [part for part in module.modules() if isinstance(part, nn.RNNBase)]
    for layer in layers:
        layer.forward = _Forward(layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


class _Forward:
    """What the layer does, by `recurrence`."""

    def __init__(self, layer: nn.RNNBase) -> None:
        self._layer = layer

    def __call__(self, x: Any, hx: Any = None) -> tuple[Tensor, Any]:
        layer = self._layer
        if not isinstance(x, Tensor):
            raise UsageError(
                f"a {type(layer).__name__} of it is given a {type(x).__name__}, expected a tensor"
            )
        is_batch = x.dim() == 3
        steps = (x.transpose(0, 1) if layer.batch_first else x) if is_batch else x[:, None]
        states = self._states(steps, hx, is_batch)
        kind = _NAMES[layer.mode]
        directions = 2 if layer.bidirectional else 1
        last: list[list[Tensor]] = [[], []]
        for number in range(layer.num_layers):
            found = []
            for direction in range(directions):
                i = number * directions + direction
                weights = [getattr(layer, name) for name in layer._all_weights[i]]
                h, c = (state[i] for state in states)
                y, *ends = recurrence(steps, h, c, weights, kind, direction == 1)
                found.append(y)
                for all_ends, end in zip(last, ends, strict=True):
                    all_ends.append(end)
            steps = torch.cat(found, -1) if directions > 1 else found[0]
            if layer.dropout > 0 and number + 1 < layer.num_layers:
                steps = nn.functional.dropout(steps, layer.dropout, layer.training)
        y = (steps.transpose(0, 1) if layer.batch_first else steps) if is_batch else steps[:, 0]
        ends = [torch.stack(each) if is_batch else torch.stack(each)[:, 0] for each in last]
        return y, tuple(ends) if kind == "lstm" else ends[0]

    def _states(self, steps: Tensor, hx: Any, is_batch: bool) -> list[Tensor]:
        """(layers * directions, rows, states) of h and of c."""
        layer = self._layer
        outputs = layer.proj_size or layer.hidden_size
        count = layer.num_layers * (2 if layer.bidirectional else 1)
        if hx is None:
            rows = steps.shape[1]
            sizes = (outputs, layer.hidden_size)
            return [steps.new_zeros((count, rows, size)) for size in sizes]
        given = list(hx) if isinstance(hx, (tuple, list)) else [hx, hx]
        return [state if is_batch else state[:, None] for state in given]


def write(
    x: Value, h: Value, c: Value, weights: Sequence[Value], kind: str, reverse: bool = False
) -> tuple[Value, Value, Value]:
    """`recurrence` in a program."""
    has_bias = len(weights) >= 4
    projection = weights[-1] if len(weights) % 2 else None
    input_bias, state_bias = weights[2:4] if has_bias else (None, None)
    is_gru = kind == "gru"
    given = matmul(x, transpose(weights[0]))
    if input_bias is not None and state_bias is not None:
        given = given + (input_bias if is_gru else input_bias + state_bias)
    by_state = transpose(weights[1])
    states = weights[1].shape[0] // _GATES[kind]

    def step(before: tuple[Value, Value], z: Value) -> tuple[tuple[Value, Value], Value]:
        h, c = before
        u = matmul(h, by_state)
        if is_gru and state_bias is not None:
            u = u + state_bias
        parts = [
            (z[:, g * states : (g + 1) * states], u[:, g * states : (g + 1) * states])
            for g in range(_GATES[kind])
        ]
        if is_gru:
            reset, update = (sigmoid(a + b) for a, b in parts[:2])
            fresh = tanh(parts[2][0] + reset * parts[2][1])
            h = fresh + update * (h - fresh)
        elif kind == "lstm":
            add, keep, new, show = (a + b for a, b in parts)
            c = sigmoid(keep) * c + sigmoid(add) * tanh(new)
            h = sigmoid(show) * tanh(c)
            if projection is not None:
                h = matmul(h, transpose(projection))
        else:
            total = parts[0][0] + parts[0][1]
            h = tanh(total) if kind == "rnn_tanh" else maximum(total, 0)
        return (h, c), h

    (last_h, last_c), y = scan(step, (h, c), given, reverse=reverse)
    return y, last_h, last_c


__all__ = ["kept_whole", "recurrence", "write"]
