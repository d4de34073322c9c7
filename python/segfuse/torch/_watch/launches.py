"""What runs on a stream and is no operation of PyTorch: replays of CUDA graphs, kernels of Triton.

A replay counts as one operation that uses all that was used while its graph was captured. Kernels
of Triton are seen at their launch; which of their tensors they write is in the compiled kernel.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .dispatch import when_imported

_FUNCTION = re.compile(r"tt\.func public @[^(]*\((.*?)\) (?:-> .*?)?(?:attributes|\{)", re.S)
_POINTER = re.compile(r"(%[\w$.-]+): (?:!tt\.ptr|!tt\.tensordesc)")
_VALUE = re.compile(r"%[\w$.-]+")
_WRITES = re.compile(
    r"\btt\.(?:store|descriptor_store|descriptor_scatter|atomic_rmw|atomic_cas|descriptor_reduce|"
    r"experimental_descriptor_store)\b\"?[^%]*(%[\w$.-]+)(?:[^%]*(%[\w$.-]+))?"
)


def written_pointers(text: str) -> list[bool] | None:
    """For each pointer that a kernel of Triton gets, whether it writes there; None: not clear.

    `text` is the kernel in Triton's own language. A value that is made of several pointers counts
    as each of them.
    """
    head = _FUNCTION.search(text)
    if head is None or "tt.call" in text:
        return None
    pointers = _POINTER.findall(head.group(1))
    made_of: dict[str, set[str]] = {name: {name} for name in pointers}
    loops: list[list[str]] = []  # what the loops around a line carry, and what they give
    changed = True
    lines = [line.split(" loc(")[0].split("loc(#")[0] for line in text[head.end() :].splitlines()]
    while changed:
        changed = False
        loops.clear()
        for line in lines:
            left, equals, right = line.partition(" = ")
            given = [v.split("#")[0] for v in _VALUE.findall(left)] if equals else []
            if not equals:
                right = line
            if "iter_args(" in right or "scf.while" in right or "scf.if" in right:
                carried = re.findall(r"(%[\w$.-]+) = (%[\w$.-]+)", right)
                loops.append([*given, *(name for name, _ in carried)])
                for name, value in carried:
                    changed |= _join(made_of, name, [value])
                for name in given:
                    changed |= _join(made_of, name, [value for _, value in carried])
                continue
            values = [v.split("#")[0] for v in _VALUE.findall(right)]
            if "scf.yield" in right or "scf.condition" in right:
                for name in loops[-1] if loops else []:
                    changed |= _join(made_of, name, values)
            elif "ptr" in right or "tensordesc" in right:
                if " tt.load" not in f" {right}" or "!tt.ptr<!tt.ptr" in right:
                    for name in given:
                        changed |= _join(made_of, name, values)
    written: set[str] = set()
    for line in lines:
        for match in _WRITES.finditer(line):
            written |= made_of.get(match.group(1).split("#")[0], set())
            if "atomic" in line and match.group(2) is not None:  # a mode of memory may come first
                written |= made_of.get(match.group(2).split("#")[0], set())
    return [name in written for name in pointers]


def _join(made_of: dict[str, set[str]], name: str, values: list[str]) -> bool:
    known = made_of.setdefault(name, set())
    before = len(known)
    for value in values:
        known |= made_of.get(value, set())
    return len(known) > before


def _tensors(value: Any) -> Iterator[Tensor]:
    """As a kernel gets them: tensors, and descriptors with one."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(getattr(value, "base", None), Tensor):
        yield value.base
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


class Launches:
    """Stands in for methods of PyTorch and Triton until stop()."""

    def __init__(self, recorder: Any, stream: Callable[[], int]) -> None:
        self._recorder = recorder
        self._stream = stream
        self._undo: list[Callable[[], None]] = []
        self._graphs: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._written: dict[int, tuple[Any, list[bool] | None]] = {}

    def start(self) -> None:
        graph = torch.cuda.CUDAGraph
        self._replace(graph, "capture_begin", self._begin)
        self._replace(graph, "capture_end", self._end)
        self._replace(graph, "replay", self._replay)
        self._replace(torch.cuda, "empty_cache", self._empty_cache)
        self._undo.append(when_imported("triton.runtime.jit", self._follow_triton))

    def stop(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _replace(self, owner: Any, name: str, by: Callable[..., Any]) -> None:
        before = getattr(owner, name)

        def instead(*arguments: Any, **options: Any) -> Any:
            return by(before, *arguments, **options)

        setattr(owner, name, instead)
        self._undo.append(lambda: setattr(owner, name, before))

    def _follow_triton(self, module: Any) -> None:
        self._replace(module.JITFunction, "run", self._run)

    def _begin(self, before: Callable[..., Any], graph: Any, *args: Any, **options: Any) -> Any:
        result = before(graph, *args, **options)
        self._recorder.begin_capture()
        return result

    def _end(self, before: Callable[..., Any], graph: Any) -> Any:
        self._graphs[graph] = self._recorder.end_capture()
        return before(graph)

    def _replay(self, before: Callable[..., Any], graph: Any) -> Any:
        result = before(graph)
        uses = self._graphs.get(graph)
        if uses:
            self._recorder.use(self._stream(), "replay of a CUDA graph", uses)
        return result

    def _empty_cache(self, before: Callable[[], None]) -> None:
        """Memory that goes back to the driver goes there when the device has done all its work."""
        there = torch.cuda.is_initialized()
        held = torch.cuda.memory_reserved() if there else 0
        before()
        if there and torch.cuda.memory_reserved() < held:
            self._recorder.synchronize_device()

    def _run(self, before: Callable[..., Any], kernel: Any, *args: Any, **options: Any) -> Any:
        compiled = before(kernel, *args, **options)
        if options.get("warmup") or self._recorder.is_within_operation():
            return compiled
        names = kernel.arg_names
        values = dict(zip(names, args, strict=False))
        values.update((name, options[name]) for name in names if name in options)
        tensors = [t for name in names if name in values for t in _tensors(values[name])]
        written = self._written_by(compiled)
        if written is None or len(written) != len(tensors):
            written = [False] * len(tensors)  # no report is better than a wrong one
        name = f"kernel {getattr(kernel, '__name__', 'of Triton')} of Triton"
        self._recorder.enqueue(name, list(zip(tensors, written, strict=True)), self._stream())
        return compiled

    def _written_by(self, compiled: Any) -> list[bool] | None:
        known = self._written.get(id(compiled))
        if known is None:
            text = getattr(compiled, "asm", {}).get("ttir")
            known = (compiled, written_pointers(text) if isinstance(text, str) else None)
            self._written[id(compiled)] = known
        return known[1]
