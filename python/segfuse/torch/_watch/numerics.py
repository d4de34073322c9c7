"""The first operation of a PyTorch program whose result is not finite while its operands are.

What looks at the operations is `mode.py`, or `compiled.py` on a GPU where it can be compiled; what
follows from what they see is in `judge.py`. Here is when that is asked for: nothing waits before
an optimizer's step, the end, or the outermost module's result in a program without backward.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .compiled import Compiled, compiled_here
from .finding import Finding
from .judge import Judge
from .lane import magnitudes_at_once
from .mode import Mode
from .operation import PLAIN, has_numbers, storage_key, tensors_in
from .place import Modules
from .statistics import Statistics


def wants_compiled() -> bool:
    """On the CPU operations take long beside a dispatch mode, and compiling takes half a minute."""
    return torch.cuda.device_count() > 0  # is_available() would forbid CUDA to forked processes


class Numerics:
    """`segfuse.torch.check_numerics`'s state."""

    def __init__(self, statistics: bool = False, keep_bytes: int = 256 << 20) -> None:
        self.statistics = Statistics() if statistics else None
        self.judge = Judge(self.statistics)
        self.step = 1
        self._modules = Modules()
        self._modules.on_result = self._on_model_output
        recorder, self.note = compiled_here() if wants_compiled() else (None, "")
        self.looks: Mode | Compiled
        if recorder is None:
            self.looks = Mode(self.judge, self._modules, keep_bytes)
        else:
            self.looks = Compiled(recorder, self.judge, self._modules, keep_bytes)
        self._backward_seen = False
        self._hooks: list[Any] = []
        self._backward: Any = None
        self.on_step = lambda: None

    @property
    def findings(self) -> list[Finding]:
        return self.judge.findings

    @property
    def operations(self) -> int:
        return self.looks.operations

    @property
    def devices(self) -> set[str]:
        return self.looks.devices

    # Start and end.

    def start(self) -> None:
        self._hooks = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._watched_backward
        self.looks.start()

    def stop(self) -> None:
        self.looks.stop()
        for hook in self._hooks:
            hook.remove()
        torch.autograd.backward = self._backward
        self.finish()

    def finish(self) -> None:
        """Looks at all that is left, and judges the suspects that reached no step any more."""
        with self.looks.quiet():
            self.looks.flush()
            for suspect in self.judge.suspects:
                if suspect.in_backward and not self.judge.scaler_seen:
                    self.judge.confirm(suspect, "a gradient", None)
                elif suspect.in_output and not self._backward_seen:
                    self.judge.confirm(suspect, "the model's output", None)

    # Where numbers matter.

    def _watched_backward(self, tensors, *args, **kwargs):  # type: ignore[no-untyped-def]
        self._backward_seen = True
        with self.looks.quiet():
            roots = [t.detach() for t in tensors_in(tensors)]
            self.looks.expect("the loss", [""] * len(roots), roots, always=True)
        return self._backward(tensors, *args, **kwargs)

    def _named(self, optimizer: Any) -> list[tuple[str, Tensor]]:
        named = []
        for g, group in enumerate(optimizer.param_groups):
            names = group.get("param_names") or [f"{g}.{i}" for i in range(len(group["params"]))]
            named += list(zip(names, group["params"], strict=False))
        return named

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self.looks.captures.going_on():
            return  # the step does not take place now
        with self.looks.quiet():
            names, grads = _plain((name, p.grad) for name, p in self._named(optimizer))
            guard = getattr(optimizer, "found_inf", None)
            self.looks.expect("the gradient of parameter ", names, grads, guard)
            if self.statistics is not None:
                self.statistics.gradients(self.step, names, grads)
            self.looks.phase = "optimizer"

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self.looks.captures.going_on():
            return
        with self.looks.quiet():
            self.looks.phase = "forward"
            named = self._named(optimizer)
            names, values = _plain((name, p.data) for name, p in named)
            self.looks.expect("parameter ", names, values)
            if self.statistics is not None:
                self.statistics.parameters(self.step, names, values)
            state = optimizer.state
            names, values = _plain(
                (f"{name} ({key})", value)
                for name, p in named
                for key, value in state.get(p, {}).items()
            )
            self.looks.expect("the optimizer's state of parameter ", names, values, bounded=True)
            self.looks.flush()
            for suspect in self.judge.suspects:
                suspect.in_backward = False  # the optimizer's gradients have been judged
            self.step += 1
            self.looks.step = self.step
        self.on_step()

    def _on_model_output(self, _module: Any, output: Any) -> None:
        if self._backward_seen or not (self.judge.marks or self.looks.pending()):
            return
        if self.looks.captures.going_on():
            return
        with self.looks.quiet():
            self.looks.flush()
            values = list(output.values()) if isinstance(output, dict) else output
            for tensor in tensors_in(values):
                mark = self.judge.marks.get(storage_key(tensor))
                if mark is not None and mark[1] is not None and has_numbers(tensor):
                    if not math.isfinite(magnitudes_at_once([tensor])[0]):
                        mark[1].in_output = True

    def put_aside(self) -> list[Finding]:
        return self.judge.put_aside()


def _plain(named: Iterable[tuple[str, Any]]) -> tuple[list[str], list[Tensor]]:
    """Those with memory here, with their names."""
    names, tensors = [], []
    for name, value in named:
        if type(value) in PLAIN:
            names.append(name)
            tensors.append(value)
        elif value is not None:
            for tensor in tensors_in(value):
                names.append(name)
                tensors.append(tensor)
    return names, tensors
