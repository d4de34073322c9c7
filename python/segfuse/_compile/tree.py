"""Nested tuples, lists and dicts of leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Structure = Any
"""What is left of a tree without its leaves: hashable, and all that unflatten() needs."""

LEAF: Structure = None


def flatten(tree: Any, leaves: list[Any]) -> Structure:
    """Appends the leaves from left to right; dicts go by their sorted keys."""
    kind = type(tree)
    if kind is tuple or kind is list:
        return (kind, *(flatten(item, leaves) for item in tree))
    if isinstance(tree, dict):
        try:
            keys = sorted(tree)
        except TypeError:  # keys of several types
            keys = sorted(tree, key=lambda key: (str(type(key)), key))
        return (kind, tuple(keys), *(flatten(tree[key], leaves) for key in keys))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return (kind, *(flatten(item, leaves) for item in tree))
    leaves.append(tree)
    return LEAF


def unflatten(structure: Structure, leaves: Any) -> Any:
    """The tree again, with leaves from an iterator."""
    if structure is LEAF:
        return next(leaves)
    kind = structure[0]
    if issubclass(kind, dict):
        return kind(
            (key, unflatten(part, leaves))
            for key, part in zip(structure[1], structure[2:], strict=True)
        )
    items = [unflatten(part, leaves) for part in structure[1:]]
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with every leaf replaced."""
    leaves: list[Any] = []
    structure = flatten(tree, leaves)
    return unflatten(structure, iter([function(leaf) for leaf in leaves]))
