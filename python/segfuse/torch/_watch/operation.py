"""What an operation of PyTorch is, as far as the doctor has to know it: once for each operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Within vmap() and its like: what it wraps dispatches again.
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor

PLAIN = (Tensor, torch.nn.Parameter)
"""What holds numbers itself: other kinds of tensors dispatch again to such."""

READS_VALUES = ("_local_scalar_dense", "item")
UNSCALES = "_amp_foreach_non_finite_check_and_unscale_"

_UNWRITTEN = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_",
    "empty_permuted", "_efficientzerotensor",
}  # fmt: skip

_SCRATCH = {
    "mkldnn_rnn_layer": (3,), "_cudnn_rnn": (3,), "miopen_rnn": (3,), "_ctc_loss": (1,),
    "cudnn_batch_norm": (3,), "_batch_norm_with_update": (3,),
    "_scaled_dot_product_flash_attention": (6, 7, 8), "_flash_attention_forward": (2, 3, 4),
    "_scaled_dot_product_efficient_attention": (2, 3), "_efficient_attention_forward": (2, 3),
    "_scaled_dot_product_cudnn_attention": (6, 7, 8), "_cudnn_attention_forward": (6, 7, 8),
}  # fmt: skip
"""Results that only the operation's own backward pass reads, and that may be partly unwritten:
workspaces, and states of random numbers where there is no dropout."""

_SCRATCH_ARGUMENTS = {
    "workspace", "log_alpha", "reserve", "reserveSpace", "noise", "rng_state", "unused",
    "philox_seed", "philox_offset",
}  # fmt: skip
"""What operations of backward passes call them, and what they write beside their result."""

_OURS = {
    "mm": "matmul", "bmm": "matmul", "addmm": "matmul", "baddbmm": "matmul", "mv": "matmul",
    "dot": "matmul", "addmv": "matmul", "convolution": "matmul", "linear": "matmul",
    "convolution_backward": "matmul", "_foreach_mul": "mul", "_foreach_div": "div",
    "_foreach_sqrt": "sqrt", "_foreach_addcdiv": "div", "addcdiv": "div", "addcmul": "mul",
    "_softmax": "logsumexp", "_log_softmax": "logsumexp", "_softmax_backward_data": "mul",
    "_log_softmax_backward_data": "mul", "native_layer_norm": "welford", "var": "welford",
    "native_batch_norm": "welford", "var_mean": "welford", "std": "welford", "mean": "sum",
    "cumsum": "sum", "linalg_vector_norm": "sum", "norm": "sum", "true_divide": "div",
    "rsub": "sub", "_to_copy": "cast", "copy": "cast", "index_add": "scatter_add",
    "index_put": "scatter_add", "log2": "log", "log10": "log", "acos": "sqrt", "asin": "sqrt",
    "lgamma": "log", "logit": "log", "xlogy": "log", "binary_cross_entropy": "log",
    "_safe_softmax": "logsumexp", "native_group_norm": "welford", "float_power": "pow",
    "embedding_dense_backward": "scatter_add", "nll_loss_forward": "sum", "addr": "matmul",
}  # fmt: skip
"""Names of segfuse's operations that go wrong for the same reasons."""

_GRADIENTS = {
    "SqrtBackward": "sqrt", "RsqrtBackward": "rsqrt", "PowBackward": "pow", "LogBackward": "log",
    "DivBackward": "div", "ReciprocalBackward": "reciprocal", "ExpBackward": "exp",
    "NormBackward": "sqrt", "LinalgVectorNormBackward": "sqrt", "StdBackward": "sqrt",
    "LogsumexpBackward": "logsumexp", "Log1PBackward": "log", "Log2Backward": "log",
    "XlogyBackward": "log", "AcosBackward": "sqrt", "AsinBackward": "sqrt",
    "Atan2Backward": "div", "CdistBackward": "sqrt", "PdistBackward": "sqrt",
    "Expm1Backward": "expm1", "Exp2Backward": "exp2", "ProdBackward": "div",
}  # fmt: skip
"""Segfuse's names of operations whose derivatives go wrong for the same reasons."""

_DTYPES = {
    torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64",
    torch.complex64: "f32", torch.complex128: "f64",
}  # fmt: skip


def our_dtype(dtype: torch.dtype) -> str:
    return _DTYPES.get(dtype, "f32")


def gradient_of(node: str) -> str | None:
    """ "SqrtBackward0" is "sqrt"."""
    return _GRADIENTS.get(node.rstrip("0123456789"))


@dataclass(frozen=True, slots=True)
class Operation:
    """Facts of an operator."""

    name: str
    """ "log" of aten.log.default, "mylib.scale" of others' operators."""
    house: str
    """Segfuse's name of what goes wrong for the same reasons; else the name."""
    makes_numbers: bool
    """It is not a view and leaves no memory unwritten."""
    leaves_unwritten: bool
    is_view: bool
    written: tuple[tuple[int, str], ...]
    """Places and names of the arguments that it writes."""
    names: tuple[str, ...]
    pointwise: bool
    random: bool


