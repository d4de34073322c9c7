"""Which array library the caller uses, and how to make arrays for it."""

from __future__ import annotations

import sys
from typing import Any, Protocol

import numpy as np

from ._errors import UsageError


class Kind(Protocol):
    """One array library. Work arrays are what the engine writes; results are what callers get."""

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        """A work array on the device of `like`, with undefined content."""

    def result(self, array: Any) -> Any:
        """The caller's array from a work array, or from a NumPy array; no copy where possible."""

    def readable(self, name: str, array: Any, *, differentiable: bool) -> Any:
        """The array as one that DLPack exports."""

    def on_cuda(self, array: Any) -> bool:
        """Whether the array lies on a CUDA device."""

    def stream(self, array: Any) -> tuple[int, int]:
        """The device's number and the caller's stream on it."""

    def moved(self, values: Any, like: Any, dtype: str | None = None) -> Any:
        """The values as an array on the device of `like`."""


class _HostKind:
    """A library of which arrays are taken on the CPU only."""

    def on_cuda(self, array: Any) -> bool:
        return False

    def stream(self, array: Any) -> tuple[int, int]:
        return 0, 0

    def moved(self, values: Any, like: Any, dtype: str | None = None) -> np.ndarray:
        return np.asarray(values, dtype)


class NumpyKind(_HostKind):
    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> np.ndarray:
        return np.empty(shape, dtype)

    def result(self, array: np.ndarray) -> np.ndarray:
        return array

    def readable(self, name: str, array: Any, *, differentiable: bool) -> Any:
        if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack_device__"):
            _need_cpu(name, array)
        return array


REQUIRES_GRADIENT = "requires a gradient"


def transforms_active() -> bool:
    """Whether PyTorch is in one of its transforms (torch.func, forward mode), where a tensor may have
    a derivative without requiring a gradient."""
    torch = sys.modules["torch"]
    forward_mode: bool = torch.autograd.forward_ad._current_level >= 0
    return forward_mode or bool(torch._C._are_functorch_transforms_active())


def derivative_of(tensor: Any) -> str | None:
    """What PyTorch follows a tensor by; None if nothing is lost when its numbers are read."""
    torch = sys.modules["torch"]
    if tensor.requires_grad and torch.is_grad_enabled():
        return REQUIRES_GRADIENT
    if transforms_active():
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return "is a value inside a transform of torch.func"
        if torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None:
            return "has a tangent of forward-mode differentiation"
    return None


def nested_text(name: str) -> str:
    return (
        f"{name} is a nested tensor, expected a padded one; pass "
        f"torch.nested.to_padded_tensor({name}, 0.0) and the lengths of its rows"
    )


class TorchKind:
    def __init__(self) -> None:
        import torch

        self._torch = torch

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        return self._torch.empty(shape, dtype=getattr(self._torch, dtype), device=like.device)

    def result(self, array: Any) -> Any:
        return self._torch.from_numpy(array) if isinstance(array, np.ndarray) else array

    def readable(self, name: str, array: Any, *, differentiable: bool) -> Any:
        if array.is_nested:
            raise UsageError(nested_text(name))
        followed = derivative_of(array)
        if followed is None or (followed == REQUIRES_GRADIENT and not differentiable):
            return array.detach() if array.requires_grad else array
        raise UsageError(
            f"{name} {followed}, which this function does not record; use the functions of "
            "segfuse.torch, or pass tensors after .detach()"
        )

    def on_cuda(self, array: Any) -> bool:
        return array.is_cuda

    def stream(self, array: Any) -> tuple[int, int]:
        if not array.is_cuda:
            return 0, 0
        return array.device.index, self._torch.cuda.current_stream(array.device).cuda_stream

    def moved(self, values: Any, like: Any, dtype: str | None = None) -> Any:
        torch = self._torch
        wanted = None if dtype is None else getattr(torch, dtype)
        return torch.as_tensor(values, dtype=wanted, device=like.device)


class JaxKind(_HostKind):
    # What XLA on a CPU asks of memory that it is to use in place.
    _ALIGNMENT = 64

    def __init__(self) -> None:
        import jax

        self._jax = jax

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        memory = np.empty(size + self._ALIGNMENT, np.uint8)
        offset = -memory.ctypes.data % self._ALIGNMENT
        return memory[offset : offset + size].view(dtype).reshape(shape)

    def result(self, array: np.ndarray) -> Any:
        # jnp.asarray narrows 64-bit numbers to 32 unless JAX is set to keep them.
        return self._jax.numpy.asarray(array)

    def readable(self, name: str, array: Any, *, differentiable: bool) -> Any:
        if isinstance(array, self._jax.core.Tracer):
            raise UsageError(
                f"{name} is a value inside a JAX transformation; call segfuse outside jit, grad "
                "and vmap, or through jax.pure_callback"
            )
        _need_cpu(name, array)
        return self._jax.block_until_ready(array)


def _need_cpu(name: str, array: Any) -> None:
    if int(array.__dlpack_device__()[0]) != 1:
        raise UsageError(
            f"{name} is a {type(array).__name__} on a device; on GPUs segfuse takes PyTorch "
            "tensors, move it to the CPU or to PyTorch"
        )


_NUMPY = NumpyKind()
_kinds: dict[str, Kind] = {"numpy": _NUMPY}


def _library_of(array: Any) -> str:
    """The library that made the array; an array needs the library imported, so that is cheap."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return "torch"
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.Array):
        return "jax"
    return "numpy"


def kind_of(array: Any) -> Kind:
    """NumPy for everything that is not PyTorch's or JAX's."""
    library = _library_of(array)
    if library not in _kinds:
        _kinds[library] = TorchKind() if library == "torch" else JaxKind()
    return _kinds[library]


def readable(name: str, array: Any, *, differentiable: bool = False) -> Any:
    """The array as the engine takes it; None stays None."""
    if array is None:
        return None
    return kind_of(array).readable(name, array, differentiable=differentiable)


def integers(name: str, values: Any) -> Any:
    """An array of integers as the engine takes it; lists and tuples of numbers are welcome."""
    if values is None or hasattr(values, "__dlpack__"):
        return readable(name, values)
    array = np.asarray(values)
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise UsageError(f"{name} holds {array.dtype} numbers, expected integers")
    return array
