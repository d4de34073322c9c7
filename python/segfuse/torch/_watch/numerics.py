"""The first operation of a PyTorch program whose result is not finite while its operands are.

`mode.py` examines the operations, or `compiled.py` on a GPU if it can be compiled; `judge.py`
judges what they found. This file decides when that happens: nothing waits before
an optimizer's step, the end, or the outermost module's result in a program without backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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

_KINDS = frozenset(PLAIN)


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
        if recorder is None or recorder.is_on():  # by a watch around this one
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
            self.looks.expect(lambda i: "the loss", roots, always=True)
        return self._backward(tensors, *args, **kwargs)

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self.looks.captures.going_on():
            return  # the step does not take place now
        with self.looks.quiet():
            which, grads = _plain([p.grad for p in _parameters(optimizer)])
            name = _text(optimizer, "the gradient of parameter {}", which)
            self.looks.expect(name, grads, getattr(optimizer, "found_inf", None))
            if self.statistics is not None:
                names = [_names(optimizer)[i] for i in which]
                self.statistics.gradients(self.step, names, grads)
            self.looks.phase = "optimizer"

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self.looks.captures.going_on():
            return
        with self.looks.quiet():
            self.looks.phase = "forward"
            parameters = _parameters(optimizer)
            which, values = _plain(self.looks.data_of(parameters))
            self.looks.expect(_text(optimizer, "parameter {}", which), values)
            if self.statistics is not None:
                names = [_names(optimizer)[i] for i in which]
                self.statistics.parameters(self.step, names, [v.detach() for v in values])
            states = [optimizer.state.get(p, {}) for p in parameters]
            which, values = _plain([value for state in states for value in state.values()])
            name = _text(optimizer, "the optimizer's state of parameter {}", which, states)
            self.looks.expect(name, values, bounded=True)
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


def _parameters(optimizer: Any) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _names(optimizer: Any) -> list[str]:
    """Of the parameters."""
    names: list[str] = []
    for g, group in enumerate(optimizer.param_groups):
        count = len(group["params"])
        given = (group.get("param_names") or [])[:count]
        names += [*given, *(f"{g}.{i}" for i in range(len(given), count))]
    return names


def _text(
    optimizer: Any, text: str, which: Sequence[int], states: list[Any] | None = None
) -> Callable[[int], str]:
    """Describes a tensor when the text is needed; states by their keys."""

    def of(i: int) -> str:
        names = _names(optimizer)
        if states is not None:
            names = [f"{n} ({k})" for n, state in zip(names, states, strict=True) for k in state]
        return text.format(names[which[i]])

    return of


def _plain(values: list[Any]) -> tuple[Sequence[int], list[Tensor]]:
    """The tensors with memory here, and which of the values they are or are in."""
    if _KINDS.issuperset(map(type, values)):
        return range(len(values)), values
    found = [(i, tensor) for i, value in enumerate(values) for tensor in tensors_in(value)]
    return [i for i, _ in found], [tensor for _, tensor in found]
