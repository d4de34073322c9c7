"""Arrays and scalars of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from .base import ON_HOST, Kind


class NumpyKind(Kind):
    def place(self, array: Any) -> int:
        return ON_HOST

    def need_device(self, name: str, array: Any) -> None:
        pass

    def writable(self, array: Any) -> bool:
        # A field of records is copied if a stride is not a multiple of its element size.
        copied = any(step % array.itemsize for step in array.strides)
        return bool(array.flags.writeable) and not copied

    def readable(self, name: str, array: Any, *, differentiable: bool) -> Any:
        return array

    def host_view(self, name: str, array: Any) -> Any:
        return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


class ScalarKind(NumpyKind):
    def writable(self, array: Any) -> bool:
        return False

    def host_view(self, name: str, array: Any) -> Any:
        return super().host_view(name, np.asarray(array))
