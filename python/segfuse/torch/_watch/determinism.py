"""The first operation whose result has other bits in a second run of the same program.

The first run writes a line for each operation: what it is, and hashes of its operands and results.
The second run reads it and compares as it goes.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor

from ... import _native
from .captures import Captures
from .dispatch import Dispatch
from .operation import (
    Operation,
    arguments_of,
    describe,
    has_arrived,
    is_only_written,
    is_scratch,
    operation_of,
    results_of,
    tensors_in,
    written_of,
)
from .place import Modules, Nodes, Place, here
from .report import Reporter
from .unwritten import Unwritten

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PRIMES = (-0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
_ATOMIC = (
    "index_add", "scatter_add", "index_put", "put", "scatter_reduce", "cumsum", "bincount",
    "embedding_dense_backward", "grid_sampler", "upsample", "max_pool", "nll_loss2d", "histc",
    "kthvalue", "median", "index_reduce", "replication_pad", "reflection_pad", "ctc_loss",
)  # fmt: skip

_COPIES = ("copy_", "clone", "_to_copy")
_UNREAD = "unread"
"""In place of the hash of memory that may be partly unwritten and is only copied: what reads the
copy is compared."""


def hash_of(tensor: Tensor) -> int:
    """Of the bits of all elements and their places. Exact integers, so any order gives the same."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor)
    flat = tensor.contiguous().reshape(-1)
    bits = flat.view(_INTEGERS[flat.element_size()]).to(torch.int64)
    places = torch.arange(len(bits), device=bits.device, dtype=torch.int64)
    mixed = (bits ^ (places * _PRIMES[0])) * _PRIMES[1]
    return int(((mixed ^ (mixed >> 29)) * _PRIMES[2]).sum().item())


def _hashable(tensor: Tensor) -> bool:
    return tensor.device.type != "meta" and not tensor.is_quantized


