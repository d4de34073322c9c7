"""The caller's arrays: whose they are, where they lie, and how they go through a program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import _native
from ._arrays import derivative_of
from ._dtypes import dtype_name
from ._errors import UsageError
from ._sizes import Size
from ._value import Value

STATIC, NUMPY, TORCH, JAX, SCALAR, OTHER, TRACED = range(7)
"""What an argument is: no array, an array of a library, a NumPy scalar, another array with DLPack or
`__cuda_array_interface__`, or a value or size of a program."""

ON_HOST, ELSEWHERE = -1, -2
"""Where an array lies, if not on the CUDA device with a number."""

known_kinds: dict[type, int] = {np.ndarray: NUMPY, Value: TRACED, Size: TRACED}
"""Of the types that were seen."""


def kind_of(value: Any) -> int:
    """By its type, which is looked at once."""
    kind = known_kinds.get(type(value))
    if kind is None:
        kind = known_kinds[type(value)] = _find_kind(value)
    return kind


def _find_kind(value: Any) -> int:
    torch = sys.modules.get("torch")
    jax = sys.modules.get("jax")
    if isinstance(value, np.ndarray):
        return NUMPY
    if isinstance(value, np.generic):
        return SCALAR
    if torch is not None and isinstance(value, torch.Tensor):
        return TORCH
    if jax is not None and isinstance(value, jax.Array):
        return JAX
    if hasattr(value, "__dlpack_device__") or hasattr(value, "__cuda_array_interface__"):
        return OTHER
    return STATIC


def describe(value: Any) -> str:
    """What something is, for messages."""
    shape = getattr(value, "shape", None)
    if kind_of(value) in (STATIC, TRACED) or shape is None:
        return f"a {type(value).__name__}"
    return f"a {type(value).__name__} of dtype {value.dtype} and shape {tuple(shape)}"


def place_of(array: Any, kind: int) -> int:
    """ON_HOST, the number of a CUDA device, or ELSEWHERE."""
    if kind == TORCH:
        return ON_HOST if array.is_cpu else array.get_device() if array.is_cuda else ELSEWHERE
    if kind in (NUMPY, SCALAR):
        return ON_HOST
    if kind == JAX and isinstance(array, sys.modules["jax"].core.Tracer):
        return ELSEWHERE
    if not hasattr(array, "__dlpack_device__"):
        return 0  # __cuda_array_interface__ does not say which
    device, number = array.__dlpack_device__()
    return {1: ON_HOST, 2: int(number)}.get(int(device), ELSEWHERE)


def check_place(name: str, array: Any, kind: int) -> None:
    """For what cannot be differentiated: captured arrays, inputs of a Fusion."""
    check_device(name, array, kind)
    followed = derivative_of(array) if kind == TORCH else None
    if followed is not None:
        raise UsageError(
            f"{name} {followed}, which PyTorch sees through arguments of compiled functions only; "
            "pass it as one, or detach it"
        )


def check_device(name: str, array: Any, kind: int) -> None:
    """The one place that decides on devices: programs run on the CPU and on CUDA devices."""
    if kind == TORCH and not array.is_cpu and not array.is_cuda:
        raise UsageError(
            f"{name} lies on {array.device}; compiled functions run on the CPU and on CUDA "
            "devices, pass x.cpu()"
        )
    if kind == JAX:
        if isinstance(array, sys.modules["jax"].core.Tracer):
            raise UsageError(
                f"{name} is a value inside a JAX transformation; call compiled functions outside "
                "jit, grad and vmap"
            )
    if place_of(array, kind) == ELSEWHERE:
        raise UsageError(
            f"{name} lies on a device; compiled functions run on the CPU and on CUDA devices, move "
            "it there"
        )


def readable(name: str, array: Any, kind: int) -> Any:
    """An array on the CPU as the extension takes it."""
    if kind == TORCH:  # by way of NumPy, which is many times quicker than PyTorch's DLPack
        if array.requires_grad:
            check_place(name, array, kind)
            array = array.detach()
        if array.is_neg():
            array = array.resolve_neg()
        torch = sys.modules["torch"]
        return (array.view(torch.uint16) if array.dtype is torch.bfloat16 else array).numpy()
    if kind == JAX:
        array = sys.modules["jax"].block_until_ready(array)
    if kind == SCALAR:
        array = np.asarray(array)
    if kind in (NUMPY, SCALAR, JAX) and array.dtype.name == "bfloat16":
        return np.asarray(array).view(np.uint16)
    return array


def on_host(name: str, array: Any, kind: int) -> Any:
    """A copy on the CPU, to be looked at."""
    if kind == TORCH:
        return array.detach().cpu()
    if kind == JAX:
        return np.asarray(array)
    if kind == OTHER and place_of(array, kind) != ON_HOST:
        raise UsageError(f"{name}: check_numerics looks at arrays of NumPy, PyTorch and JAX")
    return array


def signature_of(name: str, array: Any) -> tuple[str, tuple[int, ...]]:
    """dtype and shape; UsageError for what is no array that programs take."""
    if kind_of(array) in (STATIC, TRACED):
        raise UsageError(f"{name} is {describe(array)}, expected an array")
    try:
        return dtype_name(array.dtype), tuple(array.shape)
    except UsageError:
        raise UsageError(
            f"{name} is {describe(array)}; arrays may be bool, int32, int64, float16, bfloat16, "
            "float32 or float64"
        ) from None


def library_of(kinds: Sequence[int]) -> int:
    """Whose arrays come out: PyTorch's or JAX's if there is one among those that go in."""
    if TORCH in kinds and JAX in kinds:
        raise UsageError("found arrays of PyTorch and of JAX in one call, expected one library")
    return TORCH if TORCH in kinds else JAX if JAX in kinds else NUMPY


def finisher(library: int, dtypes: Sequence[str]) -> Callable[[list[Any]], list[Any]] | None:
    """What turns results of the extension into the caller's arrays; None if they are."""
    bits = [dtype == "bfloat16" for dtype in dtypes]
    if library == TORCH:
        torch = sys.modules["torch"]
        if not any(bits):
            return lambda results: [torch.from_numpy(x) for x in results]
        return lambda results: [
            torch.from_numpy(x).view(torch.bfloat16) if b else torch.from_numpy(x)
            for x, b in zip(results, bits, strict=True)
        ]
    if library == NUMPY and not any(bits):
        return None

    def finish(results: list[Any]) -> list[Any]:
        if any(bits):
            bfloat16 = _ml_dtypes().bfloat16
            results = [x.view(bfloat16) if b else x for x, b in zip(results, bits, strict=True)]
        if library == JAX:
            asarray = sys.modules["jax"].numpy.asarray
            results = [asarray(x) for x in results]
        return results

    return finish


