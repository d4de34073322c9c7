"""Modules of PyTorch as encoders of the trainer: their programs and their weights."""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy

from .._errors import DataError, UsageError
from .._program.fusion import Fusion
from .._program.value import Value
from ..ops import dropout, reshape
from ._compile.backend import decompositions
from ._compile.sizes import plain_symbols, symbols
from ._compile.step import RefusedError, Step, step_of
from ._convolution import convolution
from ._pooling import TwoAxes, max_pool, mean_pool
from ._recurrent import kept_whole
from ._recurrent import write as recurrent_layer

PREFIX = "encoder."
"""Of the names of a module's tensors in a model."""

_EXAMPLES = (240, 48, 960)
"""Frames to trace with, which many strides divide; the second for modules that take few, the third
for those that halve them more often."""

_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_LITERALS = ("lifted_tensor", "_tensor_constant")
"""How names begin that PyTorch gives to tensors which the code of a module holds."""

_WHOLE: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.convolution.default: convolution,
    torch.ops.aten.max_pool2d_with_indices.default: max_pool,
    torch.ops.aten.avg_pool2d.default: mean_pool,
    torch.ops.segfuse.recurrence.default: recurrent_layer,
}
"""What is written as a whole from the values of its arguments."""

_NOTHING = ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range_for_size")


@dataclass
class Traced:
    """What the library's Encoder is made of (segfuse/model.h)."""

    name: str
    training: str
    inference: str
    parameters: dict[str, np.ndarray]
    constants: dict[str, np.ndarray]
    stride: int
    scores: bool
    most_steps: int