class Determinism(Dispatch):
    """Writes the trace of a first run, or compares with one."""

    def __init__(self, trace: TextIO | None, first: Iterator[str] | None) -> None:
        super().__init__()
        self.operations = 0
        self.finding: dict[str, Any] | None = None
        self._trace, self._first = trace, first
        self._modules, self._nodes = Modules(), Nodes()
        self._inside = threading.local()
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._unwritten = Unwritten()
        self._captures = Captures()

    def start(self) -> None:
        self._modules.start()
        self._captures.start()
        self.__enter__()

    def stop(self) -> None:
        self.__exit__(None, None, None)
        self._captures.stop()
        self._modules.stop()
        if self._first is not None and self.finding is None:
            rest = next(self._first, None)
            if rest is not None:
                before = json.loads(rest)
                self.finding = {
                    "kind": "parted",
                    "sentence": f"the second run ended before operation {self.operations + 1}, "
                    f"{before['name']} at {before['place']} in the first",
                    "cause": _PARTED,
                }

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        operation = operation_of(func)
        inside = getattr(self._inside, "on", False) or os.getpid() != self._pid
        if inside or operation.is_view or self.finding is not None or self._captures.going_on():
            return func(*args, **kwargs)
        if operation.leaves_unwritten:
            result = func(*args, **kwargs)
            for tensor in tensors_in(result):
                self._unwritten.allocated(tensor, here())
            return result
        with self._lock:
            self._inside.on = True
            try:
                operands = self._operands(operation, args, kwargs)
            finally:
                self._inside.on = False
        result = func(*args, **kwargs)
        with self._lock:
            self._inside.on = True
            try:
                self._look(operation, args, kwargs, result, operands, here())
            finally:
                self._inside.on = False
        return result

    def _operands(
        self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[list[Any]]:
        """Name, hash or text, and whether nothing has written it."""
        overwritten = {id(t) for t in written_of(operation, args, kwargs)}
        operands: list[list[Any]] = []
        for name, value in arguments_of(operation, args, kwargs):
            if is_scratch(name):
                continue
            if isinstance(value, (bool, int, float)):
                operands.append([name, repr(value), False])
            for i, tensor in enumerate(tensors_in(value)):
                label = f"{name}[{i}]" if isinstance(value, (list, tuple)) else name
                partly = self._unwritten.is_partly_written(tensor)
                unwritten = partly or self._unwritten.place_of(tensor) is not None
                # A tensor that is overwritten is not an operand, unless the operation adds to it.
                blank = operation.name in ("copy_", "fill_", "zero_") or operation.random
                if id(tensor) in overwritten and (blank or is_only_written(operation, name)):
                    continue
                if _hashable(tensor):
                    label = f"{label} {describe(tensor)}"
                    known = _UNREAD if partly and operation.name in _COPIES else hash_of(tensor)
                    operands.append([label, known, unwritten])
        return operands

    def _look(  # type: ignore[no-untyped-def]
        self, operation, args, kwargs, result, operands: list[list[Any]], place: Place
    ) -> None:
        results = results_of(operation, args, kwargs, result)
        arrived = has_arrived(operation, result)
        results = [tensor for tensor in results if arrived and _hashable(tensor)]
        copies = any(known == _UNREAD for _, known, _ in operands)
        for tensor in results:
            if copies:
                self._unwritten.moved(tensor, place)
            else:
                self._unwritten.written(tensor)
        node = torch._C._current_autograd_node()
        if node is None and torch.is_grad_enabled():
            self._nodes.note(operation.name, place, self._modules.path())
        if not results:
            return
        self.operations += 1
        mine = {
            "name": operation.name,
            "place": str(place),
            "operands": operands,
            "results": [] if copies else [hash_of(tensor) for tensor in results],
        }
        if self._trace is not None:
            self._trace.write(json.dumps(mine) + "\n")
        if self._first is not None:
            line = next(self._first, None)
            before = None if line is None else json.loads(line)
            if before is None or _compared(before) != _compared(mine):
                self.finding = self._explain(operation, mine, before, place, node)
                self.finding["device"] = results[0].device.type

    def _explain(
        self, operation: Operation, mine: dict[str, Any], before: Any, place: Place, node: Any
    ) -> dict[str, Any]:
        origin = None if node is None else self._nodes.origin(node)
        number = self.operations
        finding: dict[str, Any] = {"number": number, "operation": operation.name}
        finding["rows"] = place.rows()
        if origin is not None:
            at = dict(origin.place.rows())["line"]
            finding["rows"].append(("of", f"{origin.name}, {at}"))
        module = self._modules.path() or ("" if origin is None else origin.module)
        if module:
            finding["rows"].append(("module", module))
        if before is None or _what(before) != _what(mine):
            was = "had ended" if before is None else f"did {before['name']} at {before['place']}"
            sentence = f"operation {number} is {operation.name} in the second run; the first {was}"
            return finding | {"kind": "parted", "sentence": sentence, "cause": _PARTED}
        for (name, value, unwritten), (_, former, _) in zip(
            mine["operands"], before["operands"], strict=True
        ):
            if value != former:
                cause = _native.fault_cause("unwritten memory", operation.house)
                kind, cause = ("unwritten", cause) if unwritten else ("given", _GIVEN)
                sentence = f"{operation.name} gets another {name} in the second run, and no "
                sentence += "operation made it differ"
                return finding | {"kind": kind, "sentence": sentence, "cause": cause}
        sentence = f"{operation.name} gave other bits for the same operands"
        return finding | {"kind": "operation", "sentence": sentence, "cause": _cause(operation)}


def _what(record: dict[str, Any]) -> tuple[str, str, list[str]]:
    """Operations that differ in it are not the same one."""
    return record["name"], record["place"], [name for name, _, _ in record["operands"]]


def _compared(record: dict[str, Any]) -> tuple[Any, ...]:
    """Without what only explains a difference."""
    operands = [(name, value) for name, value, _ in record["operands"]]
    return record["name"], operands, record["results"]


_PARTED = (
    "what the program does depends on something outside: the order of a set or of files, the time, "
    "random numbers of Python or NumPy without a seed"
)
_GIVEN = (
    "it comes from outside of PyTorch's operations: data in another order, NumPy's or Python's "
    "random numbers without a seed, the time; seed them, and sort what has no order"
)


def _cause(operation: Operation) -> str:
    if operation.random or operation.name in ("native_dropout", "bernoulli_", "randperm"):
        return (
            "it draws random numbers, and their seed differs: call torch.manual_seed(0) first "
            "(doctor determinism --seed 0 does)"
        )
    if "convolution" in operation.name or "cudnn" in operation.name:
        return (
            "cuDNN chooses among algorithms, some of which add in any order: "
            "torch.backends.cudnn.benchmark = False and torch.backends.cudnn.deterministic = True"
        )
    if operation.house == "matmul":
        return (
            "a library adds in another order (other threads, another workspace): the same number "
            "of threads on a CPU, CUBLAS_WORKSPACE_CONFIG=:4096:8 on a GPU"
        )
    if any(name in operation.name for name in _ATOMIC):
        return (
            _native.fault_cause("nondeterminism", "scatter_add")
            + "; torch.use_deterministic_algorithms(True) chooses such a kernel or refuses"
        )
    return (
        _native.fault_cause("nondeterminism", operation.house)
        + "; torch.use_deterministic_algorithms(True), and the same number of threads"
    )


class _Report:
    def __init__(self, watch: Determinism, files: list[TextIO], vary: str) -> None:
        self._watch, self._files, self._vary = watch, files, vary

    def start(self) -> None:
        self._watch.start()

    def stop(self) -> None:
        self._watch.stop()
        for file in self._files:
            file.close()

    def seen(self) -> bool:
        return self._watch.operations > 0

    def on_change(self, write: Callable[[], None]) -> None:
        pass  # there is one finding, and the end comes soon

    def report(self) -> dict[str, Any]:
        finding = self._watch.finding
        varied = f", the second with other {self._vary}" if self._vary else ""
        text = f"two runs of {self._watch.operations} operations{varied}\n"
        if finding is None:
            text += "same bits: every operation gave the same in both\n"
        else:
            text += f"\nnondeterminism: {finding['sentence']}\n"
            if "number" in finding:
                text += f"  {'operation':<10}number {finding['number']} of the run\n"
            rows = [*finding.get("rows", []), ("cause", finding["cause"])]
            text += "".join(f"  {name:<10}{value}\n" for name, value in rows)
        report = {"operations": self._watch.operations, "finding": finding}
        return {"found": finding is not None, "text": text, "report": report}


def determinism_reporter(options: dict[str, Any], folder: str, key: str) -> Reporter:
    if "seed" in options:
        seed = int(options["seed"])
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
    first = os.environ.get("SEGFUSE_WATCH_FIRST")
    if first is None:
        trace = open(os.path.join(folder, f"trace-{key}.jsonl"), "w", encoding="utf-8")  # noqa: SIM115
        return _Report(Determinism(trace, None), [trace], "")
    path = os.path.join(first, f"trace-{key}.jsonl")
    known = open(path, encoding="utf-8") if os.path.exists(path) else None  # noqa: SIM115
    lines: Iterator[str] = itertools.chain() if known is None else iter(known)
    files: list[TextIO] = [] if known is None else [known]
    return _Report(Determinism(None, lines), files, options.get("vary", ""))
