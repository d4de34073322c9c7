"""Work on a stream outside of PyTorch's operations: replays of CUDA graphs, kernels of Triton.

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
_NAME = r"%[\w$.-]+(?:#\d+)?"
_GIVEN = re.compile(r"^\s*(%[\w$.-]+)(?::(\d+))?\s*=\s(.*)$")
_CARRIED = re.compile(rf"(%[\w$.-]+) = ({_NAME})")
_WRITES = re.compile(
    r"\btt\.(?:store|descriptor_store|descriptor_scatter|atomic_rmw|atomic_cas|descriptor_reduce|"
    rf"experimental_descriptor_store)\b\"?[^%]*({_NAME})"
)


class _Pointers:
    """What the values of a kernel are made of: names of its pointers."""

    def __init__(self, pointers: list[str]) -> None:
        self.made_of: dict[str, set[str]] = {name: {name} for name in pointers}
        self._around: list[tuple[list[str], list[str], bool]] = []

    def look(self, lines: list[str]) -> bool:
        """Once through the kernel; whether anything was new."""
        before = sum(map(len, self.made_of.values()))
        self._around.clear()
        for line in lines:
            self._look(line)
        return sum(map(len, self.made_of.values())) > before

    def _look(self, line: str) -> None:
        match = _GIVEN.match(line)
        given: list[str] = []
        right = line
        if match is not None:
            name, count, right = match.groups()
            given = [f"{name}#{i}" for i in range(int(count))] if count else [name]
        if right.lstrip().startswith("scf."):
            self._control(right, given)
        elif ("ptr" in right or "tensordesc" in right) and "tt.load" not in right:
            for name in given:
                self._join(name, re.findall(_NAME, right))

    def _control(self, right: str, given: list[str]) -> None:
        if "scf.yield" in right or "scf.condition" in right:
            results, carried, is_while = self._around[-1] if self._around else ([], [], True)
            values = re.findall(_NAME, right.split(" : ")[0])
            for names in (results, carried):
                for i, name in enumerate(names):
                    self._join(name, values if is_while or i >= len(values) else [values[i]])
        elif right.rstrip().endswith("{"):
            pairs = _CARRIED.findall(right)
            pairs = pairs[1:] if "scf.for" in right else pairs  # the first is the counter
            for i, (name, value) in enumerate(pairs):
                self._join(name, [value])
                if i < len(given):
                    self._join(given[i], [value])
            self._around.append((given, [name for name, _ in pairs], "scf.while" in right))

    def _join(self, name: str, values: list[str]) -> None:
        known = self.made_of.setdefault(name, set())
        for value in values:
            known |= self.made_of.get(value, set())


def written_pointers(text: str) -> list[bool] | None:
    """For each pointer that a kernel of Triton gets, whether it writes there; None: not clear.

    `text` is the kernel in Triton's own language.
    """
    head = _FUNCTION.search(text)
    if head is None or "tt.call" in text:
        return None
    names = _POINTER.findall(head.group(1))
    pointers = _Pointers(names)
    lines = [line.split(" loc(")[0] for line in text[head.end() :].splitlines()]
    while pointers.look(lines):
        pass
    written: set[str] = set()
    for line in lines:
        for name in _WRITES.findall(line):
            written |= pointers.made_of.get(name, set())
    return [name in written for name in names]


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
