"""Regions of Thunder's traces as graphs of ATen operations, and as parts of segfuse's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from thunder.core import prims
from thunder.core.codeutils import SigInfo
from thunder.core.devices import to_torch_device
from thunder.core.dtypes import to_torch_dtype
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors.passes import transform_for_execution
from thunder.executors.torchex import ex as torch_executor
from thunder.executors.torchex import no_autocast
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from ..torch._compile.backend import decompositions
from ..torch._compile.divide import Divided, divide


@dataclass(frozen=True)
class Layout:
    """What a graph knows of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def empty(self) -> Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


Given: TypeAlias = "Layout | int | float | bool"
"""An input of a region: numbers are part of its graph."""


def guess(x: Proxy) -> Given:
    """What a proxy stands for. Thunder knows no strides: tensors are taken to be contiguous."""
    if not isinstance(x, TensorProxy):
        return x.value  # type: ignore[no-any-return]
    shape = tuple(int(s.value) if isinstance(s, NumberProxy) else int(s) for s in x.shape)
    return Layout(shape, _dense(shape), to_torch_dtype(x.dtype), to_torch_device(x.device))


@functools.lru_cache(maxsize=4096)
def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def function_of(
    symbols: Sequence[BoundSymbol], inputs: Sequence[Proxy], outputs: Sequence[Proxy]
) -> Callable[..., Any]:
    """What Thunder's PyTorch executor makes of symbols, as a function of the inputs."""
    trace = TraceCtx(None)
    trace.args, trace.kwargs = list(inputs), {}
    trace.names = {x.name for x in inputs}
    with tracectx(trace):
        for x in inputs:
            prims.unpack_trivial(x, name=x.name)
    waiting = list(symbols)
    while waiting:
        symbol = waiting.pop()
        trace.names |= {x.name for x in symbol.flat_proxy_outs}
        waiting += symbol.subsymbols
    trace.bound_symbols += [*symbols, prims.python_return.bind(tuple(outputs), output=None)]
    trace._siginfo = SigInfo("region")
    trace._siginfo.args = [(x.name, None) for x in inputs]
    executable = transform_for_execution(trace, executors_list=(torch_executor,))
    return executable.python_callable(include_decorators=False)  # type: ignore[no-any-return]


def graph_of(function: Callable[..., Any], given: Sequence[Given]) -> GraphModule:
    """The operations of ATen that a function of `function_of` does, decomposed as for
    `torch.compile`."""
    with FakeTensorMode(), torch.no_grad():
        examples = [x.empty() if isinstance(x, Layout) else x for x in given]
        graph = make_fx(no_autocast(function), decompositions())(*examples)
    graph.graph.eliminate_dead_code()
    return graph


class RegionCall:
    """A region as a function of tensors and numbers. It is divided into parts when it meets sizes
    and strides for the first time, so that its results have PyTorch's strides."""

    def __init__(self, name: str, function: Callable[..., Any], how: Mapping[str, Any]) -> None:
        self.__name__ = name
        self.divided: list[Divided] = []
        self._function, self._how = function, how
        self._calls: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        key = tuple([(x.shape, x.stride()) if isinstance(x, Tensor) else repr(x) for x in args])
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = self._compiled(args)
        return call(*args)

    def _compiled(self, args: Sequence[Any]) -> Callable[..., Any]:
        given = [
            Layout(tuple(x.shape), x.stride(), x.dtype, x.device) if isinstance(x, Tensor) else x
            for x in args
        ]
        divided = divide(graph_of(self._function, given), self.__name__, self._how)
        self.divided.append(divided)
        return divided.module.forward
