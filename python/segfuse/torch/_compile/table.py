"""The one table of what ATen operations mean here: each row is an operation that a program can run
exactly as PyTorch does. What has no row, or what a row refuses, stays PyTorch's."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ..._program.fusion import Fusion
from ..._program.value import Value
from ...ops import astype


class Types(enum.Enum):
    """In which type a row computes. Operands that are tensors or numbers are cast to it, and the
    result is cast to the type that PyTorch gives."""

    ANY = "operands come as they are"
    RESULT = "the type that the operands have together; 16-bit floats stay what they are"
    WIDE = "the same, but 16-bit floats are computed in float32 and rounded once"
    FLOAT = "the same as WIDE, and integers become floats"


Arguments: TypeAlias = Mapping[str, Any]
"""The arguments of an operation by the names of its schema, defaults included. Tensors are
PyTorch's, without content."""

Refusal: TypeAlias = Callable[[Arguments], "str | None"]


@dataclass(frozen=True)
class Row:
    """`function` takes a `Result`, then the operation's arguments by name, and gives a value, or a
    tuple of values. `refuses` says why an operation with such arguments stays PyTorch's."""

    function: Callable[..., Any]
    types: Types
    refuses: Refusal
    view: bool
    numbers: tuple[str, ...]
    """The arguments that meet in a common type."""


@dataclass(frozen=True)
class Result:
    """What PyTorch gives: the type, and the sizes as those of the program that is written."""

    fusion: Fusion
    dtype: str
    shape: tuple[Any, ...]


LARGEST = 2**53
"""Constants of programs are doubles."""

TABLE: dict[Any, Row] = {}
"""By overload, as `torch.ops.aten.add.Tensor`."""


def takes_all(_: Arguments) -> str | None:
    return None


def rows(
    names: str,
    types: Types = Types.ANY,
    *,
    refuses: Refusal = takes_all,
    view: bool = False,
    numbers: str = "self other",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Puts a function into the table under the names of operations of ATen ("add.Tensor"); those
    that this PyTorch does not have are left out."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names.split():
            packet, _, overload = name.partition(".")
            found = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if found is not None:
                TABLE[found] = Row(function, types, refuses, view, tuple(numbers.split()))
        return function

    return enter


def cast(x: Value, dtype: str) -> Value:
    """As PyTorch casts: what is not zero is true."""
    if x.dtype == dtype:
        return x
    return x != 0 if dtype == "bool" else astype(x, dtype)


def any_of(*refusals: Refusal) -> Refusal:
    """The first reason of several."""
    return lambda arguments: next(filter(None, (refusal(arguments) for refusal in refusals)), None)


def tensors(arguments: Arguments) -> list[torch.Tensor]:
    """All tensors among the arguments."""
    found: list[torch.Tensor] = []
    for argument in arguments.values():
        each = argument if isinstance(argument, (list, tuple)) else [argument]
        found += [x for x in each if isinstance(x, torch.Tensor)]
    return found


def needs_floats(arguments: Arguments) -> str | None:
    """For operations that segfuse has for floats only."""
    for x in tensors(arguments):
        if not x.dtype.is_floating_point:
            return f"segfuse has it for floats, not for {name_of(x.dtype)}"
    return None


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def exact_numbers(arguments: Arguments) -> str | None:
    """Constants have to be doubles."""
    for x in arguments.values():
        if isinstance(x, int) and abs(x) > LARGEST:
            return f"the number {x} does not fit a double"
    return None
