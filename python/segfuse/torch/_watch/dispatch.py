"""The dispatch mode that the tools have in common, and calls when a module has been imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class _Finder:
    def __init__(self, module: str, call: Callable[[Any], None]) -> None:
        self._module, self._call = module, call

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._module:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                self._call(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def when_imported(name: str, call: Callable[[Any], None]) -> Callable[[], None]:
    """Calls with the module, at once or when it has been imported. The result ends the waiting."""
    module = sys.modules.get(name)
    if module is not None:
        call(module)
        return lambda: None
    finder = _Finder(name, call)
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]

    def stop() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)  # type: ignore[arg-type]

    return stop


_ctc_loss: Callable[..., Tensor] = torch.ctc_loss


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0,
    *arguments: Any, **options: Any,
) -> Tensor:  # fmt: skip
    """torch.ctc_loss, with the kernel that it has without a dispatch mode.

    Under one PyTorch gives tensors of lengths to a kernel that wants them on the device. Without,
    it makes lists of them first, unless cuDNN takes the tensors.
    """
    lengths = [input_lengths, target_lengths]
    if all(type(t) is Tensor and t.dtype in _INTEGERS for t in lengths) and not (
        log_probs.is_cuda
        and torch._use_cudnn_ctc_loss(log_probs, targets, input_lengths, target_lengths, blank)
    ):
        lengths = [t.flatten().tolist() for t in lengths]
    return _ctc_loss(log_probs, targets, *lengths, blank, *arguments, **options)


class Dispatch(TorchDispatchMode):
    """Sees the operations of its thread. Meanwhile torch.compile runs functions as they are.

    Under a dispatch mode PyTorch compiles nothing, and takes that for an error where a function has
    to be compiled as a whole.
    """

    supports_higher_order_operators = True

    def __enter__(self):  # type: ignore[no-untyped-def]
        self._stance: Any = None

        def set_stance(dynamo: Any) -> None:
            if hasattr(dynamo, "set_stance"):
                self._stance = dynamo.set_stance("force_eager")

        self._stop_waiting = when_imported("torch._dynamo", set_stance)
        self._ctc_loss = torch.ctc_loss
        torch.ctc_loss = ctc_loss
        # torch.jit.script knows operators by the functions that stand for them.
        torch.jit._builtins._register_builtin(ctc_loss, "aten::ctc_loss")
        return super().__enter__()

    def __exit__(self, *arguments):  # type: ignore[no-untyped-def]
        super().__exit__(*arguments)
        torch.ctc_loss = self._ctc_loss
        self._stop_waiting()
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
