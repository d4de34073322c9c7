"""Random functions as users write them, traced by `segfuse.compile` and run by NumPy in float64.

Each argument of a compiled function has sizes of its own, so that what an operation needs to be
equal (`x[:, 1:] + c`) is known by a requirement only. A function is a list of steps on values; it
can be printed, shortened and run by either library.

    python tests/python/traced.py --values 1000 --gradients 300 [--seed 1] [--device cuda] [--jobs 2]
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import sys
import traceback

import numpy as np

import segfuse
import segfuse.ops as sf


class Reference:
    """NumPy under the names of segfuse.ops."""

    @staticmethod
    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    @staticmethod
    def softmax(x, axis):
        e = np.exp(x - x.max(axis=axis, keepdims=True))
        return e / e.sum(axis=axis, keepdims=True)

    @staticmethod
    def logsumexp(x, axis, keepdims=False):
        most = x.max(axis=axis, keepdims=True)
        total = np.log(np.exp(x - most).sum(axis=axis, keepdims=True)) + most
        return total if keepdims else np.squeeze(total, axis)

    @staticmethod
    def layer_norm(x):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)

    @staticmethod
    def sliding_windows(x, size, axis, stride):
        windows = np.lib.stride_tricks.sliding_window_view(x, size, axis)
        windows = np.moveaxis(windows, -1, axis + 1)
        return windows[(slice(None),) * axis + (slice(None, None, stride),)]

    @staticmethod
    def scan(f, carry, xs, reverse=False):
        ys = []
        for x in xs[::-1] if reverse else xs:
            carry, y = f(carry, x)
            ys.append(y)
        return carry, np.stack(ys[::-1] if reverse else ys)

    def __getattr__(self, name):
        return getattr(np, name)


class Ours:
    """segfuse.ops, and segfuse.scan beside them."""

    scan = staticmethod(segfuse.scan)

    def __getattr__(self, name):
        return getattr(sf, name)


REFERENCE = Reference()
OURS = Ours()


@dataclasses.dataclass
class Step:
    """`text` with {0}, {1}, ... for the values at `operands`; `x` is Ours or NumPy."""

    text: str
    operands: tuple[int, ...]


@dataclasses.dataclass
class Program:
    inputs: list[np.ndarray]
    steps: list[Step]  # value number i is input i, then the steps' results

    def run(self, library, arrays):
        values = list(arrays)
        for step in self.steps:
            names = {f"v{i}": value for i, value in enumerate(values)}
            text = step.text.format(*(f"v{i}" for i in step.operands))
            values.append(eval(text, {"x": library, "np": np, **names}))
        return values

    def results(self):
        """Values that no step uses: what the function gives back."""
        used = {i for step in self.steps for i in step.operands}
        first = len(self.inputs)
        return [i for i in range(first, first + len(self.steps)) if i not in used]

    def function(self, library):
        kept = self.results()

        def traced(*arrays):
            values = self.run(library, arrays)
            return tuple(values[i] for i in kept)

        return traced

    def scalar(self, library):
        kept = self.results()

        def traced(*arrays):
            values = self.run(library, arrays)
            total = 0.0
            for n, i in enumerate(kept):
                total = total + (values[i] * (0.3 + 0.1 * n)).sum()
            return total

        return traced

    def text(self):
        lines = [f"def f({', '.join(f'v{i}' for i in range(len(self.inputs)))}):"]
        shapes = ", ".join(f"v{i}: {a.dtype}{list(a.shape)}" for i, a in enumerate(self.inputs))
        lines.append(f"    # {shapes}")
        for n, step in enumerate(self.steps):
            body = step.text.format(*(f"v{i}" for i in step.operands))
            lines.append(f"    v{len(self.inputs) + n} = {body}")
        lines.append(f"    return {', '.join(f'v{i}' for i in self.results())}")
        return "\n".join(lines)


class Writer:
    """Writes one program, step by step, and knows its values in NumPy."""

    def __init__(self, rng, smooth):
        self.rng = rng
        self.smooth = smooth  # gradients are compared: no kinks
        self.inputs = []
        self.values = []  # of steps
        self.steps = []  # operands: ("input", i) or ("step", i)

    def draw(self, n):
        return int(self.rng.integers(n))

    def input(self, shape, kind="float"):
        if kind == "bool":
            array = self.rng.random(shape) < 0.5
        elif kind == "index":
            array = self.rng.integers(0, shape[1], size=shape[0])
        else:
            array = self.rng.uniform(-1.5, 1.5, size=shape)
        self.inputs.append(array)
        return ("input", len(self.inputs) - 1), array

    def fresh(self):
        rank = 1 + self.draw(3)
        return self.input(tuple(int(self.rng.choice([1, 2, 3, 4, 5, 6, 8])) for _ in range(rank)))

    def some(self):
        """A value made before, the latest most often, or a new input."""
        if not self.values or self.draw(12) == 0:
            return self.fresh()
        at = len(self.values) - 1
        while at > 0 and self.draw(3) == 0:
            at -= 1
        return ("step", at), self.values[at]

    def beside(self, shape):
        """A new input whose shape broadcasts with `shape`: as a rule its sizes are those."""
        shape = list(shape)
        while shape and self.draw(3) == 0:
            shape.pop(0)
        shape = [1 if self.draw(6) == 0 else size for size in shape]
        if not shape:
            shape = [1]
        return self.input(tuple(shape))

    def partner(self, value):
        """A second operand: a value that broadcasts with the first, or a new input."""
        fits = []
        for i, other in enumerate(self.values):
            try:
                if np.broadcast_shapes(other.shape, value.shape) and other.size < 4000:
                    fits.append((("step", i), other))
            except ValueError:
                pass
        if fits and self.draw(3) == 0:
            return fits[self.draw(len(fits))]
        return self.beside(value.shape)

    def add(self, text, *operands):
        names = [f"o{i}" for i in range(len(operands))]
        arrays = {name: array for name, (_, array) in zip(names, operands, strict=True)}
        with np.errstate(all="ignore"):
            result = eval(text.format(*names), {"x": REFERENCE, "np": np, **arrays})
        result = np.asarray(result)
        if (
            result.size > 6000
            or not np.all(np.isfinite(result))
            or np.abs(result).max(initial=0) > 1e4
        ):
            return False
        self.steps.append((text, tuple(where for where, _ in operands)))
        self.values.append(result)
        return True

    def step(self):
        value = self.some()
        where, array = value
        rank = array.ndim
        axis = self.draw(rank) if rank else 0
        kinds = ["unary", "binary", "binary", "binary", "slice", "slice", "slice", "reshape", "reshape",
                 "concat", "pad", "windows", "move", "reduce", "norm", "matmul", "broadcast", "where",
                 "take", "flip", "index", "running", "triangle", "named", "along", "pair", "rearranged",
                 "gathered", "scanned"]  # fmt: skip
        kind = kinds[self.draw(len(kinds))]
        if rank == 0 and kind not in ("unary", "binary", "broadcast"):
            return False
        return getattr(self, "_" + kind)(value, array, rank, axis)

    def _unary(self, value, array, rank, axis):
        smooth = ["x.sin({0})", "x.tanh({0})", "-{0}", "{0} * {0}", "x.sigmoid({0})", "x.exp(x.sin({0}))",
                  "x.sqrt({0} * {0} + 0.5)", "{0} * 0.5 + 1.0", "1.0 / ({0} * {0} + 1.0)"]  # fmt: skip
        rough = [*smooth, "x.abs({0})", "x.floor({0})", "x.maximum({0}, 0.0)"]
        choice = smooth if self.smooth else rough
        return self.add(choice[self.draw(len(choice))], value)

    def _binary(self, value, array, rank, axis):
        other = self.partner(array)
        texts = ["{0} + {1}", "{0} * {1}", "{1} - {0}", "{0} / ({1} * {1} + 1.0)"]
        if not self.smooth:
            texts += ["x.maximum({0}, {1})", "x.where({0} > {1}, {0}, {1} * 0.5)"]
        return self.add(texts[self.draw(len(texts))], value, other)

    def _slice(self, value, array, rank, axis):
        size = array.shape[axis]
        before = ":, " * axis
        parts = ["1:", ":-1", "::2", "::-1", "1::2", "::-2", "2:", f":{max(size // 2, 1)}",
                 ": {0}.shape[" + str(axis) + "] // 2", f"{size // 3}:{size - size // 4}",
                 ": {0}.shape[" + str(axis) + "] - 1", "::3"]  # fmt: skip
        return self.add("{0}[" + before + parts[self.draw(len(parts))] + "]", value)

    def _index(self, value, array, rank, axis):
        at = self.draw(array.shape[axis]) if array.shape[axis] else 0
        if array.shape[axis] == 0:
            return False
        texts = ["{0}[" + ":, " * axis + f"{at}]", "{0}[" + ":, " * axis + "None]", "{0}[..., None]",
                 "{0}[..., -1]" if array.shape[-1] else "{0}[None]"]  # fmt: skip
        return self.add(texts[self.draw(len(texts))], value)

    def _reshape(self, value, array, rank, axis):
        texts = ["{0}.reshape(-1)", "{0}.reshape({0}.shape[0], -1)", "{0}.reshape(1, -1)"]
        if rank >= 2:
            texts += [
                "{0}.reshape(-1, {0}.shape[-1])",
                "{0}.reshape({0}.shape[0] * {0}.shape[1], -1)",
            ]
        for factor in (2, 3, 4):
            if array.size and array.shape[-1] % factor == 0:
                texts += ["{0}.reshape(*{0}.shape[:-1], -1, " + str(factor) + ")",
                          "{0}.reshape(*{0}.shape[:-1], " + str(factor) + ", -1)"]  # fmt: skip
            if array.size and array.size % factor == 0:
                texts.append("{0}.reshape(-1, " + str(factor) + ")")
        if array.size == 0:
            return False
        return self.add(texts[self.draw(len(texts))], value)

    def _concat(self, value, array, rank, axis):
        if self.draw(2):
            return self.add("x.concatenate([{0}, {0}], " + str(axis) + ")", value)
        shape = list(array.shape)
        shape[axis] = 1 + self.draw(4)
        other = self.input(tuple(shape))
        if self.draw(3) == 0 and shape[axis] == array.shape[axis]:
            return self.add("x.stack([{0}, {1}], " + str(self.draw(rank + 1)) + ")", value, other)
        return self.add("x.concatenate([{0}, {1}], " + str(axis) + ")", value, other)

    def _pad(self, value, array, rank, axis):
        width = [(0, 0)] * rank
        width[axis] = (self.draw(3), self.draw(3))
        return self.add("x.pad({0}, " + str(width) + ")", value)

    def _windows(self, value, array, rank, axis):
        size = 1 + self.draw(3)
        if array.shape[axis] < size:
            return False
        stride = 1 + self.draw(2)
        text = "x.sliding_windows({0}, " + f"{size}, axis={axis}, stride={stride})"
        return self.add(text, value)

    def _move(self, value, array, rank, axis):
        order = [int(i) for i in self.rng.permutation(rank)]
        texts = ["x.transpose({0}, " + str(order) + ")", "x.swapaxes({0}, 0, " + str(rank - 1) + ")",
                 "x.expand_dims({0}, " + str(self.draw(rank + 1)) + ")"]  # fmt: skip
        return self.add(texts[self.draw(len(texts))], value)

    def _reduce(self, value, array, rank, axis):
        if array.size == 0:
            return False
        keep = ", keepdims=True" if self.draw(2) else ""
        axes = str(axis) if self.draw(4) else str(tuple(sorted({axis, self.draw(rank)})))
        texts = ["{0}.sum(axis=", "{0}.mean(axis="]
        if not self.smooth:
            texts += ["{0}.max(axis=", "{0}.min(axis="]
        if not axes.startswith("("):
            if self.draw(4) == 0:
                return self.add("x.logsumexp({0}, axis=" + axes + keep + ")", value)
        return self.add(texts[self.draw(len(texts))] + axes + keep + ")", value)

    def _norm(self, value, array, rank, axis):
        if array.size == 0:
            return False
        texts = ["x.softmax({0}, axis=" + str(axis) + ")", "{0} - {0}.mean(axis=" + str(axis) + ", keepdims=True)",
                 "x.layer_norm({0})"]  # fmt: skip
        return self.add(texts[self.draw(len(texts))], value)

    def _matmul(self, value, array, rank, axis):
        if array.size == 0:
            return False
        columns = 1 + self.draw(4)
        shape = (array.shape[-1], columns)
        if rank >= 3 and self.draw(2):
            shape = (*array.shape[:-2], *shape)
        return self.add("{0} @ {1}", value, self.input(shape))

    def _broadcast(self, value, array, rank, axis):
        other = self.input((1 + self.draw(4), *array.shape))
        return self.add("x.broadcast_to({0}, {1}.shape) + {1}", value, other)

    def _where(self, value, array, rank, axis):
        mask = self.input(tuple(1 if self.draw(5) == 0 else s for s in array.shape), "bool")
        return self.add(
            "x.where({1}, {0}, " + ("0.0" if self.draw(2) else "{0} * 0.5") + ")", value, mask
        )

    def _take(self, value, array, rank, axis):
        if array.shape[axis] == 0:
            return False
        indices = self.input((1 + self.draw(5), array.shape[axis]), "index")
        return self.add("x.take({0}, {1}, axis=" + str(axis) + ")", value, indices)

    def _flip(self, value, array, rank, axis):
        return self.add("x.flip({0}, axis=" + str(axis) + ")", value)

    def _running(self, value, array, rank, axis):
        texts = ["x.cumsum({0}, axis=", "x.sort({0}, axis=", "x.cumprod(x.sin({0}), axis="]
        return self.add(texts[self.draw(len(texts))] + str(axis) + ")", value)

    def _triangle(self, value, array, rank, axis):
        texts = ["x.tril({0}, 1)", "x.triu({0})", "x.roll({0}, 1, axis=" + str(axis) + ")",
                 "x.repeat({0}, 2, axis=" + str(axis) + ")", "x.arctan2({0}, {0} * {0} + 1.0)"]  # fmt: skip
        first = 0 if rank >= 2 else 2
        return self.add(texts[first + self.draw(len(texts) - first)], value)

    def _named(self, value, array, rank, axis):
        """One argument, element by element, by NumPy's names."""
        smooth = ["x.log1p({0} * {0})", "x.expm1(x.sin({0}))", "x.cbrt({0} * {0} + 0.1)", "x.arctan({0})",
                  "x.arcsinh({0})", "x.sinh(x.sin({0}))", "x.cosh(x.sin({0}))", "x.square({0})",
                  "x.reciprocal({0} * {0} + 0.5)", "x.exp2(x.sin({0}))", "x.log2({0} * {0} + 0.5)",
                  "x.log10({0} * {0} + 0.5)", "x.arcsin(0.9 * x.sin({0}))", "x.arctanh(0.5 * x.sin({0}))",
                  "x.arccosh({0} * {0} + 1.5)", "x.deg2rad({0})", "x.sinc({0})", "x.positive({0})"]  # fmt: skip
        rough = [*smooth, "x.sign({0})", "x.ceil({0})", "x.trunc({0})", "x.rint({0} * 3.0)", "x.fabs({0})",
                 "x.astype(x.signbit({0}), np.float64) + {0}", "x.isfinite({0}) * {0}", "x.clip({0}, -0.4, 0.6)", "x.heaviside({0}, 0.5)",
                 "x.nan_to_num({0} / {0})", "x.modf({0})[0]", "x.modf({0})[1]", "x.round({0}, 1)",
                 "x.floor_divide({0}, 0.3)", "x.astype(x.isnan(x.sqrt({0})), np.float64)",
                 "x.astype(x.astype(x.floor({0} * 4.0), np.int64) % 3, np.float64)"]  # fmt: skip
        choice = smooth if self.smooth else rough
        return self.add(choice[self.draw(len(choice))], value)

    def _pair(self, value, array, rank, axis):
        """Two arguments that broadcast, by NumPy's names."""
        other = self.partner(array)
        smooth = ["x.hypot({0}, {1} * {1} + 1.0)", "x.logaddexp({0}, {1})", "x.logaddexp2({0}, {1})",
                  "x.power({0} * {0} + 0.5, x.sin({1}))", "x.subtract({0}, {1})",
                  "x.true_divide({0}, {1} * {1} + 1.0)", "x.float_power({0} * {0} + 0.5, x.sin({1}))"]  # fmt: skip
        rough = [*smooth, "x.fmax({0}, {1})", "x.fmin({0}, {1})", "x.minimum({0}, {1})", "x.copysign({0}, {1})",
                 "x.fmod({0}, x.abs({1}) + 0.3)", "x.remainder({0}, x.abs({1}) + 0.3)", "x.astype({0} > {1}, np.float64)",
                 "x.logical_and({0} > 0.0, {1} < 0.5) * {0}", "x.astype(x.not_equal(x.sign({0}), x.sign({1})), np.float64)",
                 "x.divmod({0}, x.abs({1}) + 0.3)[1]", "x.astype(x.isclose({0}, {1}), np.float64)",
                 "x.where(x.isfinite({0} / {1}), {0}, {1})"]  # fmt: skip
        choice = smooth if self.smooth else rough
        return self.add(choice[self.draw(len(choice))], value, other)

    def _along(self, value, array, rank, axis):
        """Something along an axis, by NumPy's names."""
        if array.size == 0:
            return False
        keep = ", keepdims=True" if self.draw(2) else ""
        at = f"axis={axis if self.draw(3) else axis - rank}"
        smooth = [f"x.prod(x.sin({{0}}) + 1.5, {at}{keep})", f"x.var({{0}}, {at}{keep})",
                  f"x.sqrt(x.var({{0}}, {at}{keep}) + 0.1)",
                  f"x.average({{0}}, {at})", f"x.trapezoid({{0}}, {at})", f"x.diff({{0}}, {at})",
                  f"x.nansum({{0}}, {at}{keep})", f"x.nanmean({{0}}, {at}{keep})"]  # fmt: skip
        rough = [*smooth, f"x.ptp({{0}}, {at})", f"x.astype(x.argmax({{0}}, {at}{keep}), np.float64)",
                 f"x.astype(x.argmin({{0}}, {at}{keep}), np.float64)", f"x.astype(x.any({{0}} > 0.3, {at}{keep}), np.float64)",
                 f"x.astype(x.all({{0}} > -0.9, {at}{keep}), np.float64)", f"x.astype(x.count_nonzero({{0}} > 0.0, {at}{keep}), np.float64)",
                 f"x.median({{0}}, {at}{keep})", f"x.percentile({{0}}, 30.0, {at}{keep})",
                 f"x.quantile({{0}}, 0.8, {at}{keep})", f"x.astype(x.argsort({{0}}, {at}, stable=True), np.float64)",
                 f"x.nanmax({{0}}, {at}{keep})", f"x.partition({{0}}, 0, {at}).min({at})",
                 f"x.sort({{0}}, {at})", f"x.astype(x.cumsum({{0}} > 0.0, {at}), np.float64)"]  # fmt: skip
        choice = smooth if self.smooth else rough
        return self.add(choice[self.draw(len(choice))], value)

    def _rearranged(self, value, array, rank, axis):
        if array.size == 0:
            return False
        last = array.shape[-1]
        texts = [f"x.tile({{0}}, {1 + self.draw(3)})", f"x.moveaxis({{0}}, {axis}, {self.draw(rank)})",
                 "x.ravel({0})", "x.squeeze({0})", "x.atleast_2d({0})", "x.atleast_3d({0})",
                 f"x.roll({{0}}, {self.draw(9) - 4})", f"x.roll({{0}}, {self.draw(9) - 4}, axis={axis})",
                 f"x.split({{0}}, [{self.draw(last + 1)}], axis=-1)[{self.draw(2)}]",
                 f"x.array_split({{0}}, {1 + self.draw(3)}, axis={axis})[-1]", "x.hstack([{0}, {0}])",
                 "x.vstack([{0}, {0}])", "x.dstack([{0}, {0}])", "x.flipud({0})", f"x.append({{0}}, {{0}}, axis={axis})",
                 f"x.delete({{0}}, {self.draw(array.shape[axis])}, axis={axis})",
                 f"x.insert({{0}}, {self.draw(array.shape[axis] + 1)}, 0.5, axis={axis})",
                 f"x.unstack({{0}}, axis={axis})[-1]", f"x.pad({{0}}, ((1, 0),) + ((0, 0),) * {rank - 1}, constant_values=0.5)", "x.diag(x.ravel({0}))",
                 f"x.repeat({{0}}, 3, axis={axis})"]  # fmt: skip
        if rank >= 2:
            texts += ["x.fliplr({0})", f"x.rot90({{0}}, {self.draw(5)})", f"x.trace({{0}}, {self.draw(3) - 1})",
                      f"x.diagonal({{0}}, {self.draw(3) - 1})", f"x.tril({{0}}, {self.draw(5) - 2})",
                      f"x.triu({{0}}, {self.draw(5) - 2})", "x.matrix_transpose({0})",
                      "x.einsum('...ij->...ji', {0})", "x.einsum('ij...->j...', {0})",
                      "x.outer({0}[0], {0}[:, 0])", "x.kron({0}, x.ones((1, 2)))"]  # fmt: skip
        return self.add(texts[self.draw(len(texts))], value)

    def _gathered(self, value, array, rank, axis):
        if 0 in array.shape:
            return False
        size = array.shape[axis]
        before = ":, " * axis
        at = sorted(self.draw(size) for _ in range(1 + self.draw(4)))
        texts = ["{0}[" + before + f"np.array({at})]", "{0}[" + before + f"{-1 - self.draw(size)}]",
                 "{0}[..., np.array([0, -1])]", f"x.take({{0}}, np.array({at}), axis={axis})",
                 "x.take_along_axis({0}, x.argsort({0}, axis=" + f"{axis}, stable=True), axis={axis})"]  # fmt: skip
        if rank >= 2:
            rows = [self.draw(array.shape[0]) for _ in range(3)]
            columns = [self.draw(array.shape[1]) - array.shape[1] * self.draw(2) for _ in range(3)]
            texts += [f"{{0}}[np.array({rows}), np.array({columns})]",
                      f"{{0}}[np.array({rows})[:, None], np.array({columns})]",
                      f"{{0}}[np.array({rows})][:, np.array({columns})]"]  # fmt: skip
        if rank >= 3:
            texts.append("{0}[np.array([0, -1]), :, np.array([-1, 0])]")
        if self.smooth:
            texts = [text for text in texts if "argsort" not in text]
        return self.add(texts[self.draw(len(texts))], value)

    def _scanned(self, value, array, rank, axis):
        if 0 in array.shape:
            return False
        beside = self.beside(array.shape[1:])
        c = "{1}" if rank > 1 else "{1}.sum()"  # in the shape of the carry
        how = f"reverse={self.draw(2) == 1})[{self.draw(2)}]"
        texts = ["x.scan(lambda h, v: (h * 0.5 + v, h * v), {0}[0], {0}, " + how,
                 f"x.scan(lambda h, v: (x.tanh(h * {c} + v), h - v * {c}), {{0}}[-1], {{0}}, " + how,
                 f"x.scan(lambda h, v: (x.sin(v) - h * 0.5, h.sum() * {c}), {{0}}[0] * 2.0, {{0}}, " + how,
                 f"x.scan(lambda h, v: (h, x.sigmoid(v + {c})), {{0}}[0].sum(), {{0}}, " + how]  # fmt: skip
        if rank >= 2:
            texts += ["x.scan(lambda h, v: (h[..., ::-1] * 0.5 + v, x.flip(h, 0)), {0}[0], {0}, " + how,
                      "x.scan(lambda h, v: x.scan(lambda g, u: (g * u.sum() + 0.1, g + {1}.sum()), h, v), "
                      "{0}[0].sum(), {0}, " + how]  # fmt: skip
        return self.add(texts[self.draw(len(texts))], value, beside)

    def program(self, steps):
        tries = 0
        while len(self.steps) < steps and tries < 10 * steps:
            tries += 1
            self.step()
        count = len(self.inputs)
        number = {"input": 0, "step": count}
        written = [
            Step(text, tuple(number[k] + i for k, i in operands)) for text, operands in self.steps
        ]
        return Program(self.inputs, written)


