"""Where in the user's program an operation comes from: lines, modules, backward's forward."""

from __future__ import annotations

import functools
import linecache
import os
import sys
import sysconfig
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

_HIDDEN, _LIBRARY, _USER = 0, 1, 2
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_STANDARD = tuple(
    os.path.abspath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")
)
_MOST_NODES = 200_000
_STACK = 12

_kinds: dict[str, int] = {}


def kind_of(file: str) -> int:
    kind = _kinds.get(file)
    if kind is None:
        path = os.path.abspath(file)
        if "site-packages" in path or "dist-packages" in path:
            kind = _HIDDEN if path.startswith((_TORCH + os.sep, _OURS + os.sep)) else _LIBRARY
        elif file.startswith("<") or path.startswith((*_STANDARD, _TORCH + os.sep, _OURS + os.sep)):
            kind = _HIDDEN
        else:
            kind = _USER
        _kinds[file] = kind
    return kind


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a program."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.number} in {self.function}"

    def with_text(self) -> str:
        text = linecache.getline(self.file, self.number).strip()
        path = os.path.relpath(self.file)
        if path.startswith(".."):
            path = self.file
        return f"{path}:{self.number} in {self.function}" + (f": {text}" if text else "")


@dataclass(frozen=True, slots=True)
class Place:
    """The innermost line that is not PyTorch's, and the line of the user's own program behind it
    where that is another one (a call of a library)."""

    line: Line | None
    caller: Line | None = None

    def __str__(self) -> str:
        return "no line of Python" if self.line is None else str(self.line)

    def rows(self) -> list[tuple[str, str]]:
        rows = [("line", "no line of Python" if self.line is None else self.line.with_text())]
        if self.caller is not None:
            rows.append(("called at", self.caller.with_text()))
        return rows


NOWHERE = Place(None)
_places: dict[tuple[CodeType | None, int, CodeType | None, int], Place] = {}


def _line_of(code: CodeType, number: int) -> Line:
    return Line(code.co_filename, number, code.co_name)


def here() -> Place:
    """The place of the operation that is being dispatched."""
    frame: FrameType | None = sys._getframe(1)
    inner, inner_line = None, 0
    while frame is not None:
        kind = kind_of(frame.f_code.co_filename)
        if kind == _USER:
            break
        if kind == _LIBRARY and inner is None:
            inner, inner_line = frame.f_code, frame.f_lineno
        frame = frame.f_back
    outer = None if frame is None else frame.f_code
    number = 0 if frame is None else frame.f_lineno
    key = (inner, inner_line, outer, number)
    place = _places.get(key)
    if place is None:
        if inner is None:
            place = NOWHERE if outer is None else Place(_line_of(outer, number))
        else:
            caller = None if outer is None else _line_of(outer, number)
            place = Place(_line_of(inner, inner_line), caller)
        _places[key] = place
    return place


def line_place(inner: tuple[CodeType, int] | None, outer: tuple[CodeType, int] | None) -> Place:
    """Of the innermost line of a library and the line of the program behind it."""
    caller = None if outer is None else _line_of(*outer)
    if inner is None:
        return NOWHERE if caller is None else Place(caller)
    return Place(_line_of(*inner), caller)


_stacks: dict[tuple[tuple[CodeType, int], ...], str] = {}


def stack_here() -> str:
    """The lines of the program that lead here, innermost first, without PyTorch's own."""
    frames: list[tuple[CodeType, int]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(frames) < _STACK:
        if kind_of(frame.f_code.co_filename) != _HIDDEN:
            frames.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    key = tuple(frames)
    text = _stacks.get(key)
    if text is None:
        text = "\n".join(str(_line_of(code, number)) for code, number in frames)
        _stacks[key] = text = text or "no line of Python"
    return text


class Modules:
    """Which module's forward runs in this thread.

    `torch.nn.Module`'s call is replaced: a global hook would cost each call ten times as much.
    """

    def __init__(self) -> None:
        self._local = threading.local()
        self._names: weakref.WeakKeyDictionary[nn.Module, dict[int, str]] = (
            weakref.WeakKeyDictionary()
        )
        self._call: Any = None
        self.on_result = lambda module, output: None

    def start(self, enter: Any = None, leave: Any = None) -> None:
        """`enter` and `leave` keep the modules in place of this, which then has their names."""
        enter, leave = enter or self._enter, leave or self._leave
        call = self._call = nn.Module._call_impl
        is_compiling = torch.compiler.is_compiling

        def _call_impl(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or self._call is None:  # what is compiled whole stays what it is
                return call(module, *args, **kwargs)
            enter(module)
            output = None
            try:
                output = call(module, *args, **kwargs)
                return output
            finally:
                leave(module, output)

        # In PyTorch's file: torch.compile begins with what is called there.
        _call_impl.__code__ = _call_impl.__code__.replace(co_filename=call.__code__.co_filename)
        nn.Module._call_impl = functools.wraps(call)(_call_impl)  # type: ignore[method-assign]

    def stop(self) -> None:
        nn.Module._call_impl, self._call = self._call, None  # type: ignore[method-assign]

    def _stack(self) -> list[nn.Module]:
        stack = getattr(self._local, "stack", None)
        if stack is None:
            stack = self._local.stack = []
        return stack

    def _enter(self, module: nn.Module) -> None:
        self._stack().append(module)

    def _leave(self, module: nn.Module, output: object) -> None:
        stack = self._stack()
        while stack and stack.pop() is not module:
            pass
        if not stack:
            self.on_result(module, output)

    def _name_in(self, root: nn.Module, module: nn.Module) -> str:
        names = self._names.get(root)
        if names is None or id(module) not in names:
            names = {id(m): name for name, m in root.named_modules()}
            names.setdefault(id(module), type(module).__name__)
            self._names[root] = names
        return names[id(module)]

    def path(self) -> str:
        """ "encoder.layers.0 (Linear)"; empty outside of modules."""
        stack = self._stack()
        return self.path_of(stack[0], stack[-1]) if stack else ""

    def path_of(self, root: nn.Module, module: nn.Module) -> str:
        kind = type(module).__name__
        name = self._name_in(root, module)
        return f"{name} ({kind})" if name else kind


@dataclass(frozen=True, slots=True)
class Origin:
    """The forward operation that a node of backward belongs to."""

    name: str
    place: Place
    module: str


class Nodes:
    """Forward operations by the sequence numbers of their autograd nodes.

    A node gets its number before its operation is dispatched, so the last number that was given
    out when an operation comes by is its own; operations without a node come later with the same
    number. Numbers count by thread: what another thread recorded under a number makes the origin
    unknown.
    """

    def __init__(self) -> None:
        self._origins: OrderedDict[int, tuple[int, Origin | None]] = OrderedDict()

    def note(self, name: str, place: Place, module: str) -> None:
        number = torch._C._autograd._get_sequence_nr() - 1
        thread = threading.get_ident()
        known = self._origins.get(number)
        if known is not None:
            if known[0] != thread:
                self._origins[number] = (known[0], None)
            return
        self._origins[number] = (thread, Origin(name, place, module))
        if len(self._origins) > _MOST_NODES:
            self._origins.popitem(last=False)

    def origin(self, node: object) -> Origin | None:
        known = self._origins.get(node._sequence_nr())  # type: ignore[attr-defined]
        return None if known is None else known[1]
