"""What becomes of a model's operations."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .backend import segfuse
from .divide import Divided
from .step import counts


@dataclass(frozen=True)
class PartReport:
    """One compiled program in place of a part of a graph."""

    name: str
    """The graph (forward, backward or inference) and a number."""
    operations: tuple[str, ...]
    """Those of ATen that it runs, in order; views and picks of results not counted."""
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Left:
    """Operations that PyTorch runs."""

    graph: str
    operation: str
    reason: str
    count: int


@dataclass(frozen=True)
class Explanation:
    """How `torch.compile(model, backend="segfuse")` divides a model; `print` shows it."""

    parts: tuple[PartReport, ...]
    left: tuple[Left, ...]
    graphs: int
    """The number of graphs that PyTorch passed to segfuse. If there is more than one forward graph,
    PyTorch broke the model into pieces (`torch._dynamo.explain` says where)."""

    @property
    def operations(self) -> int:
        """The number of operations that segfuse runs."""
        return sum(len(part.operations) for part in self.parts)

    @property
    def operations_left(self) -> int:
        """The number of operations that PyTorch runs."""
        return sum(left.count for left in self.left)

    @property
    def share(self) -> float:
        """The share of all operations that segfuse runs."""
        total = self.operations + self.operations_left
        return self.operations / total if total else 0.0

    def __str__(self) -> str:
        total = self.operations + self.operations_left
        lines = [
            f"segfuse runs {self.operations} of {total} operations ({self.share:.1%}) in "
            f"{len(self.parts)} parts of {self.graphs} graphs"
        ]
        for part in self.parts:
            counts = Counter(part.operations)
            names = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in counts.items())
            lines.append(
                f"  {part.name}: {len(part.operations)} operations, {part.inputs} inputs, "
                f"{part.outputs} outputs: {names}"
            )
        if self.left:
            lines.append("PyTorch runs")
        for left in self.left:
            times = f"{left.count} x " if left.count > 1 else ""
            lines.append(f"  {left.graph}: {times}{left.operation}: {left.reason}")
        return "\n".join(lines)


def explain(model: Any, *inputs: Any, **keywords: Any) -> Explanation:
    """Compiles `model` (a module or a function) for these inputs and says what runs where.

    The model is called once on copies of its tensors, forward, and backward if a result requires a
    gradient. Gradients, buffers, parameters and the state of random generators are as before.
    """
    graphs: list[tuple[str, Divided]] = []
    watch = functools.partial(segfuse, watch=lambda name, made: graphs.append((name, made)))
    args, kwargs = pytree.tree_map_only(Tensor, _copy, (inputs, keywords))
    with _unchanged(model):
        compiled = torch.compile(model, backend=watch, fullgraph=False)
        _run_backward(compiled(*args, **kwargs))
    return _report(graphs)


def _copy(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_(x.requires_grad)


@contextmanager
def _unchanged(model: Any) -> Iterator[None]:
    held = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    before = [(x, x.detach().clone()) for x in held]
    devices = sorted({x.device.index for x in held if x.is_cuda})
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        with torch.no_grad():
            for x, content in before:
                x.copy_(content)


def _run_backward(results: Any) -> None:
    wanted = [x for x in pytree.tree_leaves(results) if isinstance(x, Tensor) and x.requires_grad]
    if not wanted:
        return
    leaves = _leaves(wanted)
    torch.autograd.grad(wanted, leaves, [torch.zeros_like(x) for x in wanted], allow_unused=True)


def _leaves(results: list[Tensor]) -> list[Tensor]:
    """The tensors that results are differentiated by."""
    found: list[Tensor] = []
    waiting = [x.grad_fn for x in results if x.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            found.append(node.variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


def _name(target: Any) -> str:
    return str(target).removeprefix("aten.").removesuffix(".default")


def _report(graphs: list[tuple[str, Divided]]) -> Explanation:
    parts: list[PartReport] = []
    left: Counter[tuple[str, str, str]] = Counter()
    for graph, divided in graphs:
        for part in divided.parts:
            names = [_name(node.target) for node, step in part.steps.items() if counts(node, step)]
            parts.append(
                PartReport(part.__name__, tuple(names), len(part.inputs), len(part.outputs))
            )
        left.update((graph, _name(target), reason) for target, reason in divided.left)
    rest = tuple(Left(*key, count) for key, count in left.items())
    return Explanation(tuple(parts), rest, len(graphs))
