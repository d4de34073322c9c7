"""Calls of NumPy's functions on values: NumPy's parameters, by name, for functions of ours."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._errors import UsageError

_Parameters = tuple[inspect.Parameter, ...]


def full_name(function: Any) -> str:
    """As users write it: np.linalg.inv."""
    module = str(getattr(function, "__module__", None) or "numpy")
    return module.replace("numpy", "np", 1) + f".{function.__name__}"


def called(theirs: Any, ours: Callable[..., Any], args: Sequence[Any], given: Any) -> Any:
    """What our function gives for a call of NumPy's. The order of parameters may be another one:
    those that have a default go by name, and one that ours lacks has to have NumPy's default."""
    keywords = {k: v for k, v in given.items() if v is not np._NoValue}  # type: ignore[attr-defined]
    parameters, known = _parameters(theirs), _parameters(ours)
    if parameters is not None and known is not None:
        args, keywords = _renamed(theirs, ours, parameters, known, args, keywords)
    try:
        return ours(*args, **keywords)
    except TypeError as error:
        raise UsageError(
            f"{full_name(theirs)} on values of a program: {error}; see segfuse.ops.{ours.__name__}"
        ) from None


def accepts(ours: Callable[..., Any], keywords: Mapping[str, Any]) -> bool:
    """Whether the function has parameters of these names."""
    return set(keywords) <= {p.name for p in _parameters(ours) or ()}


@functools.cache
def _parameters(function: Any) -> _Parameters | None:
    try:
        return tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # of some functions in C before NumPy 2.4
        return None


def _renamed(
    theirs: Any,
    ours: Any,
    parameters: _Parameters,
    known: _Parameters,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
) -> tuple[list[Any], dict[str, Any]]:
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    leading = () if variadic else parameters
    named = dict(zip((p.name for p in leading), args, strict=False)) | dict(keywords)
    places = [] if variadic else [p.name for p in parameters if _has_place(p)]
    positional = list(args) if variadic else [named.pop(name) for name in places if name in named]
    defaults = {p.name: p.default for p in parameters}
    accepted = {p.name for p in known}
    for name in list(named):
        value = named.pop(name)
        own = name if name in accepted else name.lower()  # vander's N
        if value is np._NoValue:  # type: ignore[attr-defined]
            continue
        if own in accepted:
            named[own] = value
        elif not _is_default(value, defaults.get(name)):
            raise UsageError(
                f"{full_name(theirs)} on values of a program: found {name}={value!r}, which "
                f"segfuse.ops.{ours.__name__} does not have; leave it out"
            )
    return positional, named


def _has_place(p: inspect.Parameter) -> bool:
    return p.kind is p.POSITIONAL_ONLY or (
        p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    )


def _is_default(value: Any, default: Any) -> bool:
    return value is None or (type(value) is type(default) and bool(value == default))
