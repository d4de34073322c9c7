"""Tensors of PyTorch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._errors import UsageError
from .base import ELSEWHERE, ON_HOST, Kind

REQUIRES_GRADIENT = "requires a gradient"


def transforms_active() -> bool:
    """Whether PyTorch is in one of its transforms (torch.func, forward mode), where a tensor may
    have a derivative without requiring a gradient."""
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


def layout_text(name: str, tensor: Any) -> str | None:
    """Why no function here takes a tensor whose numbers do not lie in one piece of memory, as a
    sentence; None if they do."""
    if hasattr(tensor, "device_mesh"):
        return (
            f"{name} is a {type(tensor).__name__}, of which each process holds a part, expected a "
            "plain tensor; pass what its to_local() gives for this part, or its full_tensor()"
        )
    if tensor.is_nested:
        return (
            f"{name} is a nested tensor, expected a padded one; pass "
            f"torch.nested.to_padded_tensor({name}, 0.0) and the lengths of its rows"
        )
    if tensor.layout is not sys.modules["torch"].strided:
        return (
            f"{name} has the layout {tensor.layout}, expected a dense tensor; pass what its "
            "to_dense() gives"
        )
    return None


def need_layout(name: str, tensor: Any) -> None:
    """UsageError for what `layout_text` tells."""
    text = layout_text(name, tensor)
    if text is not None:
        raise UsageError(text)


def need_memory(name: str, tensor: Any) -> None:
    """UsageError for a tensor that has no memory any more, which would read as one that was not
    given."""
    if tensor.data_ptr() == 0 and tensor.numel() > 0:
        if tensor.is_meta:
            raise UsageError(f"{name} lies on the meta device, which holds no numbers")
        raise UsageError(
            f"{name} has no memory; if FSDP freed it after forward(), gather it with "
            "module.unshard(), or create and use the object with the scores within one call"
        )


class TorchKind(Kind):
    @functools.cached_property
    def _torch(self) -> Any:
        return sys.modules["torch"]

    def place(self, array: Any) -> int:
        place: int = ON_HOST if array.is_cpu else array.get_device() if array.is_cuda else ELSEWHERE
        return place

    def need_device(self, name: str, array: Any) -> None:
        need_layout(name, array)
        if not array.is_cpu and not array.is_cuda:
            raise UsageError(
                f"{name} lies on {array.device}; compiled functions run on the CPU and on CUDA "
                "devices; pass x.cpu()"
            )

    def need_constant(self, name: str, array: Any) -> None:
        self.need_device(name, array)
        followed = derivative_of(array)
        if followed is not None:
            raise UsageError(
                f"{name} {followed}, which PyTorch records only for arguments of compiled "
                "functions; pass it as an argument, or detach it"
            )

    def readable(self, name: str, array: Any, *, differentiable: bool) -> Any:
        need_layout(name, array)
        followed = derivative_of(array)
        if followed is None or (followed == REQUIRES_GRADIENT and not differentiable):
            need_memory(name, array)
            return array.detach() if array.requires_grad else array
        raise UsageError(
            f"{name} {followed}, which this function does not record; use the functions of "
            "segfuse.torch, or pass tensors after .detach()"
        )

    def host_view(self, name: str, array: Any) -> Any:
        # By way of NumPy, which is many times quicker than PyTorch's DLPack.
        if array.requires_grad:
            self.need_constant(name, array)
            array = array.detach()
        if array.is_neg():
            array = array.resolve_neg()
        torch = self._torch
        return (array.view(torch.uint16) if array.dtype is torch.bfloat16 else array).numpy()

    def host_copy(self, name: str, array: Any) -> Any:
        return array.detach().cpu()

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        return self._torch.empty(shape, dtype=getattr(self._torch, dtype), device=like.device)

    def result(self, array: Any) -> Any:
        return self._torch.from_numpy(array) if isinstance(array, np.ndarray) else array

    def finisher(self, dtypes: Sequence[str]) -> Callable[[list[Any]], list[Any]]:
        torch = self._torch
        bits = [dtype == "bfloat16" for dtype in dtypes]
        if not any(bits):
            return lambda results: [torch.from_numpy(x) for x in results]
        return lambda results: [
            torch.from_numpy(x).view(torch.bfloat16) if b else torch.from_numpy(x)
            for x, b in zip(results, bits, strict=True)
        ]

    def on_cuda(self, array: Any) -> bool:
        return bool(array.is_cuda)

    def stream(self, array: Any) -> tuple[int, int]:
        if not array.is_cuda:
            return 0, 0
        return array.device.index, self._torch.cuda.current_stream(array.device).cuda_stream

    def moved(self, values: Any, like: Any, dtype: str | None = None) -> Any:
        torch = self._torch
        wanted = None if dtype is None else getattr(torch, dtype)
        return torch.as_tensor(values, dtype=wanted, device=like.device)


class SharedOutKind(TorchKind):
    """Tensors over a device mesh, which are refused. They are a kind of their own so that no quick
    way for plain tensors takes them."""
