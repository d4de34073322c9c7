"""`segfuse.grad` and `segfuse.value_and_grad`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._errors import UsageError
from .compiled import Compiled
from .vjp import differentiated


def grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    threads: int = 0,
    device: str | None = None,
) -> Compiled:
    """Compiles the gradient of a scalar function.

    `grad(function)(*args)` has the structure and the shapes of `args[argnums]`; with several
    `argnums`, it is a tuple. With `has_aux`, the function returns (scalar, anything) and the result
    is (gradient, anything). Python floats at `argnums` become float32 arrays. Gradients can be
    nested, and used inside compiled functions. `threads` and `device` are as for `compile`.
    """
    both = differentiated(function, argnums, has_aux)

    @functools.wraps(function)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        result, gradients = both(*args, **kwargs)
        return (gradients, result[1]) if has_aux else gradients

    return _Gradient(gradient, argnums, threads=threads, device=device)


def value_and_grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    threads: int = 0,
    device: str | None = None,
) -> Compiled:
    """Compiles a scalar function and its gradient: the result is (function(*args), gradient).

    `argnums`, `has_aux`, `threads` and `device` are as for `grad`; with `has_aux`, the value is
    (scalar, anything).
    """
    both = differentiated(function, argnums, has_aux)
    return _Gradient(functools.wraps(function)(both), argnums, threads=threads, device=device)


class _Gradient(Compiled):
    """Takes plain numbers at the places that are differentiated."""

    def __init__(
        self,
        function: Callable[..., Any],
        argnums: int | Sequence[int],
        *,
        threads: int,
        device: str | None,
    ) -> None:
        super().__init__(function, threads=threads, device=device)
        self._numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def _made_of(self) -> Any:
        raise UsageError(
            f"the gradient of {self._name()} cannot be pickled; pickle the function, and call "
            "segfuse.grad where it is loaded"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for i in self._numbers:
            if i < len(args) and type(args[i]) is float:
                args = (*args[:i], np.float32(args[i]), *args[i + 1 :])
        return super().__call__(*args, **kwargs)