def trace(module: Any, columns: int, labels: Sequence[str], scores: bool) -> Traced:
    """The programs of a module that maps (1, frames, columns) to (1, frames / stride, width).

    Raises:
        UsageError: the module has an operation for which there is no program, or gives something
            else.
    """
    _initialise(module, columns)
    check(module)
    own = _copy(module)
    example, stride = _example(own, columns)
    if scores:
        _check_scores(own, example, stride, labels)
    multiple = _multiple(own, example, stride)
    if multiple > stride and not scores:
        raise UsageError(
            f"the encoder takes multiples of {multiple} frames only; let it give the scores of the "
            "labels (encoder_scores), whose recordings are filled up with zeros, or pad its input "
            "and cut its result within it"
        )
    tracer = _Tracer(own, multiple, example, multiple // stride)
    inference = tracer.program(training=False)
    tracer.compare(columns)
    training = tracer.program(training=True)
    return Traced(
        type(module).__name__,
        training,
        inference,
        {name: _array(x) for name, x in tracer.tensors.items() if x.requires_grad},
        {name: _array(x) for name, x in tracer.tensors.items() if not x.requires_grad},
        multiple,
        scores,
        tracer.most_steps,
    )


def check(module: Any) -> None:
    """UsageError for what cannot be traced whatever the data are."""
    if not isinstance(module, nn.Module):
        raise UsageError(f"encoder is a {type(module).__name__}, expected a torch.nn.Module")
    for name, part in module.named_modules():
        where = f"the encoder's {name or 'module'}"
        if isinstance(part, nn.RNNCellBase):
            raise UsageError(
                f"{where} is a {type(part).__name__}, which takes one frame, and a loop over "
                "frames cannot be traced for any number of frames; use a layer such as nn.LSTM"
            )
        if isinstance(part, _BATCH_NORM) and (part.training or not part.track_running_stats):
            raise UsageError(
                f"{where} is a {type(part).__name__} which uses statistics of a batch, but the "
                "trainer takes one recording at a time; use GroupNorm or LayerNorm, or call "
                ".eval() of this layer to keep its statistics"
            )
    for name, x in _tensors(module):
        if is_lazy(x):
            continue
        if x.device.type == "meta":
            raise UsageError(f"the encoder's {name} is on the device meta, and has no values")
        if x.is_floating_point() and x.dtype is not torch.float32:
            raise UsageError(
                f"the encoder's {name} is {str(x.dtype).removeprefix('torch.')}, expected float32; "
                "call .float() of the module"
            )
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise UsageError(f"the encoder's {name} holds NaN or an infinity")


def _initialise(module: nn.Module, columns: int) -> None:
    """Lazy layers get their weights, now that the number of features is known."""
    lazy = [x for _, x in _tensors(module) if is_lazy(x)]
    if not lazy:
        return
    try:
        with torch.no_grad():
            module(torch.zeros(1, _EXAMPLES[0], columns, device=lazy[0].device))
    except Exception as error:  # noqa: BLE001  (a module may raise anything)
        raise UsageError(
            f"the encoder's lazy layers do not take (1, {_EXAMPLES[0]}, {columns}): "
            f"{_first_line(error)}"
        ) from None


def load_into(module: Any, arrays: Mapping[str, np.ndarray], source: str) -> set[str]:
    """Copies the parameters and constants of a model into the module that it was made of; their
    names.

    Raises:
        DataError: the model has other ones.
    """
    if not isinstance(module, nn.Module):
        raise UsageError(f"encoder is a {type(module).__name__}, expected a torch.nn.Module")
    given = {n.removeprefix(PREFIX): x for n, x in arrays.items() if n.startswith(PREFIX)}
    if not given:
        raise UsageError(f"{source}: the encoder of the model is not a PyTorch module")
    given = {n: x for n, x in given.items() if not n.rpartition(".")[2].startswith(_LITERALS)}
    known: dict[str, Tensor] = {}
    for name, array in given.items():
        found = _attribute(module, name)
        if found is None:
            raise DataError(
                f"{source}: the model has the parameter {name!r}, but the module does not"
            )
        if tuple(found.shape) != array.shape:
            raise DataError(
                f"{source}: the parameter {name!r} is {array.shape} in the model and "
                f"{tuple(found.shape)} in the module"
            )
        known[name] = found
    with torch.no_grad():
        for name, array in given.items():
            known[name].copy_(torch.from_numpy(np.array(array)))
    return set(given)


def warn_of_others(module: nn.Module, loaded: set[str], source: str) -> None:
    """UserWarning where a module has parameters that the model has not."""
    same = {id(_attribute(module, name)) for name in loaded}
    others = [name for name, x in module.named_parameters() if id(x) not in same]
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        warnings.warn(
            f"{source}: the model does not have the module's parameter {others[0]!r}{more}; they "
            "keep their values",
            stacklevel=3,
        )


def _attribute(module: nn.Module, name: str) -> Tensor | None:
    """A parameter, a buffer or a tensor that is neither."""
    try:
        found = operator.attrgetter(name)(module)
    except AttributeError:
        return None
    return found if isinstance(found, Tensor) else None


_NEVER = -1e9
"""A score that no segmentation with another choice loses to; files hold finite numbers."""


def crf_scores(layer: Any, classes: int) -> dict[str, np.ndarray]:
    """The scores of a layer by name, as of a model; none without a layer."""
    if layer is None:
        return {}
    for name in ("num_classes", "max_duration", "scores"):
        if not hasattr(layer, name):
            raise UsageError(
                f"crf is a {type(layer).__name__}, expected a segfuse.torch.SemiMarkovCRF"
            )
    if layer.num_classes != classes:
        raise UsageError(f"the CRF has {layer.num_classes} classes, and there are {classes} labels")
    if layer.boundary_scores or layer.tail_logit is not None:
        raise UsageError(
            "the CRF has a tail or boundary scores, which a model made of parts does not support"
        )
    with torch.no_grad():
        found = layer.scores(torch.zeros(1, 1, classes).to(layer.transition))
    return {
        name: _array(found[name].cpu().float().clamp(min=_NEVER))
        for name in ("transition", "duration", "initial", "final")
    }


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _array(x: Tensor) -> np.ndarray:
    return np.ascontiguousarray(x.detach().numpy())


def _copy(module: nn.Module) -> nn.Module:
    """On the CPU; the module itself is not touched."""
    try:
        return copy.deepcopy(module).cpu()
    except Exception as error:  # noqa: BLE001  (a module may raise anything)
        raise UsageError(f"the encoder cannot be copied: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _example(module: nn.Module, columns: int) -> tuple[Tensor, int]:
    """An example of a recording, and the module's frames for a step."""
    draw = torch.Generator().manual_seed(1)
    _set_mode(module, training=False)
    failure = ""
    for frames in _EXAMPLES:
        example = torch.randn(1, frames, columns, generator=draw)
        try:
            with torch.no_grad():
                made = module(example)
        except Exception as error:  # noqa: BLE001  (a module may raise anything)
            failure = failure or _first_line(error)
            continue
        _check_result(made, frames, columns)
        return example, frames // made.shape[1]
    raise UsageError(
        f"the encoder does not take (1, {_EXAMPLES[0]}, {columns}), one recording of {columns} "
        f"features a frame: {failure}"
    )


def _multiple(module: nn.Module, example: Tensor, stride: int) -> int:
    """Of which numbers of frames the module takes any multiple: its stride, or more where layers
    that halve the frames have to fit together."""
    frames = example.shape[1]

    def takes(count: int) -> bool:
        try:
            with torch.no_grad():
                made = module(example[:, :count])
        except Exception:  # noqa: BLE001  (a module may raise anything)
            return False
        return isinstance(made, Tensor) and made.dim() == 3 and made.shape[1] * stride == count

    for multiple in range(stride, frames // 4 + 1, stride):
        if frames % multiple == 0 and all(takes(frames - i * multiple) for i in (1, 2, 3)):
            return multiple
    return stride


def _check_result(made: Any, frames: int, columns: int) -> None:
    given = f"the encoder maps (1, {frames}, {columns}) to"
    expected = f"expected (1, {frames}, width), or fewer steps that divide the frames"
    if not isinstance(made, Tensor):
        raise UsageError(
            f"{given} a {type(made).__name__}, expected one tensor (batch, time, width)"
        )
    if made.dtype is not torch.float32:
        raise UsageError(f"{given} {str(made.dtype).removeprefix('torch.')}, expected float32")
    shape = tuple(made.shape)
    if len(shape) != 3 or shape[0] != 1 or shape[2] < 1:
        raise UsageError(f"{given} {shape}, {expected}")
    if not 0 < shape[1] <= frames or frames % shape[1] != 0:
        raise UsageError(f"{given} {shape}, {expected}; a convolution keeps them by its padding")


def _check_scores(module: nn.Module, example: Tensor, stride: int, labels: Sequence[str]) -> None:
    with torch.no_grad():
        width = module(example).shape[2]
    if width != stride * len(labels):
        raise UsageError(
            f"the encoder gives {width} numbers a step, and scores of {len(labels)} labels are "
            f"{stride * len(labels)}"
        )


def _set_mode(module: nn.Module, training: bool) -> None:
    """Layers that keep their statistics do so in training as well."""
    for part in module.modules():
        part.training = training and not isinstance(part, _BATCH_NORM)


class _Tracer:
    """Traces one module, with dropout and without."""

    def __init__(self, module: nn.Module, stride: int, example: Tensor, group: int = 1) -> None:
        self._module, self._stride, self._example = module, stride, example
        self._group = group
        """Steps of the module that are one step of the program."""
        self.tensors: dict[str, Tensor] = {}
        """Those that a program needs, by name."""
        self.most_steps = 0
        self._graph: ExportedProgram

    def program(self, training: bool) -> str:
        _set_mode(self._module, training)
        self._graph = self._exported()
        return _Writer(self, self._graph, self._stride, training).text(self._group)

    def compare(self, columns: int) -> None:
        """UsageError where the module does other things for other numbers of frames than the last
        graph, which was made for one number. What the module refuses itself is not compared."""
        draw = torch.Generator().manual_seed(2)
        for steps in _lengths(self._graph, self._stride, self.most_steps):
            frames = self._stride * steps
            example = torch.randn(1, frames, columns, generator=draw)
            try:
                with torch.no_grad():
                    expected = self._module(example)
            except Exception:  # noqa: BLE001  (a module may raise anything)
                continue
            try:
                with torch.no_grad():
                    found = _run(self._graph, example)
                same = found.shape == expected.shape and _alike(found, expected)
            except Exception:  # noqa: BLE001  (shapes of another number of frames)
                same = False
            if not same:
                raise UsageError(
                    f"the encoder runs other operations for {frames} frames than for "
                    f"{self._example.shape[1]}, or with each call; expected the same operations "
                    "for any number of frames, without an `if` on that number and without state"
                )

    def _exported(self) -> ExportedProgram:
        frames = self._stride * Dim("steps") if self._stride > 1 else Dim.DYNAMIC
        try:
            with (
                warnings.catch_warnings(),
                sdpa_kernel(SDPBackend.MATH),
                kept_whole(self._module),
                TwoAxes(),
            ):
                # Attention is products and a softmax, and PyTorch warns of itself.
                warnings.simplefilter("ignore", FutureWarning)
                exported = export(
                    self._module, (self._example,), dynamic_shapes=({1: frames},), strict=False
                )
                return exported.run_decompositions(decompositions())
        except Exception as error:  # noqa: BLE001  (a module may raise anything)
            raise UsageError(
                f"PyTorch cannot trace the encoder for any number of frames: {_first_line(error)}"
            ) from None

    def limit(self, most: int) -> None:
        self.most_steps = min(self.most_steps or most, most)


_COMPARED = (1, 2, 3, 7, 50, 121, 500)
"""Numbers of steps for which a module is run, and its graph as well."""


def _lengths(exported: ExportedProgram, stride: int, most: int) -> list[int]:
    """Those, and for each condition on sizes that was met where it begins and ceases to hold."""
    chosen = set(_COMPARED)
    features = [n for n in exported.graph.nodes if n.op == "placeholder"][-1].meta["val"]
    frames = features.shape[1].node
    for guard in frames.shape_env.guards:
        free = sorted(guard.expr.free_symbols, key=str)
        if len(free) != 1:
            continue
        counts_steps = free[0] in symbols(frames.expr) and frames.expr != free[0]
        unit = 1 if counts_steps else stride
        holds = [bool(guard.expr.subs(free[0], unit * n)) for n in range(2, _EXAMPLES[0] * 5)]
        changes = [n for n in range(1, len(holds)) if holds[n] != holds[n - 1]][:4]
        chosen |= {n + 2 for n in changes} | {n + 1 for n in changes}
    return sorted((n for n in chosen if most == 0 or n <= most), reverse=True)


def _run(exported: ExportedProgram, example: Tensor) -> Tensor:
    """What the graph makes of a recording, whatever was assumed of its length."""
    values: dict[Node, Any] = {}
    specs = {spec.arg.name: spec for spec in exported.graph_signature.input_specs}
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            spec = specs[node.name]
            known = exported.state_dict.get(spec.target, exported.constants.get(spec.target))
            values[node] = example if spec.kind is InputKind.USER_INPUT else known
        elif node.op == "call_function" and getattr(node.target, "_opname", "") not in _NOTHING:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
        elif node.op == "output":
            return values[node.args[0][0]]
    raise AssertionError("a graph without an output")


def _alike(found: Tensor, expected: Tensor) -> bool:
    scale = float(expected.abs().nan_to_num(0, 0, 0).max())
    return torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * scale + 1e-6, equal_nan=True)


class _Writer:
    """Writes an exported graph as a program."""

    def __init__(
        self, tracer: _Tracer, exported: ExportedProgram, stride: int, training: bool
    ) -> None:
        self._tracer, self._exported = tracer, exported
        self._stride, self._training = stride, training
        self._fusion = Fusion("encoder")
        self._seed: Value | None = None
        self._values: dict[Node, Any] = {}
        self._known: dict[Any, Any] = {}

    def text(self, group: int) -> str:
        changed = [
            spec.target
            for spec in self._exported.graph_signature.output_specs
            if spec.kind is not OutputKind.USER_OUTPUT
        ]
        if changed:
            raise UsageError(
                f"the encoder changes {changed[0]!r} when it runs, expected a function of its "
                "input and its weights"
            )
        self._inputs()
        steps: dict[Node, Step] = {}
        for node in self._exported.graph.nodes:
            if node.op == "call_function":
                self._write(node, steps)
            elif node.op == "output":
                self._fusion.output(self._grouped(self._values[node.args[0][0]], group))
        return self._fusion.text()

    def _grouped(self, y: Value, group: int) -> Value:
        if group == 1:
            return y
        return reshape(y, (1, self._fusion.size("H"), group * int(y.shape[2])))

    def _inputs(self) -> None:
        specs = {spec.arg.name: spec for spec in self._exported.graph_signature.input_specs}
        for node in self._exported.graph.nodes:
            if node.op != "placeholder":
                continue
            spec = specs[node.name]
            if spec.kind is InputKind.USER_INPUT:
                self._features(node)
            elif node.users:
                self._tensor(node, spec)

    def _features(self, node: Node) -> None:
        shape = node.meta["val"].shape
        steps = self._fusion.size("H")
        found = symbols(shape[1].node.expr) if isinstance(shape[1], torch.SymInt) else set()
        if len(found) != 1:
            raise UsageError(
                f"PyTorch traced the encoder for {shape[1]} frames only, expected any number; an "
                "`if` or a loop over a size may be the cause"
            )
        symbol = found.pop()
        is_plain = any(axis == 1 for axis, _ in plain_symbols(shape))
        self._known[symbol] = self._stride * steps if is_plain else steps
        frames = self._stride if is_plain else 1
        upper = self._exported.range_constraints.get(symbol)
        if upper is not None and getattr(upper.upper, "is_Integer", False):
            self._tracer.limit(max(1, int(upper.upper) // frames))
        self._values[node] = self._fusion.input(
            "features", "float32", (1, self._stride * steps, shape[2])
        )

    def _tensor(self, node: Node, spec: Any) -> None:
        name = spec.target
        if spec.kind is InputKind.PARAMETER:
            tensor = self._tracer._module.get_parameter(name)
        else:
            tensor = self._exported.state_dict.get(name, self._exported.constants.get(name))
        if not isinstance(tensor, Tensor):
            raise UsageError(f"the encoder needs {name!r}, a {type(tensor).__name__}")
        self._tracer.tensors.setdefault(name, tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        self._values[node] = self._fusion.input(PREFIX + name, dtype, tuple(tensor.shape))

    def _write(self, node: Node, steps: dict[Node, Step]) -> None:
        made = node.meta.get("val")
        if isinstance(made, (int, torch.SymInt, torch.SymBool, torch.SymFloat)):
            return
        name = getattr(node.target, "_opname", "")
        if made is None and name in _NOTHING:
            return
        if node.target is torch.ops.aten.native_dropout.default:
            self._values[node] = self._dropped(*node.args)
            return
        if node.target is operator.getitem and node.args[0] not in steps:
            self._values[node] = self._values[node.args[0]][node.args[1]]
            return
        try:
            if node.target in _WHOLE:
                self._values[node] = _WHOLE[node.target](*map(self._given, node.args))
                return
            steps[node] = step_of(node, steps)
            self._values[node] = steps[node].write(self._fusion, self._values, self._known)
        except (RefusedError, UsageError) as error:
            raise UsageError(
                f"there is no program for the encoder's operation {node.target}"
                f"{_place(node)}: {error}"
            ) from None

    def _given(self, argument: Any) -> Any:
        if isinstance(argument, (list, tuple)):
            return [self._given(each) for each in argument]
        return self._values[argument] if isinstance(argument, Node) else argument

    def _dropped(self, x: Node, rate: float, training: bool | None = True) -> tuple[Value, None]:
        if not training or rate == 0:
            return self._values[x], None
        if not self._training:
            raise UsageError(
                "the encoder drops values at random in eval() as well; give functional.dropout the "
                "argument training=self.training"
            )
        if self._seed is None:
            self._seed = self._fusion.input("seed", "int64", (2,))
        return dropout(self._values[x], self._seed, float(rate)), None


def _place(node: Node) -> str:
    """Of which module an operation is."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values() if path]
    return f" in {paths[-1]}" if paths else ""


Trace = Callable[[int, Sequence[str]], Traced]


def tracing(module: Any, scores: bool) -> Trace:
    """What the trainer calls once it knows the features and the labels."""
    check(module)
    return lambda columns, labels: trace(module, columns, labels, scores)


__all__ = [
    "PREFIX",
    "Traced",
    "check",
    "crf_scores",
    "load_into",
    "trace",
    "tracing",
    "warn_of_others",
]
