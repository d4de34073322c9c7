"""A node of PyTorch's graph as a step of a program, or the reason why it is none."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION
from torch._prims_common import elementwise_dtypes
from torch.fx import Node

from ..._dtypes import NAMES
from ..._program.fusion import Fusion
from ..._program.lift import as_value
from ..._program.value import Value
from . import elementwise, movement, products, reductions  # noqa: F401  (they fill the table)
from .sizes import expression, size_of, symbols, writable
from .table import TABLE, Result, Row, Types, cast, exact_numbers, name_of, takes_all

_PROMOTIONS = {
    Types.RESULT: PROMOTION.NO_OPMATH,
    Types.WIDE: PROMOTION.DEFAULT,
    Types.FLOAT: PROMOTION.INT_TO_FLOAT,
}


@dataclass(frozen=True)
class Ref:
    """The value of another node."""

    node: Node


@dataclass(frozen=True)
class SizeRef:
    """A size, by its expression."""

    expr: Any


Shape: TypeAlias = tuple[Any, ...]
"""ints and expressions"""


@dataclass(frozen=True)
class Step:
    """A node that a program can run."""

    row: Row
    arguments: Mapping[str, Any]
    """By name, with `Ref` for values and `SizeRef` for sizes."""
    compute: str | None
    """The type in which numbers meet, if they do."""
    results: list[tuple[str, Shape]]
    is_one: bool

    def refs(self) -> list[Node]:
        found: list[Node] = []
        for argument in self.arguments.values():
            each = argument if isinstance(argument, list) else [argument]
            found += [x.node for x in each if isinstance(x, Ref)]
        return found

    def symbols(self) -> set[Any]:
        found: set[Any] = set()
        for argument in self.arguments.values():
            each = argument if isinstance(argument, list) else [argument]
            for x in each:
                if isinstance(x, SizeRef):
                    found |= symbols(x.expr)
        for _, shape in self.results:
            for expr in shape:
                found |= symbols(expr)
        return found

    def write(self, fusion: Fusion, values: Mapping[Node, Any], known: Mapping[Any, Any]) -> Any:
        """Adds the step to a program; `known` are the sizes that symbols stand for."""

        def given(x: Any) -> Any:
            if isinstance(x, list):
                return [given(part) for part in x]
            if isinstance(x, Ref):
                return values[x.node]
            return size_of(x.expr, known) if isinstance(x, SizeRef) else x

        arguments = {name: given(x) for name, x in self.arguments.items()}
        if self.compute is not None:
            for name in self.row.numbers:
                if arguments.get(name) is not None:
                    arguments[name] = _as_number(fusion, arguments[name], self.compute)
        results = [
            Result(fusion, dtype, tuple(size_of(expr, known) for expr in shape))
            for dtype, shape in self.results
        ]
        made = self.row.function(results[0] if self.is_one else results, **arguments)
        if not isinstance(made, tuple):
            return cast(made, results[0].dtype)
        return tuple(cast(x, r.dtype) for x, r in zip(made, results, strict=True))


def counts(node: Node, step: Step) -> bool:
    """Whether it does any work: views, and picks of results, do none."""
    return not step.row.view and node.target is not operator.getitem


def _as_number(fusion: Fusion, x: Any, dtype: str) -> Value:
    return cast(x, dtype) if isinstance(x, Value) else as_value(fusion, x, dtype)


def _pick(result: Any, source: Any, index: int) -> Any:
    return source[index]


_PICK = Row(_pick, Types.ANY, takes_all, False, ())
_PICK_VIEW = Row(_pick, Types.ANY, takes_all, True, ())


class RefusedError(Exception):
    """A node stays PyTorch's; the text says why."""


