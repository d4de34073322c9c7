"""Looks at the operations by `recorder/`, which is compiled for the PyTorch that is there.

A dispatch mode costs a tenth of a millisecond for each operation. The recorder costs microseconds,
and reduces many results at once. The judge gets the records whose results are not finite, with all
that a dispatch mode would have seen, when an optimizer's step has been taken.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import math
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ... import _native
from ..._errors import DeviceError
from .captures import Captures
from .judge import Judge, Record, Result
from .operation import READS_VALUES, UNSCALES, has_numbers, is_collective, operation_of
from .place import NOWHERE, Modules, Origin, Place, kind_of, line_place

_SOURCES = Path(__file__).with_name("recorder")
_ARRIVALS = ("", "a number that the program reads", "cast", "")
UNBOUNDED, DEVICES, EVERYWHERE = range(3)
BOUNDS = DEVICES
"""Where results are not read that are finite by a bound (recorder/rules.h)."""
_NO_NUMBERS = ("dtype", "layout", "device", "memory_format", "pin_memory", "out")


# --- compiling ---


def command(source: Path, output: Path, compiler: str) -> list[str]:
    """Compiles an extension for the PyTorch and the Python that are there."""
    root = Path(torch.__file__).parent
    include = root / "include"
    flags = ["-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w"]
    flags.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}")
    places = [
        include, include / "torch/csrc/api/include", sysconfig.get_path("include"), _SOURCES.parent
    ]  # fmt: skip
    libraries = [f"-L{root / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python"]
    places_of = [f"-I{place}" for place in places]
    return [compiler, *flags, *places_of, str(source), "-o", str(output), *libraries]


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return base / "segfuse" / "recorder"


def _is_ours(path: Path) -> bool:
    """Nobody else could have written it."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return status.st_uid == os.geteuid() and status.st_mode & 0o022 == 0


def _compile() -> Path:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise DeviceError("there is no C++ compiler (c++, g++ or $CXX)")
    key = hashlib.sha256()
    for source in sorted(_SOURCES.iterdir()):
        key.update(source.read_bytes())
    key.update(f"{torch.__version__} {torch.__file__} {sys.version} {compiler}".encode())
    folder = _folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours(folder):
        raise DeviceError(f"{folder} can be written by others, expected it to be yours alone")
    library = folder / f"{key.hexdigest()[:32]}.so"
    if not _is_ours(library):
        print(
            "segfuse: compiling the watcher of operations for this PyTorch, once (half a minute)",
            file=sys.stderr,
        )
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            part = Path(scratch) / "recorder.so"
            environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
            done = subprocess.run(
                command(_SOURCES / "recorder.cpp", part, compiler),
                capture_output=True,
                text=True,
                env=environment,
            )
            if done.returncode != 0:
                errors = [line for line in done.stderr.splitlines() if "error" in line]
                raise DeviceError(f"{compiler} failed: {(errors or ['no message'])[0]}")
            part.chmod(0o700)
            part.replace(library)
    return library


_loaded: Any = None


def compiled_here() -> tuple[Any, str]:
    """The recorder, or None and a note why there is none."""
    global _loaded
    if _loaded is None:
        try:
            if torch._C._dispatch_has_backend_fallback(_key()):
                raise DeviceError(f"PyTorch {torch.__version__} uses the dispatch key Fake itself")
            spec = importlib.util.spec_from_file_location("segfuse_recorder", _compile())
            assert spec is not None and spec.loader is not None
            _loaded = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(_loaded)
        except (DeviceError, ImportError, OSError, RuntimeError) as error:
            return None, f"operations are watched by a dispatch mode, which is slow: {error}"
    return _loaded, ""


def _key() -> Any:
    return torch._C._parse_dispatch_key("Fake")


# --- looking ---


def _function(name: tuple[str, str]) -> Any:
    space, _, base = name[0].partition("::")
    return getattr(getattr(getattr(torch.ops, space), base), name[1] or "default")