def random_program(seed, smooth=False):
    rng = np.random.default_rng(seed)
    return Writer(rng, smooth).program(2 + int(rng.integers(7)))


def on(device, arrays):
    if device == "cpu":
        return arrays
    import torch

    return [torch.tensor(a, device=device) for a in arrays]


def back(result):
    return np.asarray(result.cpu() if hasattr(result, "cpu") else result)


def depends_on_rounding(program, n, want):
    """Whether result `n` is another one with more digits: a comparison of what is equal but for them."""
    wide = [a.astype(np.longdouble) if a.dtype == np.float64 else a for a in program.inputs]
    wider = np.asarray(program.function(REFERENCE)(*wide)[n])
    return bool((~(np.abs(wider - want) <= 1e-9 * (1 + np.abs(want)))).any())


def disagreement(program, device="cpu"):
    """What is wrong with the compiled function's values; None if nothing is."""
    want = program.function(REFERENCE)(*program.inputs)
    compiled = segfuse.compile(program.function(OURS))
    got = compiled(*on(device, program.inputs))
    for n, (a, b) in enumerate(zip(got, want, strict=True)):
        a, b = back(a), np.asarray(b)
        if a.shape != b.shape:
            return f"result {n} has the shape {a.shape}, expected {b.shape}"
        wrong = ~(np.abs(a - b) <= 1e-9 * (1 + np.abs(b)))
        if wrong.any() and not depends_on_rounding(program, n, b):
            return f"result {n}: {int(wrong.sum())} of {wrong.size} elements are wrong"
    return None


