"""A part of a graph as one compiled program over tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..._compile.compiled import Compiled
from ..._gpu import quick_calls
from ..._program.lift import same_size
from ..._program.value import Value
from ...ops import transpose
from . import alive
from .sizes import expression, hint, may_be_negative, plain_symbols, size_of
from .step import Step


@dataclass(frozen=True)
class Place:
    """How a tensor that goes in or comes out lies in memory: the program has it with its axes in
    `order`, so that there are no gaps; None where that is not known, or as it is."""

    node: Node
    order: list[int] | None

    def back(self) -> list[int]:
        """The order that undoes `order`."""
        assert self.order is not None
        return sorted(range(len(self.order)), key=self.order.__getitem__)


class Part:
    """Takes the tensors of `inputs`, then one of a `carried_shape` for each symbol in `carried`;
    gives those of `outputs`."""

    def __init__(
        self,
        name: str,
        steps: Mapping[Node, Step],
        inputs: Sequence[Place],
        carried: Mapping[Any, torch.SymInt],
        outputs: Sequence[Place],
        how: Mapping[str, Any],
    ) -> None:
        self.__name__ = self.__qualname__ = name
        self.steps, self.carried = steps, carried
        self.inputs, self.outputs = inputs, outputs
        self._turned = [(i, place.order) for i, place in enumerate(inputs) if place.order]
        self._turned_back = [(i, place.back()) for i, place in enumerate(outputs) if place.order]
        self._ahead: Thread | None = None  # compiles for what PyTorch traced with
        self._quick = self._quick_calls() if outputs[0].node.meta["val"].is_cuda else None

        def function(*values: Value) -> tuple[Value, ...]:
            return self._write(values)

        function.__name__ = name
        self.compiled = Compiled(function, **how)
        alive.add(self)

    def _quick_calls(self) -> Any:
        """What an operation makes is a negated view, or is not, for all inputs."""
        orders = [place.order for place in self.inputs] + [None] * len(self.carried)
        nodes = enumerate(place.node for place in self.inputs)
        doubtful = [i for i, x in nodes if x.op != "call_function" or x.meta["val"].is_neg()]
        return quick_calls(orders, doubtful)

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        known: Any = self._quick.call(tensors) if self._quick is not None else False
        if known:
            return known  # type: ignore[no-any-return]
        if (ahead := self._ahead) is not None:
            ahead.join()
            self._ahead = None
        given, made = self._run(tensors)
        if known is None:
            back = [place.back() if place.order else None for place in self.outputs]
            self.compiled.make_known(self._quick, given, tensors, back)
        return made

    def _run(self, tensors: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        """What the program was given, and the results."""
        given = [x.detach() if x.requires_grad else x for x in tensors]
        for i, order in self._turned:
            given[i] = given[i].permute(order)
        made = list(self.compiled(*given))
        for i, order in self._turned_back:
            made[i] = made[i].permute(order)
        return tuple(given), made

    def _write(self, given: Sequence[Value]) -> tuple[Value, ...]:
        """The steps on values of a program."""
        fusion = given[0]._fusion
        tensors = given[: len(self.inputs)]
        rest = given[len(self.inputs) :]
        known = {symbol: _number(x) for symbol, x in zip(self.carried, rest, strict=True)}
        values: dict[Node, Any] = {}
        for place, x in zip(self.inputs, tensors, strict=True):
            values[place.node] = x if place.order is None else transpose(x, place.back())
        for node, x in values.items():
            for axis, symbol in plain_symbols(node.meta["val"].shape):
                known.setdefault(symbol, x.shape[axis])
        for node, x in values.items():
            for own, size in zip(x.shape, node.meta["val"].shape, strict=True):
                same_size(fusion, own, size_of(expression(size), known))
        for node, step in self.steps.items():
            values[node] = step.write(fusion, values, known)
        made = [values[place.node] for place in self.outputs]
        return tuple(
            x if place.order is None else transpose(x, place.order)
            for place, x in zip(self.outputs, made, strict=True)
        )

    def prepare(self) -> None:
        """Writes the program for sizes like those that PyTorch traced with, so that what cannot be
        written is found now, and begins to compile it for its GPU. Nothing is done where PyTorch
        has seen no sizes."""
        examples = []
        for place in self.inputs:
            like = place.node.meta["val"]
            order = range(like.ndim) if place.order is None else place.order
            examples.append(_example([hint(like.shape[i]) for i in order], like.dtype))
        for size in self.carried.values():
            known = hint(size)
            shape = () if known is None else carried_shape(known, may_be_negative(size))
            examples.append(None if known is None else _example(shape, torch.float32))
        if any(x is None for x in examples):
            return
        self.compiled.fusion(*examples)
        device = self.outputs[0].node.meta["val"].device
        if device.type == "cuda":
            self._ahead = Thread(target=self._compile_ahead, args=(device.index or 0, examples))
            self._ahead.start()

    def _compile_ahead(self, device: int, examples: list[Tensor]) -> None:
        with suppress(Exception):  # the call meets it again
            self.compiled.compile_ahead(device, *examples)


def carried_shape(number: int, signed: bool) -> tuple[int, ...]:
    """The shape that brings a number into a program, of a tensor without elements. A number that
    may be below 0 is the difference of two sizes; none of them is 1, which has a trace of its own.
    """
    return (max(number, 0) + 2, max(-number, 0) + 2, 0) if signed else (number, 0)


def _number(carrier: Value) -> Any:
    """The number that the shape of a carrier stands for."""
    first, *more = carrier.shape[:-1]
    return first - more[0] if more else first


def _example(sizes: Sequence[int | None], dtype: torch.dtype) -> Tensor | None:
    """A tensor of that shape without memory of that size."""
    if any(size is None for size in sizes):
        return None
    return torch.zeros((), dtype=dtype).expand(sizes)