class Compiled:
    """Gives the judge a record for each operation whose result is not finite."""

    def __init__(self, recorder: Any, judge: Judge, modules: Modules, keep_bytes: int) -> None:
        self._recorder = recorder
        self._judge = judge
        self._modules = modules
        self._keep_bytes = keep_bytes
        self._names: list[Callable[[int], str]] = []
        self._places: dict[Any, Place] = {}
        self._step, self._phase = 1, "forward"
        self._handles: list[Any] = []
        self._triton: tuple[Any, Any] | None = None
        self._watching = False
        self.captures = Captures(self._flush_before_capture, recorder.pause)

    def start(self) -> None:
        self._watching = True
        self._recorder.clear()  # what a watch before could not look at
        self._recorder.start(
            self._facts,
            kind_of,
            self._on_result,
            self.flush,
            self._keep_bytes,
            _native.magnitudes_address(),
            BOUNDS if self._judge.statistics is None else UNBOUNDED,
        )
        self._modules.start(self._recorder.enter_module, self._recorder.leave_module)
        self.captures.start()
        self._let_through_higher_order()
        self._follow_kernels()

    def stop(self) -> None:
        self._watching = False
        self._modules.stop()
        self._recorder.stop()
        torch._ops.HigherOrderOperator.__call__ = self._higher_order  # type: ignore[method-assign]
        self.captures.stop()
        if self._triton is not None:
            self._triton[0].run, self._triton = self._triton[1], None

    def _let_through_higher_order(self) -> None:
        """They dispatch in Python, which does not know the recorder's key."""
        call = self._higher_order = torch._ops.HigherOrderOperator.__call__

        def quiet_call(this: Any, /, *args: Any, **kwargs: Any) -> Any:
            with self.quiet():
                result = call(this, *args, **kwargs)
            self._recorder.bound(EVERYWHERE)  # what it has written is not known
            return result

        torch._ops.HigherOrderOperator.__call__ = quiet_call  # type: ignore[method-assign]

    def _flush_before_capture(self) -> None:
        self.flush()
        self._recorder.bound(UNBOUNDED)  # a replay writes unseen

    def _follow_kernels(self) -> None:
        """Kernels outside of PyTorch's operations write unseen: nothing is known after them."""
        if "torch._inductor.runtime.triton_heuristics" in sys.modules:  # by torch.compile
            self._recorder.bound(UNBOUNDED)
        jit = sys.modules.get("triton.runtime.jit")
        function = getattr(jit, "JITFunction", None)
        if function is None or self._triton is not None:
            return
        run, forget = function.run, self._recorder.bound
        self._triton = (function, run)

        @functools.wraps(run)
        def watched_run(*args: Any, **kwargs: Any) -> Any:
            forget(EVERYWHERE)
            return run(*args, **kwargs)

        function.run = watched_run

    def _facts(self, name: str, overload: str) -> tuple[Any, ...]:
        operation = operation_of(_function((name, overload)))
        if operation.name == UNSCALES:
            self._judge.scaler_seen = True
        adds = operation.name.endswith("_") and not operation.random
        return (
            operation.is_view or is_collective(operation),  # its results come later
            operation.leaves_unwritten, operation.name in READS_VALUES,
            operation.house == "cast", adds and operation.name not in ("copy_", "fill_", "zero_"),
            operation.makes_numbers, [i for i, _ in operation.written],
        )  # fmt: skip

    def _on_result(self, module: Any, output: Any) -> None:
        self._modules.on_result(module, output)

    @property
    def operations(self) -> int:
        return self._recorder.operations()

    @property
    def devices(self) -> set[str]:
        cpu, cuda = self._recorder.devices()
        return {name for name, seen in (("cpu", cpu), ("cuda", cuda)) if seen}

    @property
    def phase(self) -> str:
        return self._phase

    @phase.setter
    def phase(self, value: str) -> None:
        self._phase = value
        self._recorder.set_phase(value == "optimizer")

    @property
    def step(self) -> int:
        return self._step

    @step.setter
    def step(self, value: int) -> None:
        self._step = value
        self._recorder.set_step(value)

    def pending(self) -> bool:
        return self._recorder.pending()

    def data_of(self, parameters: list[Tensor]) -> list[Tensor]:
        return parameters  # the recorder keeps memory, not handles

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """For operations that are not the program's."""
        before = self._recorder.exclude(True)
        try:
            yield
        finally:
            self._recorder.exclude(before)

    def expect(
        self,
        name: Callable[[int], str],
        tensors: list[Tensor],
        guard: Tensor | None = None,
        always: bool = False,
        bounded: bool = False,
    ) -> None:
        if self.captures.going_on():
            return
        self._recorder.expect(len(self._names), tensors, guard, bounded)
        self._names.append(name)

    def flush(self) -> None:
        if self.captures.going_on():
            return
        with self.quiet():
            self._recorder.finish()
            everything = self._judge.statistics is not None
            while (told := self._recorder.next(self._judge.marks, everything)) is not None:
                self._resolve(told)
            self._recorder.clear()
            self._names.clear()
        if self._watching:
            self._follow_kernels()

    def _resolve(self, told: dict[str, Any]) -> None:
        magnitudes = [result[-1] for result in told["results"]]
        results = [
            Result(tensor, key, None if shape is None else torch.Size(shape), dtype, covers,
                   StorageWeakRef.from_weakref(weak) if weak else None, version)
            for tensor, key, shape, dtype, covers, weak, version, _ in told["results"]
        ]  # fmt: skip
        if told["arrival"] < 0:
            self._judge.resolve(self._record(told, results), magnitudes)
        elif not told["guard"] > 0:
            for result, magnitude in zip(results, magnitudes, strict=True):
                if not math.isfinite(magnitude):
                    record = Record(
                        told["number"], told["step"], operation_of(torch.ops.aten.detach.default),
                        "forward", self._place(told["place"]), "", "", None, [result],
                        arrival=self._names[told["arrival"]](result.version),
                    )  # fmt: skip
                    self._judge.resolve(record, [magnitude])

    def _place(self, told: Any) -> Place:
        if told is None:
            return NOWHERE
        place = self._places.get(told)
        if place is None:
            place = self._places[told] = line_place(*told)
        return place

    def _module(self, told: Any) -> str:
        return "" if told is None else self._modules.path_of(*told)

    def _origin(self, told: Any) -> Origin | None:
        if told is None:
            return None
        func, place, module = told
        return Origin(operation_of(_function(func)).name, self._place(place), self._module(module))

    def _record(self, told: dict[str, Any], results: list[Result]) -> Record:
        operation = operation_of(_function(told["func"]))
        record = Record(
            told["number"], told["step"], operation, told["phase"], self._place(told["place"]),
            self._module(told["module"]), told["node"], self._origin(told["origin"]), results,
            arrival=_ARRIVALS[told["kind"]],
        )  # fmt: skip
        if told["unwritten"] is not None:
            record.unwritten = self._place(told["unwritten"])
        uses: dict[int, list[tuple[str, int, int, bool]]] = {}
        for argument, position, key, version, overwritten in told["operands"]:
            name = operation.names[argument]
            label = name if position < 0 else f"{name}[{position}]"
            uses.setdefault(argument, []).append((label, position, version, overwritten))
            if name != "out":
                record.keys.append((label, key))
        for argument, value in told["arguments"]:
            name = operation.names[argument]
            if name in _NO_NUMBERS:
                continue
            if isinstance(value, float) and not math.isfinite(value):
                record.given_infinity = True
            if isinstance(value, (int, float)):
                record.operands.append((name, value))
            for label, position, version, overwritten in uses.get(argument, []):
                tensor = value if position < 0 or value is None else value[position]
                if overwritten:
                    tensor, version = told["before"], 0
                if isinstance(tensor, Tensor) and (has_numbers(tensor) or not overwritten):
                    record.operands.append((label, tensor))
                    record.versions.append(version)
        return record