def wrong_gradient(program, device="cpu"):
    """The same for the gradients, against central differences along a random direction."""
    floats = [i for i, a in enumerate(program.inputs) if a.dtype == np.float64]
    used = {i for step in program.steps for i in step.operands}
    floats = [i for i in floats if i in used]
    reference = program.scalar(REFERENCE)
    scalar = program.scalar(OURS)
    gradients = segfuse.grad(scalar, argnums=tuple(floats))(*on(device, program.inputs))
    rng = np.random.default_rng(1)
    for i, gradient in zip(floats, gradients, strict=True):
        gradient = back(gradient)
        if gradient.shape != program.inputs[i].shape:
            return f"gradient {i} has the shape {gradient.shape}"
        direction = rng.uniform(-1, 1, size=gradient.shape)
        slopes = []
        for h in (1e-4, 5e-5):
            ends = []
            for sign in (1, -1):
                moved = list(program.inputs)
                moved[i] = moved[i] + sign * h * direction
                ends.append(float(reference(*moved)))
            slopes.append((ends[0] - ends[1]) / (2 * h))
        slope = (4 * slopes[1] - slopes[0]) / 3  # Richardson
        got = float((gradient * direction).sum())
        scale = float(np.abs(gradient * direction).sum()) + abs(float(reference(*program.inputs)))
        if not abs(got - slope) <= 1e-6 * (1 + scale):
            return f"gradient by v{i}: slope {got}, expected {slope}"
    return None


