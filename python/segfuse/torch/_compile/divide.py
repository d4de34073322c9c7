"""A graph of PyTorch's with parts of segfuse's in it."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ..._errors import UsageError
from .part import Part, Place, carried_shape
from .sizes import expression, may_be_negative, memory_order, plain_symbols, symbols
from .stages import GroupKey, Stages, find_stages
from .step import counts
from .table import LARGEST

_REINTERPRET = getattr(torch._C._dynamo.guards, "_reinterpret_tensor", None)
"""(tensor, size, stride, elements behind its first): another tensor over its memory."""

FEWEST = 2
"""Operations of a part; a single one stays PyTorch's."""


@dataclass
class Divided:
    """A graph that is divided, and what became of its operations."""

    module: GraphModule
    parts: list[Part] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)
    """The name of each operation that PyTorch runs, with the reason."""


class _UndoneError(Exception):
    """A group stays PyTorch's; the text says why."""


def divide(module: GraphModule, name: str, how: Mapping[str, Any]) -> Divided:
    """The same function with parts in place of what segfuse runs."""
    if any(overwrites(node) for node in module.graph.nodes):
        reason = "the graph overwrites a tensor in place, so its order stays"
        nodes = [node for node in module.graph.nodes if node.op == "call_function"]
        return Divided(module, [], [(str(node.target), reason) for node in nodes])
    stages = find_stages(module.graph)
    parts: dict[GroupKey, Part] = {}
    carriers: dict[GroupKey, list[_Carrier]] = {}
    builder = _Builder(module.graph, stages, how)
    reasons = dict(stages.reasons)
    for key, members in stages.groups.items():
        try:
            parts[key], carriers[key] = builder.part(f"{name}_{len(parts)}", key)
        except (_UndoneError, UsageError) as error:
            reasons |= dict.fromkeys(members, str(error))
    graph = _Writer(module.graph, stages, parts, carriers).graph
    divided = Divided(GraphModule(module, graph), list(parts.values()))
    for node, reason in reasons.items():
        if node.target is not operator.getitem:
            divided.left.append((str(node.target), reason))
    return divided


