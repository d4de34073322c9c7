"""Which nodes of a graph run together.

Nodes that segfuse runs are members of groups, all others are left to PyTorch. A path from a group
through PyTorch's operations leads to a later group, so groups need each other in one direction
only. Views cost nothing: they belong to no group, and their readers make them.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch.fx import Graph, Node

from .step import RefusedError, Step, step_of

_BEFORE = -1
"""The stage of what needs no group."""

GroupKey: TypeAlias = tuple[int, str]
"""Stage and device."""


@dataclass
class Stages:
    """The operations of a graph in the order of stages: in each, first the groups, then what
    PyTorch runs."""

    steps: dict[Node, Step] = field(default_factory=dict)
    reasons: dict[Node, str] = field(default_factory=dict)
    """Why PyTorch runs a node; sizes and constants have none."""
    groups: dict[GroupKey, list[Node]] = field(default_factory=dict)
    group_of: dict[Node, GroupKey] = field(default_factory=dict)
    stage_of: dict[Node, int] = field(default_factory=dict)

    def is_view(self, node: Node) -> bool:
        return node in self.steps and self.steps[node].row.view


def find_stages(graph: Graph) -> Stages:
    """Takes no part of a graph out that has to stay in order."""
    found = Stages()
    for node in graph.nodes:
        if node.op == "call_function":
            try:
                found.steps[node] = step_of(node, found.steps)
            except RefusedError as refusal:
                if not _is_size(node) and node.target is not operator.getitem:
                    found.reasons[node] = str(refusal)
    _find_earliest(graph, found)
    _delay_what_is_ready(graph, found)
    groups: dict[GroupKey, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node in found.steps and not found.is_view(node):
            key = (found.stage_of[node], _device(node))
            found.group_of[node] = key
            groups[key].append(node)
    found.groups = dict(sorted(groups.items()))
    return found


def _is_size(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (int, torch.SymInt, torch.SymFloat, torch.SymBool))


def _device(node: Node) -> str:
    """The device of the result; empty if it is not a tensor."""
    made = node.meta.get("val")
    made = made[0] if isinstance(made, (list, tuple)) and made else made
    return str(made.device) if isinstance(made, torch.Tensor) else ""


def _keeps_its_place(node: Node) -> bool:
    """Whether the order among such nodes matters: of random and impure operations."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return not (target is operator.getitem or _is_size(node))
    return target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags


def _find_earliest(graph: Graph, found: Stages) -> None:
    last_in_place = _BEFORE
    sources: dict[Node, Node] = {}  # of views: what they are views of
    for node in graph.nodes:
        is_step = node in found.steps
        stage = _BEFORE
        for before in node.all_input_nodes:
            source = sources.get(before, before)
            ready = found.stage_of[before]
            if is_step and not found.is_view(node):
                same = source in found.steps and _device(source) == _device(node)
                ready = ready if same else ready + 1
            stage = max(stage, ready)
        if is_step and found.is_view(node):
            base = found.steps[node].refs()[0]
            sources[node] = sources.get(base, base)
        elif is_step:
            stage = max(stage, 0)
        elif node.op == "call_function" and _keeps_its_place(node):
            stage = last_in_place = max(stage, last_in_place)
        found.stage_of[node] = stage


def _delay_what_is_ready(graph: Graph, found: Stages) -> None:
    """What needs only inputs of the graph runs where it is used first, so that its results do not
    lie in memory before."""
    ready: set[Node] = set()
    for node in graph.nodes:
        inputs = node.all_input_nodes
        given = node.op in ("placeholder", "get_attr")
        if given or (node in found.steps and all(x in ready for x in inputs)):
            ready.add(node)
    for node in reversed(graph.nodes):
        if node not in ready or node not in found.steps or node.target is operator.getitem:
            continue
        results = [user for user in node.users if user.target is operator.getitem]
        users = [user for made in results or [node] for user in made.users]
        device = _device(node)
        if users and all(user.op != "output" and _device(user) == device for user in users):
            first = min(found.stage_of[user] for user in users)
            # One result of several is never in another group than the operation that makes it.
            for made in (node, *results):
                found.stage_of[made] = max(found.stage_of[made], first)
