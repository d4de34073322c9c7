"""`torch.compile(model, backend="segfuse")`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule

from ..._errors import UsageError
from .divide import Divided, divide
from .table import TABLE

_OPTIONS = {"threads": 0, "excess_precision": False}

# What PyTorch does in one operation that segfuse would do in many, or with other random numbers;
# and what its decompositions do in another way: those of index_add and index_copy count an index
# below 0 from the end, and that of linspace rounds other integers.
_KEPT_WHOLE = (
    "bernoulli.p", "bernoulli.default", "rrelu_with_noise", "rrelu_with_noise_functional",
    "native_dropout", "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d",
    "upsample_bicubic2d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "upsample_nearest2d_backward", "grid_sampler_2d", "im2col", "col2im", "max_unpool2d",
    "max_unpool3d", "avg_pool2d_backward", "adaptive_max_pool2d",
    "_scaled_dot_product_flash_attention_for_cpu", "_embedding_bag", "renorm", "_euclidean_dist",
    "index_add", "index_copy", "linspace",
)  # fmt: skip

# Operations outside the core, without a row, that are made of operations with one.
_TAKEN_APART = (
    "native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training", "leaky_relu",
    "elu", "hardtanh",
)  # fmt: skip

Watcher = Callable[[str, Divided], None]


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Those of core ATen, except for operations with a row in the table or that are kept whole."""
    aten = torch.ops.aten
    found = dict(core_aten_decompositions().items())
    extra = [getattr(aten, name) for name in _TAKEN_APART if hasattr(aten, name)]
    found |= get_decompositions(extra)
    return {
        op: _where_accepted(function)
        for op, function in found.items()
        if op not in TABLE and op.name().startswith("aten::") and not _is_kept(op)
    }


def _where_accepted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Some refuse what the operation accepts (addcmul of integers by 0.5): it stays whole then."""

    @functools.wraps(function)
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except ValueError:
            return NotImplemented

    return decomposed


def _is_kept(op: Any) -> bool:
    name = op.name().removeprefix("aten::")
    return name in _KEPT_WHOLE or name.partition(".")[0] in _KEPT_WHOLE


def settings(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    if mode is not None:
        raise UsageError(f"found the mode {mode!r}, expected none: segfuse has options only")
    unknown = sorted(set(options or ()) - set(_OPTIONS))
    if unknown:
        raise UsageError(f"found the options {unknown}, expected some of {sorted(_OPTIONS)}")
    precision = "tf32" if _allows_tf32() else "float32"
    fixed = {"check_numerics": False, "device": None, "precision": precision}
    return {**_OPTIONS, **(options or {}), **fixed}


def _allows_tf32() -> bool:
    """Whether the user lets GPUs multiply in TF32; Dynamo compiles again when that changes."""
    matmul = torch.backends.cuda.matmul
    try:
        return bool(matmul.allow_tf32)
    except RuntimeError:  # it was set by `fp32_precision`, which is read by that name only
        return bool(matmul.fp32_precision == "tf32")


def segfuse(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    watch: Watcher | None = None,
) -> Callable[..., Any]:
    """What `torch.compile` calls with a graph of its own and examples of its inputs."""
    how = settings(mode, options)

    def compiler(name: str) -> Callable[..., Any]:
        def compile_graph(graph: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            divided = divide(graph, name, how)
            if watch is not None:
                watch(name, divided)
            return _boxed(divided.module)

        return compile_graph

    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decompositions(),
    )
    return backend(module, inputs)  # type: ignore[no-any-return]


def _boxed(module: GraphModule) -> Callable[..., Any]:
    """The function of a list, which it empties: what is not needed any more is let go."""
    boxed = getattr(torch.fx.graph, "_BoxedCodeGen", None)
    if boxed is None:
        return make_boxed_func(module.forward)  # type: ignore[no-any-return]
    module.graph.set_codegen(boxed())
    module.recompile()

    def call(inputs: list[Any]) -> Any:
        return module.forward(inputs)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