def _ml_dtypes() -> Any:
    try:
        import ml_dtypes
    except ImportError:
        raise UsageError(
            "a result is bfloat16, which NumPy has by the package ml_dtypes only; install it, or "
            "cast the result to float32"
        ) from None
    return ml_dtypes


def need_writable(name: str, array: Any, kind: int) -> None:
    if kind == JAX or (kind in (NUMPY, SCALAR) and not array.flags.writeable) or kind == SCALAR:
        raise UsageError(
            f"{name} is overwritten by the program, but {describe(array)} cannot be written"
        )


def _gpu_of(names: Sequence[str], arrays: Sequence[Any], places: Sequence[int]) -> int:
    from . import _gpu  # which needs this module

    quoted = [f"the input {name!r}" for name in names]
    device = _gpu.device_of(None, places, quoted)
    assert device is not None
    _gpu.need_numbers(quoted, arrays, places, device)
    return device


def run(
    program: _native.Program,
    names: Sequence[str],
    dtypes: Sequence[str],
    arrays: Sequence[Any],
    overwritten: Sequence[int],
    *,
    reference: bool = False,
    runner: Callable[[int], Any] | None = None,
) -> list[Any]:
    """The outputs of a program as arrays of the library of the inputs.

    `names` are those of the inputs, `dtypes` those of the outputs; `runner` gives the program on a
    CUDA device (`_gpu.Runner`).
    """
    if len(arrays) != len(names):
        raise UsageError(f"found {len(arrays)} arrays, expected {len(names)}: {', '.join(names)}")
    kinds = [kind_of(array) for array in arrays]
    for index, (name, array, kind) in enumerate(zip(names, arrays, kinds, strict=True)):
        if kind == STATIC:
            raise UsageError(f"the input {name!r} is {describe(array)}, expected an array")
        if index in overwritten:
            need_writable(f"the input {name!r}", array, kind)
    places = [place_of(array, kind) for array, kind in zip(arrays, kinds, strict=True)]
    for name, array, kind in zip(names, arrays, kinds, strict=True):
        check_place(f"the input {name!r}", array, kind)
    if any(place >= 0 for place in places):
        if reference or runner is None:
            raise UsageError("the reference runs on the CPU, move the arrays there")
        there = runner(_gpu_of(names, arrays, places))
        results: list[Any] = there.run(arrays, kinds, places)
        return results
    inputs = [
        readable(f"the input {name!r}", array, kind)
        for name, array, kind in zip(names, arrays, kinds, strict=True)
    ]
    results = program.run(inputs, list(overwritten), reference)
    if reference:
        dtypes = ["float64" if dtype == "bfloat16" else dtype for dtype in dtypes]
    finish = finisher(library_of(kinds), dtypes)
    return results if finish is None else finish(results)
