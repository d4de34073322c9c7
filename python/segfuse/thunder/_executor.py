"""What segfuse fuses of Thunder's traces."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thunder.core import utils
from thunder.core.compile_data import get_compile_option
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, TensorProxy, unvariableify
from thunder.core.pytree import tree_flatten
from thunder.core.rematerialization import rematerialize
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace
from thunder.core.transform_common import dce
from thunder.executors.data_dependent_partition import Node, fuse_bound_symbols
from thunder.executors.passes import update_fusion_call_ctx
from thunder.executors.torchex import ex as torch_executor
from thunder.executors.utils import Region
from thunder.extend import FUEL_LEVEL, FusionExecutor

from .._errors import UsageError
from .._native import __version__
from ..torch._compile.backend import settings
from ..torch._compile.divide import FEWEST, overwrites
from ..torch._compile.step import RefusedError, Step, counts, step_of
from ._region import RegionCall, function_of, graph_of, guess

_MOST_VERDICTS = 65536


@dataclass(frozen=True)
class Verdict:
    """Whether a symbol is fused."""

    name: str
    refusal: str | None
    operations: int = 0
    """Those of ATen that it is made of; views are not counted."""


class SegfuseExecutor(FusionExecutor):  # type: ignore[misc]
    """Fuses the symbols of a trace that Thunder's PyTorch executor would run by operations of ATen
    that segfuse has."""

    def __init__(self) -> None:
        super().__init__("segfuse", version=__version__)
        self._fuel: int | FUEL_LEVEL = FUEL_LEVEL.UNLIMITED
        self._verdicts: dict[Any, Verdict] = {}

    @property
    def refused(self) -> dict[str, str]:
        """The symbols that other executors run, of all traces so far, each with a reason."""
        return {v.name: v.refusal for v in self._verdicts.values() if v.refusal is not None}

    def get_fuel(self, amount: int = 1, /) -> bool:
        if self._fuel is FUEL_LEVEL.UNLIMITED:
            return True
        if self._fuel < amount:
            return False
        self._fuel -= amount
        return True

    def set_fuel(self, value: int | FUEL_LEVEL) -> None:
        """How many regions are fused from now on."""
        if value is not FUEL_LEVEL.UNLIMITED and (not isinstance(value, int) or value < 0):
            raise UsageError(f"found the fuel {value!r}, expected a count or FUEL_LEVEL.UNLIMITED")
        self._fuel = value

    def can_execute(self, bsym: BoundSymbol) -> bool:
        return self.can_fuse(bsym)

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """A symbol is taken as a whole: where the PyTorch executor has no such symbol, as for
        attention with a mask, other executors are asked before it is taken apart."""
        return self._verdict(bsym).refusal is None

    def _verdict(self, bsym: BoundSymbol) -> Verdict:
        if bsym.sym.is_fusion or not torch_executor.can_execute(bsym):
            return _NOT_PYTORCH
        leaves, tree = tree_flatten((bsym.args, bsym.kwargs))
        key = bsym.sym.id, tree, tuple([_described(x) for x in leaves])
        try:
            verdict = self._verdicts.get(key)
        except TypeError:  # an argument that has no hash
            return _judge(bsym)
        if verdict is None:
            if len(self._verdicts) >= _MOST_VERDICTS:
                self._verdicts.clear()
            verdict = self._verdicts[key] = _judge(bsym)
        return verdict

    def fuse(self, region: Region, fusion_counter: int) -> BoundSymbol:
        inputs = [unvariableify(x) for x in region.inputs]
        outputs = [unvariableify(x) for x in region.outputs]
        threads = get_compile_option(
            "segfuse_threads", "Threads of the CPU for a region of segfuse."
        )
        how = settings(None, {} if threads is None else {"threads": threads})
        name = f"segfuse{fusion_counter}"
        call = RegionCall(name, function_of(region.bound_symbols, inputs, outputs), how)
        return self.register_temporary_operation(
            name, call, inputs=inputs, outputs=outputs, bsyms=list(region.bound_symbols)
        )

    def fusion_pass(self, trace: TraceCtx) -> TraceCtx:
        start = time.perf_counter_ns()
        producers, consumers = utils.producers_and_consumers(trace)

        def may_join(a: Node, b: Node) -> bool:
            return all(len(n.group_bsyms) > 1 or self.can_fuse(n.group_bsyms[0]) for n in (a, b))

        fused = from_trace(trace)
        fused.bound_symbols = []
        count = 0
        for group in fuse_bound_symbols(trace, may_join):
            if self._gains(group) and self.get_fuel():
                fused.bound_symbols.append(self.fuse(Region(producers, consumers, group), count))
                count += 1
            else:
                fused.bound_symbols += group
        fused = update_fusion_call_ctx(dce(rematerialize(fused)))
        took = (time.perf_counter_ns() - start) // 1_000_000
        fused.set_provenance(TraceProvenance(f"Fusion by segfuse (took {took} milliseconds)"))
        return fused

    def _gains(self, group: Sequence[BoundSymbol]) -> bool:
        verdicts = [self._verdict(bsym) for bsym in group]
        known = all(v.refusal is None for v in verdicts)
        return known and sum(v.operations for v in verdicts) >= FEWEST


_NOT_PYTORCH = Verdict("", "Thunder's PyTorch executor does not run it")


def _described(x: Any) -> Any:
    """What of an argument a verdict depends on."""
    if isinstance(x, (TensorProxy, NumberProxy)):
        return type(x), guess(x)
    return type(x), x


def _judge(bsym: BoundSymbol) -> Verdict:
    name = bsym.sym.name
    if bsym.sym.id is PrimIDs.UPDATE_ALIASES:
        return Verdict(name, "it keeps operations in place in their order")
    if not bsym.sym.is_prim and not bsym.subsymbols:
        return Verdict(name, "Thunder removes such a symbol from regions")
    inputs = list({x.name: x for x in bsym.flat_proxy_args}.values())
    numbers = [x for x in inputs if isinstance(x, NumberProxy)]
    for x in (*inputs, *bsym.flat_proxy_outs):
        if type(x) is not TensorProxy and not any(x is number for number in numbers):
            return Verdict(name, f"{x.name} is a {type(x).__name__}")
    try:
        function = function_of([bsym], inputs, bsym.flat_proxy_outs)
        graph = graph_of(function, [guess(x) for x in inputs]).graph
    except Exception as error:  # noqa: BLE001 (what PyTorch cannot trace is not fused)
        return Verdict(name, f"PyTorch cannot trace it ({type(error).__name__}: {error})")
    steps: dict[Any, Step] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if overwrites(node):
            return Verdict(name, f"{node.target} overwrites a tensor")
        try:
            steps[node] = step_of(node, steps)
        except RefusedError as refusal:
            return Verdict(name, f"{node.target}: {refusal}")
    return Verdict(name, None, sum(counts(node, step) for node, step in steps.items()))
