"""Nested tuples, lists and dicts of leaves."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

Structure = Any
"""What is left of a tree without its leaves: hashable, and all that unflatten() needs."""

LEAF: Structure = None


def flatten(tree: Any, leaves: list[Any], *, in_order: bool = False) -> Structure:
    """Appends the leaves from left to right. Dicts go by their sorted keys, as JAX's, but an
    OrderedDict in its order; with `in_order`, which is for results, all in theirs."""

    def parts_of(items: Iterable[Any]) -> list[Structure]:
        return [flatten(item, leaves, in_order=in_order) for item in items]

    kind = type(tree)
    if kind is tuple or kind is list:
        return (kind, *parts_of(tree))
    if isinstance(tree, dict):
        keys = list(tree) if in_order or isinstance(tree, OrderedDict) else _sorted(tree)
        factory = tree.default_factory if isinstance(tree, defaultdict) else None
        return (kind, factory, tuple(keys), *parts_of(tree[key] for key in keys))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return (kind, *parts_of(tree))
    leaves.append(tree)
    return LEAF


def _sorted(keys: Iterable[Any]) -> list[Any]:
    try:
        return sorted(keys)
    except TypeError:  # keys of several types
        return sorted(keys, key=lambda key: (str(type(key)), key))


def unflatten(structure: Structure, leaves: Any) -> Any:
    """The tree again, with leaves from an iterator."""
    if structure is LEAF:
        return next(leaves)
    kind = structure[0]
    if issubclass(kind, dict):
        _, factory, keys, *parts = structure
        made = ((key, unflatten(part, leaves)) for key, part in zip(keys, parts, strict=True))
        return kind(factory, made) if issubclass(kind, defaultdict) else kind(made)
    items = [unflatten(part, leaves) for part in structure[1:]]
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """A result with every leaf replaced."""
    leaves: list[Any] = []
    structure = flatten(tree, leaves, in_order=True)
    return unflatten(structure, iter([function(leaf) for leaf in leaves]))
