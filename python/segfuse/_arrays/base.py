"""What segfuse asks of an array library."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._errors import UsageError

ON_HOST, ELSEWHERE = -1, -2
"""Where an array lies, if not on the CUDA device with a number."""


class Kind:
    """What an argument is: an array of one library, or no array. There is one object for each kind.

    This is the kind of arrays that are known by DLPack or `__cuda_array_interface__` alone. The
    engine reads arrays through `readable` (the CRF, on any device that it knows) and `host_view`
    (programs, on the CPU). It writes work arrays made by `empty`, and callers get them as `result`.
    """

    is_array = True

    def place(self, array: Any) -> int:
        """ON_HOST, the number of a CUDA device, or ELSEWHERE."""
        if not hasattr(array, "__dlpack_device__"):
            return 0  # __cuda_array_interface__ does not say which
        device, number = array.__dlpack_device__()
        return {1: ON_HOST, 2: int(number)}.get(int(device), ELSEWHERE)

    def need_device(self, name: str, array: Any) -> None:
        """UsageError unless programs run where the array lies: the CPU and CUDA devices."""
        if self.place(array) == ELSEWHERE:
            raise UsageError(
                f"{name} lies on a device; compiled functions run on the CPU and on CUDA devices; "
                "move it there"
            )

    def need_constant(self, name: str, array: Any) -> None:
        """As `need_device`; also UsageError if its library differentiates by the array."""
        self.need_device(name, array)

    def writable(self, array: Any) -> bool:
        """Whether a program may overwrite the array."""
        return True

    def readable(self, name: str, array: Any, *, differentiable: bool) -> Any:
        """The array as one that DLPack exports. UsageError if it lies where no CRF runs, or if it
        has a derivative, which a `differentiable` function would not record."""
        if hasattr(array, "__dlpack_device__") and int(array.__dlpack_device__()[0]) != 1:
            raise UsageError(
                f"{name} is a {type(array).__name__} on a device; on GPUs segfuse takes PyTorch "
                "tensors, and segfuse.jax arrays of JAX; move it to the CPU or to PyTorch"
            )
        return array

    def host_view(self, name: str, array: Any) -> Any:
        """An array on the CPU as programs take it; bfloat16 becomes uint16 with the same bits."""
        return array

    def host_copy(self, name: str, array: Any) -> Any:
        """The array, or a copy of it, on the CPU."""
        if self.place(array) != ON_HOST:
            raise UsageError(f"{name}: check_numerics looks at arrays of NumPy, PyTorch and JAX")
        return array

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        """A work array on the device of `like`, with undefined content."""
        return np.empty(shape, dtype)

    def result(self, array: Any) -> Any:
        """The caller's array from a work array, or from a NumPy array; no copy where possible."""
        return array

    def finisher(self, dtypes: Sequence[str]) -> Callable[[list[Any]], list[Any]] | None:
        """What makes the caller's arrays of a program's results with these dtypes, which are NumPy
        arrays (bfloat16 as uint16); None if they are the same."""
        bits = [dtype == "bfloat16" for dtype in dtypes]
        return (lambda results: _with_bfloat16(results, bits)) if any(bits) else None

    def from_dlpack(self, like: Any) -> Callable[[Any], Any]:
        """What makes arrays of the library of `like` from others on a GPU."""
        module = sys.modules.get(type(like).__module__.partition(".")[0])
        own: Callable[[Any], Any] | None = getattr(module, "from_dlpack", None)
        return own or (lambda result: result)

    def on_cuda(self, array: Any) -> bool:
        """Whether the CRF runs on the CUDA device of the array."""
        return False

    def stream(self, array: Any) -> tuple[int, int]:
        """The device's number and the caller's stream on it."""
        return 0, 0

    def moved(self, values: Any, like: Any, dtype: str | None = None) -> Any:
        """The values as an array on the device of `like`."""
        return np.asarray(values, dtype)


class NoArray(Kind):
    """Any other object. The engine reports it where it expects an array."""

    is_array = False


def _with_bfloat16(results: list[Any], bits: Sequence[bool]) -> list[Any]:
    try:
        import ml_dtypes
    except ImportError:
        raise UsageError(
            "a result is bfloat16, which NumPy has by the package ml_dtypes only; install it, or "
            "cast the result to float32"
        ) from None
    bfloat16 = ml_dtypes.bfloat16
    return [x.view(bfloat16) if b else x for x, b in zip(results, bits, strict=True)]
