"""The table of ATen operations of `torch.compile(backend="segfuse")`, by PyTorch's own samples."""

import os
import pathlib
import re

import pytest

torch = pytest.importorskip("torch")

import torch_operations as operations

from segfuse.torch._compile import backend, table

COVERAGE = pathlib.Path(__file__).parents[2] / "docs/coverage.md"
FEW = (
    "add", "sub", "mul", "div", "pow", "remainder", "fmod", "clamp", "where", "sign", "maximum",
    "sum", "mean", "amax", "argmax", "argmin", "any", "all", "prod", "var_mean", "softmax",
    "log_softmax", "cat", "gather", "index_select", "select", "narrow", "flip", "repeat", "unfold",
    "addmm", "baddbmm", "matmul", "nn.functional.nll_loss", "nn.functional.cross_entropy",
    "nn.functional.embedding", "nn.functional.layer_norm", "nn.functional.group_norm", "sort",
    "nn.functional.gelu", "slice_scatter", "nn.functional.pad", "bitwise_and", "floor", "isnan",
)  # fmt: skip


def right_or_left(names, dtypes, most):
    found, wrong = 0, []
    for info, dtype, sample, outcome in operations.sweep(names, dtypes, most):
        found += outcome.status == "right"
        if outcome.status == "wrong":
            wrong.append(f"{info.name} {dtype}: {outcome.text}: {sample}"[:400])
    assert not wrong, "\n".join(wrong)
    return found


def test_samples():
    assert right_or_left(FEW, (torch.float32,), 1) > 30


@pytest.mark.skipif("SEGFUSE_LONG" not in os.environ, reason="minutes; SEGFUSE_LONG=1 runs it")
def test_all_samples():
    assert right_or_left(None, operations.DTYPES, 6) > 1000


def test_the_sweep_sees_a_fault(monkeypatch):
    """A row that is wrong by one unit in a thousand."""
    backend.decompositions()
    row = table.TABLE[torch.ops.aten.exp.default]
    bent = table.Row(
        lambda result, self: row.function(result, self) * 1.001, row.types, row.refuses, False,
        row.numbers,
    )  # fmt: skip
    monkeypatch.setitem(table.TABLE, torch.ops.aten.exp.default, bent)
    with pytest.raises(AssertionError, match="exp .*differs by"):
        right_or_left(("exp",), (torch.float32,), 1)


def test_coverage_is_current():
    """docs/coverage.md has the rows of the table, none of them wrong."""
    text = COVERAGE.read_text()
    assert set(re.findall(r"^\| `(\S+)` \|", text, re.M)) == {str(op) for op in table.TABLE}
    assert re.search(r"^\| \d+ \| \d+ \| \d+ \| \d+ \| 0 \|$", text, re.M)


SPECIAL = [0.0, -0.0, 1.5, -2.5, 0.5, float("inf"), -float("inf"), float("nan"), 1e-40, 3e38]
SPECIAL_CASES = {
    "sign": torch.sign, "round": torch.round, "trunc": torch.trunc, "relu": torch.relu,
    "exp": torch.exp, "log": torch.log, "log1p": torch.log1p, "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "erf": torch.erf,
    "isnan": torch.isnan, "isinf": torch.isinf, "logical_not": torch.logical_not,
    "bool": lambda x: x.bool(), "max": lambda x: x.max(), "argmax": lambda x: x.argmax(),
    "argmin": lambda x: x.argmin(), "max_dim": lambda x: x.view(2, -1).max(1).indices,
    "clamp": lambda x: x.clamp(-1, 2), "softmax": lambda x: x.view(2, -1).softmax(1),
    "square": lambda x: x**2, "cube": lambda x: x**3, "root": lambda x: x**0.5,
    "any": lambda x: x.any(), "all": lambda x: x.all(), "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "nan_to_num": torch.nan_to_num, "abs": torch.abs,
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL_CASES)
def test_special_numbers(name):
    """Infinities, NaN and zeros come out as in eager PyTorch."""
    x, function = torch.tensor(SPECIAL), SPECIAL_CASES[name]
    watch = []
    (found,) = operations.compiled(lambda x: [function(x)], watch)(x)
    assert sum(len(graph.parts) for graph in watch) >= 1
    torch.testing.assert_close(found, function(x), equal_nan=True)


PAIRS = {
    "remainder": torch.remainder, "fmod": torch.fmod, "floor": lambda a, b: torch.floor_divide(a, b),
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"), "pow": torch.pow,
    "minimum": torch.minimum, "le": torch.le, "eq": torch.eq,
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_special_pairs(name):
    numbers = torch.tensor([*SPECIAL[:8], 7.0, -7.0, 3.0])
    a, b = numbers[:, None], numbers[None, :]
    watch = []
    (found,) = operations.compiled(lambda a, b: [PAIRS[name](a, b)], watch)(a, b)
    assert sum(len(graph.parts) for graph in watch) == 1
    torch.testing.assert_close(found, PAIRS[name](a, b), equal_nan=True)


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed):
    """Chains of operations that a seed chooses, over shapes that it chooses, with gradients."""
    generator = torch.Generator().manual_seed(seed)

    def choose(n):
        return int(torch.randint(n, (), generator=generator))

    unary = [torch.sin, torch.tanh, lambda x: x * 2 - 1, lambda x: x.relu() + x, torch.sigmoid,
             lambda x: x.softmax(-1), lambda x: x - x.mean(0, keepdim=True), lambda x: x.flip(-1),
             lambda x: x.t().contiguous().t(), lambda x: x.cumsum(-1) / 3,
             lambda x: torch.cat((x[:, 1:], x[:, :1]), 1), lambda x: x / (x.abs().amax(1, True) + 1),
             lambda x: x.masked_fill(x > 1, 0.5), lambda x: (x @ x.t()) @ x / 9]  # fmt: skip
    binary = [torch.add, torch.mul, torch.maximum, lambda a, b: torch.where(a > b, a, b * 2)]
    plan = [(choose(3), choose(len(unary)), choose(len(binary)), choose(9)) for _ in range(14)]

    def function(x, y):
        values = [x, y]
        for kind, one, two, place in plan:
            a = values[-1 - place % len(values)]
            values.append(unary[one](a) if kind else binary[two](a, values[-1]))
        return [values[-1], values[-3].sum(0)]

    shape = (choose(5) + 2, choose(6) + 2)
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)]
    watch = []
    found = operations.with_gradients(operations.compiled(function, watch))(*tensors)
    assert operations.difference(found, operations.with_gradients(function)(*tensors)) is None
    assert watch and any(graph.parts for graph in watch)