def step_of(node: Node, known: Mapping[Node, Step]) -> Step:
    """The step; `RefusedError` if there is none. `known` are those of the nodes before."""
    if node.target is operator.getitem:
        source = node.args[0]
        if not isinstance(source, Node) or source not in known:
            raise RefusedError("it is part of an operation that PyTorch runs")
        row = _PICK_VIEW if known[source].row.view else _PICK
        arguments = {"source": Ref(source), "index": node.args[1]}
        return Step(row, arguments, None, [_result(node.meta.get("val"))], True)
    row_or_none = TABLE.get(node.target)
    if row_or_none is None:
        raise RefusedError("segfuse has no such operation")
    row = row_or_none
    bound = _bound(node)
    content = {name: _map(x, _content) for name, x in bound.items()}
    for name, x in content.items():
        _need_known(name, x)
    refusal = row.refuses(content)
    if refusal is not None:
        raise RefusedError(refusal)
    made = node.meta.get("val")
    is_one = isinstance(made, torch.Tensor)
    results = [_result(x) for x in ([made] if is_one else made)]
    _need_one_device(content, made if is_one else made[0])
    arguments = {name: _map(x, _reference) for name, x in bound.items()}
    return Step(row, arguments, _compute(row, content), results, is_one)


def _bound(node: Node) -> dict[str, Any]:
    """The arguments by the names of the schema, defaults included."""
    found = dict(node.kwargs)
    for i, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if i < len(node.args):
            found[argument.name] = node.args[i]
        elif argument.name not in found:
            found[argument.name] = argument.default_value
    return found


def _map(x: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(x, (list, tuple)):
        return [_map(part, function) for part in x]
    return function(x)


def _content(x: Any) -> Any:
    if not isinstance(x, Node):
        return x
    if "val" not in x.meta:
        raise RefusedError(f"the value of {x.name} is not known at compile time")
    return x.meta["val"]


def _reference(x: Any) -> Any:
    content = _content(x)
    if isinstance(content, torch.SymInt):
        return SizeRef(expression(content))
    return Ref(x) if isinstance(x, Node) else x


def _need_known(name: str, x: Any) -> None:
    """`RefusedError` for an argument that no step takes."""
    if isinstance(x, list):
        for part in x:
            _need_known(name, part)
    elif isinstance(x, torch.Tensor):
        _need_plain(x)
    elif isinstance(x, torch.SymInt):
        if not writable(expression(x)):
            raise RefusedError(f"the size {x} is not a sum of products")
    elif isinstance(x, (torch.SymFloat, torch.SymBool, complex)):
        raise RefusedError(f"{name} is a {type(x).__name__}")


def _need_plain(x: torch.Tensor) -> None:
    if x.layout is not torch.strided or x.is_nested or x.is_quantized:
        raise RefusedError(f"a tensor has the layout {x.layout}")
    if name_of(x.dtype) not in NAMES:
        raise RefusedError(f"segfuse has no {name_of(x.dtype)}")
    if x.device.type not in ("cpu", "cuda"):
        raise RefusedError(f"a tensor lies on {x.device}")
    for size in x.shape:
        if not writable(expression(size)):
            raise RefusedError(f"the size {size} is not a sum of products")


def _need_one_device(content: Mapping[str, Any], made: torch.Tensor) -> None:
    """`RefusedError` where arrays lie on two devices, as CUDA data and an index on the CPU do;
    numbers may stay where they are."""
    operands: list[Any] = []
    for x in content.values():
        operands += x if isinstance(x, (list, tuple)) else [x]
    for x in operands:
        if isinstance(x, torch.Tensor) and x.ndim > 0 and x.device != made.device:
            raise RefusedError(f"an operand lies on {x.device}, its result on {made.device}")


def _result(made: Any) -> tuple[str, Shape]:
    if not isinstance(made, torch.Tensor):
        if isinstance(made, (list, tuple)):  # what a part is taken of
            return "", ()
        raise RefusedError("its result is not a tensor")
    _need_plain(made)
    return name_of(made.dtype), tuple(expression(size) for size in made.shape)


def _compute(row: Row, content: Mapping[str, Any]) -> str | None:
    if row.types is Types.ANY:
        return None
    operands = [content[name] for name in row.numbers if content.get(name) is not None]
    refusal = exact_numbers({str(i): x for i, x in enumerate(operands)})
    if refusal is not None:
        raise RefusedError(refusal)
    wide, _ = elementwise_dtypes(*operands, type_promotion_kind=_PROMOTIONS[row.types])
    if name_of(wide) not in NAMES:
        raise RefusedError(f"segfuse has no {name_of(wide)}")
    return name_of(wide)
