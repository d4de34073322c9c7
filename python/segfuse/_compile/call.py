"""The arguments of one call."""

from __future__ import annotations

from typing import Any

from .._arrays import (
    JAX,
    NUMPY,
    ON_HOST,
    SCALAR,
    STATIC,
    TORCH,
    TRACED,
    Kind,
    describe,
    is_inside_jax,
    kind_of,
    transforms_active,
)
from .._errors import UsageError
from .tree import LEAF, Structure, flatten


def _static_key(leaf: Any) -> tuple[Any, Any]:
    """0.0 and -0.0 are equal, and NaN is not; a trace is another for each."""
    return type(leaf), leaf.hex() if type(leaf) is float else leaf


class Call:
    """The arguments of one call, flat."""

    __slots__ = (
        "_ways", "axes", "exact_key", "in_jax", "kinds", "leaves", "structure", "traced",
        "used_names", "wants_grad",
    )  # fmt: skip

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.leaves: list[Any] = []
        self.structure: Structure = flatten((args, kwargs), self.leaves)
        self.kinds: list[Kind] = []
        self.traced = False
        self.in_jax = False
        """Whether JAX traces: the arrays have no content yet."""
        self.wants_grad = False
        key: list[Any] = [self.structure]
        for leaf in self.leaves:
            kind = kind_of(leaf)
            self.kinds.append(kind)
            if kind is NUMPY or kind is SCALAR:
                key += (kind, leaf.dtype, leaf.shape)
            elif kind is STATIC:
                key += _static_key(leaf)
            elif kind is TRACED:
                self.traced = True
            elif kind is TORCH:
                if leaf.requires_grad or transforms_active():
                    self.wants_grad = True
                place = ON_HOST if leaf.is_cpu else kind.place(leaf)
                key += (kind, leaf.dtype, leaf.shape, place)
            else:
                self.in_jax = self.in_jax or (kind is JAX and is_inside_jax(leaf))
                key += (kind, leaf.dtype, leaf.shape, kind.place(leaf))
        self.exact_key = tuple(key)
        """What a ready call is found by."""
        self.axes: dict[str, tuple[int, int]] = {}
        self.used_names: set[str] = set()
        self._ways: list[Any] = []

    def is_bits(self, leaf: int) -> bool:
        """Whether NumPy knows the element type by a package only."""
        return bool(self.leaves[leaf].dtype.name == "bfloat16")

    def name(self, leaf: int) -> str:
        """How messages name a leaf: "argument 0", "argument 'x'", with the way into it."""
        path = self._way(leaf)
        where = f"argument {path[1]!r}" if path[0] == 1 else f"argument {path[1]}"
        return where + "".join(f"[{step!r}]" for step in path[2:])

    def _way(self, leaf: int) -> Any:
        if not self._ways:
            self._ways = list(_paths(self.structure))
        return self._ways[leaf]

    def input_name(self, leaf: int) -> str:
        path = self._way(leaf)[1:]
        text = "_".join(
            "".join(c if c.isalnum() and c.isascii() else "_" for c in str(step)) for step in path
        )
        text = text if text and not text[0].isdigit() else f"x{text}"
        while text in self.used_names:
            text += "_"
        self.used_names.add(text)
        return text

    def class_key(self) -> Any:
        """What every trace is bound to: types, ranks, which sizes are 1, static arguments."""
        return (
            self.structure,
            *(
                _static_key(leaf)
                if kind is STATIC
                else (leaf.dtype, tuple(size == 1 for size in leaf.shape))
                for leaf, kind in zip(self.leaves, self.kinds, strict=True)
            ),
        )

    def need_hashable(self) -> None:
        for i, (leaf, kind) in enumerate(zip(self.leaves, self.kinds, strict=True)):
            if kind is not STATIC:
                continue
            try:
                hash(leaf)
            except TypeError:
                raise UsageError(
                    f"{self.name(i)} is {describe(leaf)}, expected an array or a hashable value, "
                    "because values that are not arrays are part of the key of the cache"
                ) from None


def _paths(structure: Structure) -> Any:
    if structure is LEAF:
        yield ()
        return
    kind, *parts = structure
    steps: Any = range(len(parts))
    if issubclass(kind, dict):
        steps, parts = parts[1], parts[2:]
    for step, part in zip(steps, parts, strict=True):
        for path in _paths(part):
            yield (step, *path)
