"""Random PyTorch functions, compiled by `torch.compile(backend="segfuse")` and run by PyTorch itself.

Values and gradients are compared in float64, with fixed sizes and with sizes that are symbols.

    python tests/python/torch_programs.py --programs 1000 [--seed 1] [--device cuda] [--jobs 2]
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from traced import Program, Step, report, run_all

ONE = """
torch.relu({0}) | torch.tanh({0}) | torch.sigmoid({0}) | torch.exp(-{0}.abs()) | -{0} | {0}.abs() | {0}.sin()
{0}.square() | F.gelu({0}) | F.gelu({0}, approximate="tanh") | F.silu({0}) | F.softplus({0}) | {0}.abs().log1p()
torch.sqrt({0}.abs() + 0.1) | torch.rsqrt({0} * {0} + 1) | torch.erf({0}) | {0}.floor() | {0}.round() | {0}.sign()
F.leaky_relu({0}) | F.elu({0}) | F.hardtanh({0}) | {0}.clamp(-0.5, 0.7) | 1 / ({0}.abs() + 1) | F.logsigmoid({0})
{0}.trunc() | {0}.frac() | F.hardswish({0}) | F.mish({0}) | {0}.isnan().to({0}.dtype) + {0} | {0}.cos() | F.relu6({0})
{0}.clamp(-2, 2).expm1() | {0}.detach() * {0} | {0}.contiguous() | {0}.clone().mul_(2).add_(1) | {0}.float().double()
{0}.to(torch.int64).to({0}.dtype) + {0} | ({0} > 0).to({0}.dtype) * {0} | {0}.masked_fill({0} > 0.3, -0.25)
torch.where({0}.isfinite(), {0}, 0.0) | F.dropout({0}, 0.0) | {0}.bfloat16().double() + {0} | torch.atan({0})
"""
TWO = """
{0} + {1} | torch.sub({0}, {1}, alpha=2) | {0} * {1} | {0} / ({1}.abs() + 1) | torch.maximum({0}, {1})
torch.minimum({0}, {1}) | torch.where({0} > {1}, {0}, {1} * 2) | torch.atan2({0}, {1}.abs() + 0.5)
torch.fmod({0}, 2.5) + {1} | torch.remainder({0}, 1.7) + {1} | torch.hypot({0}, {1} + 3) | torch.lerp({0}, {1}, 0.3)
({0} > {1}) * {0} | torch.addcmul({0}, {1}, {1}, value=0.5) | torch.copysign({0}, {1})
torch.pow({0}.abs() + 0.5, {1}.clamp(-2, 2)) | torch.logaddexp({0}, {1}) | torch.true_divide({0}, 2.0) - {1}
"""
# {a}: an axis, {k}: whether it is kept, {n}: a small number, {s}: the axis' size.
AXIS = """
{0}.sum({a}, keepdim={k}) | {0}.mean({a}, keepdim={k}) | {0}.amax({a}, keepdim={k}) | {0}.amin({a}, keepdim={k})
{0}.softmax({a}) | {0}.log_softmax({a}) | {0}.logsumexp({a}, keepdim={k}) | {0}.cumsum({a}) | {0}.flip({a})
{0}.var({a}, keepdim={k}, correction=0) | {0}.clamp(-1.5, 1.5).cumprod({a}) | {0}.clamp(-1.5, 1.5).prod({a}, keepdim={k})
torch.linalg.vector_norm({0} + 0.01, dim={a}, keepdim={k}) | {0}.argmax({a}, keepdim={k}).to({0}.dtype)
{0}.sort(dim={a}, descending={k}, stable=True)[0] | torch.argsort({0}, dim={a}, descending={k}, stable=True).to({0}.dtype)
{0}.topk(({s} + 1) // 2, {a})[0] | ({0} > 0).any({a}, keepdim={k}).to({0}.dtype) | torch.logcumsumexp({0}, {a})
{0}.cummax({a})[0] | {0}.median({a}, keepdim={k})[0] | {0}.narrow({a}, {s} // 2, {s} - {s} // 2)
torch.cat([{0}, {0} * 2, {0}.narrow({a}, 0, 1)], {a}) | torch.stack([{0}, -{0}], {a}) | {0}.roll({n}, {a})
{0}.gather({a}, (torch.arange({0}.numel(), device={0}.device).reshape({0}.shape) * 7 + {n}) % {0}.shape[{a}])
{0}.index_select({a}, (torch.arange(5, device={0}.device) * 3 + {n}) % {0}.shape[{a}]) | {0}.chunk(2, {a})[0]
torch.zeros_like({0}).scatter_add({a}, (torch.arange({0}.numel(), device={0}.device).reshape({0}.shape) * 5) % {0}.shape[{a}], {0})
{0}.select({a}, {s} // 2) | {0}.unsqueeze({a}) | {0}.transpose({a}, -1) | {0}.unfold({a}, 1, 1) | {0}.squeeze({a})
torch.var_mean({0}, {a}, keepdim=True, correction=0)[1] * {0} | {0} - {0}.mean({a}, keepdim=True)
torch.split({0}, [1, {s} - 1], {a})[1].sum({a}) | {0}.movedim({a}, 0) | torch.diff({0}, dim={a})
"""
WHOLE = """
{0}.reshape(-1) | {0}.reshape({0}.shape[0], -1) | {0}.expand(3, *{0}.shape) | F.pad({0}, ({n}, 1), value=0.5)
{0}[..., ::2] | {0}[..., -2:] | {0}.tril({n} - 2) | {0}.triu({n} - 2) | {0}.flatten()[(torch.arange(5) * 3) % {0}.numel()]
F.layer_norm({0}, {0}.shape[-1:]) | F.rms_norm({0}, {0}.shape[-1:]) | F.mse_loss({0}, {0}.detach() * 0.5)
{0}.reshape(-1, {0}.shape[-1]) @ {0}.reshape(-1, {0}.shape[-1]).t() * 0.1 | F.glu(torch.cat([{0}, {0} + 1], -1))
F.cross_entropy({0}.reshape(-1, {0}.shape[-1]), torch.arange({0}.numel() // {0}.shape[-1], device={0}.device) % {0}.shape[-1])
F.group_norm({0}.reshape(1, -1, {0}.shape[-1]), 1) | F.normalize({0} + 0.1, dim=-1) | F.cosine_similarity({0}, {0} * 2 + 1, dim=-1)
F.avg_pool1d({0}.reshape(1, -1, {0}.shape[-1]), 1) | F.conv1d({0}.reshape(1, 1, -1), torch.ones(2, 1, 3).to({0}) * 0.3, padding=1)
F.scaled_dot_product_attention(*[{0}.reshape(1, 1, -1, {0}.shape[-1])] * 3, is_causal=True)
F.batch_norm({0}.reshape(-1, {0}.shape[-1]), torch.zeros({0}.shape[-1:]).to({0}), torch.ones({0}.shape[-1:]).to({0}), training=True)
torch.einsum("...i,...j->...ij", {0}, {0}) * 0.1 | F.linear({0}, torch.ones(3, {0}.shape[-1]).to({0}) * 0.2) | {0}.repeat(2, *[1] * {0}.dim())
torch.index_put({0}, (torch.tensor([0], device={0}.device),), {0}[:1] * 0 + 2.5) | {0}.diagonal(0, 0, -1) | {0}.permute(*reversed(range({0}.dim())))
F.embedding((torch.arange(6, device={0}.device).reshape(2, 3) + {n}) % {0}.shape[0], {0}.reshape({0}.shape[0], -1))
"""


def texts(table):
    return [text.strip() for line in table.strip().splitlines() for text in line.split(" | ")]


LISTS = [texts(table) for table in (ONE, TWO, AXIS, AXIS, WHOLE)]


class Writer:
    """Writes a program and knows its values in PyTorch."""

    def __init__(self, rng):
        self.rng = rng
        shape = [self.draw([1, 2, 3, 4, 5, 7, 8]) for _ in range(self.draw([1, 2, 3, 4]))]
        second = self.draw([shape, shape[-1:], [1, *shape[1:]]])
        self.inputs = [rng.normal(size=shape), rng.normal(size=second)]
        self.values = [torch.tensor(x) for x in self.inputs]
        self.steps = []

    def draw(self, choices):
        return choices[int(self.rng.integers(len(choices)))]

    def step(self):
        at = [self.draw(range(len(self.values))) for _ in range(2)]
        if self.draw(range(3)):
            at[0] = len(self.values) - 1
        x = self.values[at[0]]
        text = self.draw(self.draw(LISTS))
        axis = self.draw(range(-x.dim(), x.dim())) if x.dim() else 0
        if "{a}" in text and x.dim() == 0:
            return
        size = x.shape[axis] if x.dim() else 1
        for key, what in {"{a}": axis, "{k}": self.draw([True, False]), "{s}": size}.items():
            text = text.replace(key, str(what))
        text = text.replace("{n}", str(self.draw(range(5))))
        at = at[: 1 + ("{1}" in text)]
        try:
            value = eval(text.format("a", "b"), scope(), {"a": x, "b": self.values[at[-1]]})
        except (RuntimeError, IndexError, TypeError, ValueError):
            return
        # What is compared must not hang on the last digit.
        if 0 < value.numel() < 4000 and value.isfinite().all() and value.abs().max() < 1e4:
            self.values.append(value.double())
            self.steps.append(Step(text, tuple(at)))

    def program(self, steps):
        for _ in range(4 * steps):
            if len(self.steps) < steps:
                self.step()
        return Program(self.inputs, self.steps)


def scope():
    return {"torch": torch, "F": F}


def random_program(seed):
    rng = np.random.default_rng(seed)
    return Writer(rng).program(2 + int(rng.integers(8)))


def function(program):
    names = scope()
    exec(program.text(), names)
    return names["f"]


def run(called, program, device):
    """Results, and gradients of what has some."""
    inputs = [torch.tensor(x, device=device, requires_grad=True) for x in program.inputs]
    results = called(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    ends = [r for r in results if r.requires_grad]
    weights = [torch.linspace(0.5, 1.5, r.numel(), dtype=r.dtype, device=device) for r in ends]
    slopes = [None] * len(inputs)
    if ends:
        weights = [w.reshape(r.shape) for w, r in zip(weights, ends, strict=True)]
        slopes = torch.autograd.grad(ends, inputs, weights, allow_unused=True)
    zero = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, slopes, strict=True)]
    return [*results, *zero]


def disagreement(program, dynamic, device="cpu"):
    """What is wrong with the compiled function; None if nothing is."""
    eager = function(program)
    expected = run(eager, program, device)
    torch._dynamo.reset()
    made = run(torch.compile(eager, backend="segfuse", dynamic=dynamic), program, device)
    count = len(expected) - len(program.inputs)
    for i, (a, b) in enumerate(zip(made, expected, strict=True)):
        what = f"result {i}" if i < count else f"the gradient by v{i - count}"
        if (a.shape, a.dtype, a.requires_grad) != (b.shape, b.dtype, b.requires_grad):
            return f"{what} is {a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
        # PyTorch's hardswish on a GPU has a sixth with the digits of float32, also in float64.
        coarse = device != "cpu" and "hardswish" in program.text()
        tolerance = 1e-6 if coarse else 1e-8
        if not torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"{what}: wrong by {float((a - b).abs().max()):.3g}"
    return None


def check(seed, device="cpu"):
    """A report of what is wrong with one random program; None if nothing is."""
    program = random_program(seed)
    if not program.steps:
        return None
    dynamic = (None, True, False)[seed % 3]

    def verdict(candidate):
        try:
            return disagreement(candidate, dynamic, device)
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"

    return report(program, verdict, f"seed {seed}, dynamic={dynamic}")


def _work(job):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    try:
        return check(*job)
    except Exception:
        return f"seed {job[0]}: {traceback.format_exc()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    a = parser.parse_args()
    jobs = [(a.seed + i, a.device) for i in range(a.programs)]
    return run_all(_work, jobs, a.jobs)


if __name__ == "__main__":
    sys.exit(main())