def shrunk(program, fails):
    """The program with as few steps as it fails with."""
    changed = True
    while changed:
        changed = False
        first = len(program.inputs)
        for n in reversed(range(len(program.steps))):
            at = first + n
            if any(at in step.operands for step in program.steps):
                continue
            smaller = Program(program.inputs, program.steps[:n] + [
                Step(s.text, tuple(o - (o > at) for o in s.operands)) for s in program.steps[n + 1 :]
            ])  # fmt: skip
            if smaller.steps and fails(smaller):
                program, changed = smaller, True
                break
    used = sorted({o for s in program.steps for o in s.operands if o < len(program.inputs)})
    number = {old: new for new, old in enumerate(used)}
    drop = len(program.inputs) - len(used)
    steps = [
        Step(s.text, tuple(number.get(o, o - drop) for o in s.operands)) for s in program.steps
    ]
    return Program([program.inputs[i] for i in used], steps)


def check(seed, gradients=False, device="cpu"):
    """A report of what is wrong with one random function; None if nothing is."""
    program = random_program(seed, smooth=gradients)
    if not program.steps:
        return None
    judge = wrong_gradient if gradients else disagreement

    def verdict(candidate):
        try:
            return judge(candidate, device)
        except segfuse.Error as error:
            return f"refused: {error}"

    return report(program, verdict, f"seed {seed}{' (gradients)' if gradients else ''}")


def report(program, verdict, name):
    """What verdict(program) finds, of the shortest program that has it; None if it finds nothing."""
    found = verdict(program)
    if found is None:
        return None
    kind = found.split(":")[0]
    small = shrunk(program, lambda p: (verdict(p) or "").split(":")[0] == kind)
    return f"{name}: {verdict(small)}\n{small.text()}"


def run_all(work, jobs, processes):
    """Prints what work(job) reports and how many passed; returns the exit status."""
    failed = 0
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for found in pool.imap_unordered(work, jobs, chunksize=8):
            if found is not None:
                failed += 1
                print(found, flush=True)
    print(f"{len(jobs) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _work(job):
    try:
        return check(*job)
    except Exception:
        return f"seed {job[0]}: {traceback.format_exc()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--values", type=int, default=200)
    parser.add_argument("--gradients", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    a = parser.parse_args()
    segfuse.set_threads(1)
    jobs = [(a.seed + i, False, a.device) for i in range(a.values)]
    jobs += [(a.seed + i, True, a.device) for i in range(a.gradients)]
    return run_all(_work, jobs, a.jobs)


if __name__ == "__main__":
    sys.exit(main())