_known: dict[Any, Operation] = {}


def operation_of(func: Any) -> Operation:
    known = _known.get(func)
    if known is None:
        schema = getattr(func, "_schema", None)
        if schema is None:  # of a higher order: it gets functions, and is seen as a whole
            known = _known[func] = Operation(
                name=func.name(), house=func.name(), makes_numbers=True, leaves_unwritten=False,
                is_view=False, written=(), names=(), pointwise=False, random=False,
            )  # fmt: skip
            return known
        space, _, name = schema.name.partition("::")
        written = tuple(
            (i, argument.name)
            for i, argument in enumerate(schema.arguments)
            if (argument.alias_info is not None and argument.alias_info.is_write)
            or (space == "c10d" and i == 0 and name != "send")  # their schemas do not say it
        )
        aliases = any(
            result.alias_info is not None and not result.alias_info.is_write
            for result in schema.returns
        )
        base = name.rstrip("_")
        tags = getattr(func, "tags", ())
        unwritten = name in _UNWRITTEN
        known = Operation(
            name=name if space == "aten" else f"{space}.{name}",
            house=_OURS.get(base, base),
            makes_numbers=not unwritten and not (aliases and not written),
            leaves_unwritten=unwritten,
            is_view=aliases and not written,
            written=written,
            names=tuple(argument.name for argument in schema.arguments),
            pointwise=torch.Tag.pointwise in tags,
            random=torch.Tag.nondeterministic_seeded in tags,
        )
        _known[func] = known
    return known


def is_collective(operation: Operation) -> bool:
    """It runs on a stream of its own, or may."""
    return operation.name.startswith(("c10d.", "_c10d_functional"))


def has_arrived(operation: Operation, result: Any) -> bool:
    """Whether results can be read: those of a collective when it has been waited for, here."""
    if not is_collective(operation) or operation.name.endswith("wait_tensor"):
        return True
    if operation.name.startswith("_c10d_functional"):
        return False
    work = result[-1] if isinstance(result, (list, tuple)) else result
    try:
        return torch.distributed.Work.unbox(work).wait()  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # the program will hear of the error at its own wait
        return False


def is_only_written(operation: Operation, name: str) -> bool:
    """Whether the content of that argument before does not matter."""
    return name == "out" or (name.startswith("output") and is_collective(operation))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Plain tensors with memory in an argument or a result; of a distributed one, what is here."""
    if isinstance(value, Tensor):
        if type(value) not in PLAIN:
            value = getattr(value, "_local_tensor", None)
        if type(value) in PLAIN and value.layout is torch.strided and not _is_wrapped(value):
            if not value.is_nested:  # it has no strides, and is seen when it is unpacked
                yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def arguments_of(
    operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    for i, value in enumerate(args):
        yield operation.names[i] if i < len(operation.names) else f"argument {i}", value
    yield from kwargs.items()


def written_of(
    operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Tensor]:
    """The tensors that the operation writes in place."""
    for i, name in operation.written:
        if i < len(args):
            yield from tensors_in(args[i])
        elif name in kwargs:
            yield from tensors_in(kwargs[name])


def is_scratch(name: str) -> bool:
    """Whether an argument of that name is memory that only a library reads, perhaps unwritten."""
    return name in _SCRATCH_ARGUMENTS


def results_of(
    operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> list[Tensor]:
    """What the operation has computed, without memory that only a library reads."""
    if any(not is_scratch(name) for _, name in operation.written):
        written = list(written_of(operation, args, kwargs))
        if written:
            return written
    scratch = _SCRATCH.get(operation.name, ())
    if scratch and isinstance(result, (list, tuple)):
        result = [part for i, part in enumerate(result) if i not in scratch]
    return list(tensors_in(result))


def has_numbers(tensor: Tensor) -> bool:
    """Whether it has elements that can be NaN and lie in memory of a device."""
    dtype = tensor.dtype
    return (
        (dtype.is_floating_point or dtype.is_complex)
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and tensor.numel() > 0
    )


def describe(tensor: Tensor) -> str:
    """ "float32[4, 2]"."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def storage_key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def is_capturing() -> bool:
    """What is enqueued now becomes a part of a CUDA graph, and does not run."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def extent_of(tensor: Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def is_there(tensor: Tensor) -> bool:
    """Whether its memory is: a storage may be cut without an operation, as FSDP does."""
    first = tensor.storage_offset() * tensor.element_size()
    return first + extent_of(tensor) <= tensor.untyped_storage().nbytes()


def covers_storage(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()