def overwrites(node: Node) -> bool:
    """AOTAutograd has replaced such operations, except for a few."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


@dataclass(frozen=True)
class _Carrier:
    """Where the number comes from that a symbol stands for: a node that is a size, or an axis."""

    node: Node
    axis: int | None


class _Builder:
    """Makes the parts of a graph."""

    def __init__(self, graph: Graph, stages: Stages, how: Mapping[str, Any]) -> None:
        self._stages, self._how = stages, how
        self._order = {node: i for i, node in enumerate(graph.nodes)}
        self._readers = _readers(graph, stages)
        self._sizes = _sizes(graph)

    def part(self, name: str, key: GroupKey) -> tuple[Part, list[_Carrier]]:
        steps = self._stages.steps
        members = self._stages.groups[key]
        outputs = [n for n in members if self._readers[n] - {key}]
        outputs = [n for n in outputs if isinstance(n.meta["val"], torch.Tensor)]
        order, inputs = self._needed(key, outputs)
        if sum(counts(n, steps[n]) for n in order) < FEWEST:
            raise _UndoneError("a part would have no other operation")
        if not inputs:
            raise _UndoneError("a part would have no input")
        places = [Place(n, _turned(n)) for n in inputs]
        results = [Place(n, _turned_result(n)) for n in outputs]
        carriers = self._carriers(order, inputs, key)
        carried = {symbol: _size_value(carrier) for symbol, carrier in carriers.items()}
        part = Part(name, {n: steps[n] for n in order}, places, carried, results, self._how)
        part.prepare()
        return part, list(carriers.values())

    def _needed(self, key: GroupKey, outputs: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        """What the outputs are made of, and what that is made of and comes from elsewhere."""
        stages, place = self._stages, self._order.__getitem__
        seen, inputs, waiting = set(outputs), set(), list(outputs)
        while waiting:
            for node in stages.steps[waiting.pop()].refs():
                if node in seen:
                    continue
                if stages.group_of.get(node) == key or stages.is_view(node):
                    seen.add(node)
                    waiting.append(node)
                else:
                    inputs.add(node)
        return sorted(seen, key=place), sorted(inputs, key=place)

    def _carriers(
        self, steps: Sequence[Node], inputs: Sequence[Node], key: GroupKey
    ) -> dict[Any, _Carrier]:
        """Where the sizes come from that no input of the part shows."""
        needed: set[Any] = set()
        shown: set[Any] = set()
        for node in steps:
            needed |= self._stages.steps[node].symbols()
        for node in inputs:
            shape = node.meta["val"].shape
            shown |= {symbol for _, symbol in plain_symbols(shape)}
            for size in shape:
                needed |= symbols(expression(size))
        carriers = {}
        for symbol in sorted(needed - shown, key=str):
            carrier = self._sizes.get(symbol)
            if carrier is None or self._stages.stage_of[carrier.node] >= key[0]:
                raise _UndoneError(f"the size {symbol} is not known where the part would run")
            carriers[symbol] = carrier
        return carriers


def _size_value(carrier: _Carrier) -> Any:
    made = carrier.node.meta["val"]
    return made if carrier.axis is None else made.shape[carrier.axis]


def _turned(node: Node) -> list[int] | None:
    """The order of axes that makes an input contiguous, if it is not so already."""
    order = memory_order(node.meta["val"])
    return None if order is None or order == sorted(order) else order


def _turned_result(node: Node) -> list[int] | None:
    if memory_order(node.meta["val"]) is None:
        raise _UndoneError(f"the result of {node.target} has gaps in memory")
    return _turned(node)


def _readers(graph: Graph, stages: Stages) -> dict[Node, set[GroupKey | None]]:
    """The groups that need a node, also by its views; None for PyTorch."""
    found: dict[Node, set[GroupKey | None]] = {}
    for node in reversed(graph.nodes):
        readers: set[GroupKey | None] = set()
        for user in node.users:
            readers |= found[user] if stages.is_view(user) else {stages.group_of.get(user)}
        found[node] = readers
    return found


def _sizes(graph: Graph) -> dict[Any, _Carrier]:
    """Where a symbol can be read: the first node that is this size, else an axis of an input."""
    found: dict[Any, _Carrier] = {}
    for node in graph.nodes:
        made = node.meta.get("val")
        if isinstance(made, torch.SymInt):
            expr = expression(made)
            if not isinstance(expr, int) and expr.is_Symbol:
                found.setdefault(expr, _Carrier(node, None))
        elif isinstance(made, torch.Tensor) and node.op == "placeholder":
            for axis, symbol in plain_symbols(made.shape):
                found.setdefault(symbol, _Carrier(node, axis))
    return found


def carry(number: int, signed: bool, device: torch.device) -> torch.Tensor:
    """A tensor without elements that brings a size, or another number, into a program."""
    if abs(number) > LARGEST:
        raise UsageError(
            f"an argument of the compiled model: found the number {number}, expected one within "
            "2**53; pass it as a tensor"
        )
    return torch.empty(carried_shape(number, signed), device=device)


class _Writer:
    """Rewrites the graph, stage by stage."""

    def __init__(
        self,
        old: Graph,
        stages: Stages,
        parts: Mapping[GroupKey, Part],
        carriers: Mapping[GroupKey, Sequence[_Carrier]],
    ) -> None:
        self.graph = Graph()
        self._stages, self._made = stages, dict[Node, Node]()
        self._from_parts: set[Node] = set()
        plain: dict[int, list[Node]] = {}
        ends: list[Node] = []
        for node in old.nodes:
            if node.op == "output":
                ends.append(node)
            elif node not in stages.steps:
                plain.setdefault(stages.stage_of[node], []).append(node)
        groups: dict[int, list[GroupKey]] = {}
        for key in stages.groups:
            groups.setdefault(key[0], []).append(key)
        for stage in sorted({*plain, *groups}):
            for key in groups.get(stage, []):
                if key in parts:
                    self._call(parts[key], carriers[key])
                else:
                    self._copy_all(stages.groups[key])
            self._copy_all(plain.get(stage, []))
        self._copy_all(ends)

    def _copy_all(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._made[node] = self.graph.node_copy(node, self._new)

    def _new(self, node: Node) -> Node:
        """What stands for a node; views are made where they are read."""
        if node not in self._made:
            found = self._reinterpreted(node)
            self._made[node] = found or self.graph.node_copy(node, self._new)
        return self._made[node]

    def _reinterpreted(self, node: Node) -> Node | None:
        """A view of what a part makes, whatever operations lead to it, by one call that PyTorch
        does not dispatch. Nothing where a size is not known, or a result lies elsewhere."""
        base = node
        while self._stages.is_view(base):
            base = self._stages.steps[base].refs()[0]
        if base is node or base not in self._from_parts or _REINTERPRET is None:
            return None
        view, whole = node.meta["val"], base.meta["val"]
        if not (isinstance(view, torch.Tensor) and isinstance(whole, torch.Tensor)):
            return None  # a list of views
        numbers = [*view.shape, *view.stride(), view.storage_offset(), whole.storage_offset()]
        if not all(isinstance(x, int) for x in numbers) or view.dtype != whole.dtype:
            return None
        if view.untyped_storage()._cdata != whole.untyped_storage()._cdata:
            return None
        behind = view.storage_offset() - whole.storage_offset()
        place = tuple(view.shape), tuple(view.stride()), behind
        return self.graph.call_function(_REINTERPRET, (self._new(base), *place))

    def _call(self, part: Part, carriers: Sequence[_Carrier]) -> None:
        inputs = [self._new(place.node) for place in part.inputs]
        device = part.outputs[0].node.meta["val"].device
        for carrier, number in zip(carriers, part.carried.values(), strict=True):
            size = self._new(carrier.node)
            if carrier.axis is not None:
                size = self.graph.call_function(torch.ops.aten.sym_size.int, (size, carrier.axis))
            inputs.append(self.graph.call_function(carry, (size, may_be_negative(number), device)))
        made = self.graph.call_function(part, tuple(inputs))
        for i, place in enumerate(part.outputs):
            self._made[place.node] = self.graph.call_function(operator.getitem, (made, i))
            self._from_parts.add(place.node)
