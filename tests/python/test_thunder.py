"""The executor of Lightning Thunder against eager PyTorch.

CI has a PyTorch that lightning-thunder 0.2.6 cannot import: there only the error is tested. All of
it runs with PyTorch 2.11.
"""

import copy
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
import torch_models as models
from eager import close, gradients, leaves
from torch import nn

import segfuse

try:
    import thunder

    import segfuse.thunder as st
except ImportError as error:
    thunder, WHY = None, str(error)
else:
    WHY = ""

needs_thunder = pytest.mark.skipif(thunder is None, reason=WHY)
DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]


@pytest.fixture(params=DEVICES)
def device(request):
    with torch.device(request.param):
        yield request.param


def jit(function, *others, **how):
    return thunder.jit(function, executors=[*others, st.executor], **how)


def regions(compiled):
    """The calls of regions in the last traces, forward then backward."""
    traces = thunder.last_traces(compiled)[-1:]
    if thunder.last_backward_traces(compiled):
        traces += thunder.last_backward_traces(compiled)[-1:]
    symbols = [bsym for trace in traces for bsym in trace.bound_symbols]
    return [
        b._call_ctx[b.sym.name]
        for b in symbols
        if b.sym.is_fusion and b.sym.executor is st.executor
    ]


def parts(compiled):
    """Those of the last graph of each region that was called."""
    return [
        part for region in regions(compiled) for made in region.divided[-1:] for part in made.parts
    ]


def left(compiled):
    """What PyTorch runs within regions that were called."""
    graphs = [made for region in regions(compiled) for made in region.divided]
    return [name for made in graphs for name, _ in made.left]


def check(function, *args, tolerance=None, fused=True, others=(), **how):
    """Results and gradients of a function of tensors against eager ones."""
    ours, theirs = leaves(args), leaves(args)
    compiled = jit(function, *others, **how)
    made, expected = compiled(*ours), function(*theirs)
    close(made, expected, tolerance)
    for a, b in zip(ours, theirs, strict=True):  # they may have been overwritten
        close(a, b, tolerance) if isinstance(a, torch.Tensor) and not a.requires_grad else None
    close(gradients(made, ours), gradients(expected, theirs), tolerance)
    assert bool(parts(compiled)) == fused
    return compiled


@pytest.mark.parametrize(
    ("module", "found"),
    [
        ("raise ImportError('none here')", "ImportError: none here"),
        ("import torch; torch.Tensor.align_to_nothing", "AttributeError: type object 'Tensor'"),
    ],
)
def test_without_thunder_one_sentence_says_so(tmp_path, module, found):
    (tmp_path / "thunder.py").write_text(module)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import segfuse.thunder"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: segfuse.thunder needs Lightning Thunder") and found in last


# --- models ---


class Block(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, frames, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (a.view(rows, frames, self.heads, -1).transpose(1, 2) for a in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, frames, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """As nanoGPT is written; the result is the loss."""

    def __init__(self, words=19, frames=12, width=32, dropout=0.0):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(frames, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words, targets):
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        x = self.drop(x)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def gpt(**how):
    return Gpt(**how), (torch.randint(0, 19, (3, 12)), torch.randint(0, 19, (3, 12)))


@needs_thunder
@pytest.mark.parametrize("name", ["mlp", "conv", "llama", "llama_fused"])
def test_models(name, device):
    model, args = models.make(name)
    twin = copy.deepcopy(model)
    compiled = jit(model)
    ours, theirs = leaves(args), leaves(args)
    made, expected = compiled(*ours), twin(*theirs)
    close(made, expected)
    close(
        gradients(made, [*ours, *model.parameters()]),
        gradients(expected, [*theirs, *twin.parameters()]), 2e-4,
    )  # fmt: skip
    assert parts(compiled)


def overwritten(x, y):
    z = x * 2
    z += y
    z[:, 1:3].mul_(3)
    return z.relu_() + 1, z


@needs_thunder
@pytest.mark.parametrize("name", ["lstm_cell", "classifier", "overwritten"])
def test_what_thunder_differentiates_in_its_own_way(name, device):
    """Thunder 0.2.6 gives other results than PyTorch here, with its PyTorch executor, too."""
    model, args = overwritten, (torch.randn(4, 5), torch.randn(4, 5))
    if name != "overwritten":
        model, args = models.make(name)
    weights = [*model.parameters()] if isinstance(model, nn.Module) else []
    compiled, alone = jit(model), thunder.jit(model, executors=["torch"])
    ours, theirs = leaves(args), leaves(args)
    made, expected = compiled(*ours), alone(*theirs)
    close(made, expected)
    close(gradients(made, [*ours, *weights]), gradients(expected, [*theirs, *weights]), 1e-4)
    assert parts(compiled)


@needs_thunder
@pytest.mark.parametrize("sdpa", [True, False], ids=["sdpa", "apart"])
def test_a_gpt_trains_as_in_eager(sdpa, device):
    model, args = gpt()
    twin = copy.deepcopy(model)
    compiled = jit(model, *["sdpa"] * sdpa)
    losses = []
    for m, step in ((model, compiled), (twin, twin)):
        optimizer = torch.optim.AdamW(m.parameters(), lr=0.02)
        found = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = step(*args)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] < 0.9 * losses[0][0]
    assert len(parts(compiled)) >= 2 and not left(compiled)
    assert max(len(region.divided) for region in regions(compiled)) <= 2


@needs_thunder
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_of_floats(dtype, device):
    def function(x, w):
        y = F.layer_norm(x, (8,), w[0]) @ w
        return F.gelu(y).softmax(-1), y.sum(0), (y * 3 - 1).tanh()

    check(function, torch.randn(5, 8, dtype=dtype), torch.randn(8, 8, dtype=dtype))


@needs_thunder
def test_16_bit_values_are_rounded_as_in_eager(device):
    def function(x):
        return (x * 1.1 + x).exp() - x

    x = torch.randn(1000, dtype=torch.bfloat16)
    compiled = jit(function)
    torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)
    assert parts(compiled)


@needs_thunder
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
def test_dtypes_of_whole_numbers(dtype, device):
    a, b = torch.randint(-9, 9, (4, 5)).to(dtype), torch.randint(1, 9, (4, 5)).to(dtype)

    def function(a, b):
        both = torch.where(a < b, a, b)
        if dtype is torch.bool:
            return both & a, both | ~b, both.sum(), (a ^ b).any(), both.float().mean()
        return (
            a * 3 - b,
            both.sum(),
            both.amax(1),
            a // b,
            torch.remainder(a, b),
            a.abs().float(),
            a == both,
            -a,
        )

    check(function, a, b)


@needs_thunder
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.complex64], ids=str)
def test_dtypes_that_stay_with_other_executors(dtype):
    x = torch.ones(3, 4, dtype=dtype)
    compiled = check(lambda x: (x * x + 3) * x, x, fused=False)
    assert not regions(compiled)
    assert f"segfuse has no {str(dtype).removeprefix('torch.')}" in st.executor.refused["mul"]


# --- numbers ---

EDGES = [0.0, -0.0, 1.5, -2.5, float("inf"), float("-inf"), float("nan"), 1e-45, 3e38]


@needs_thunder
def test_numbers_at_the_edges(device):
    """PyTorch's vectors give NaN where a quotient overflows in fmod, its scalars the rest."""
    x = torch.tensor(EDGES).repeat_interleave(len(EDGES))
    y = torch.tensor(EDGES).repeat(len(EDGES))

    def function(x, y):
        return (
            x / y, x * y, x + y, torch.maximum(x, y), torch.minimum(x, y), x == y, x < y,
            x.abs().sqrt(), x.exp(), (1 + x).log(), x.tanh(), torch.where(x > y, x, y), x.sign(),
            x.floor(), x.round(), x.isfinite(), torch.fmod(x, y.round()), torch.pow(x, y), x.reciprocal(),
            torch.clamp(x, -1, 2), torch.remainder(x, y.round()), x != 0, F.relu(x), torch.atan2(x, y),
        )  # fmt: skip

    compiled = jit(function)
    for made, expected in zip(compiled(x, y), function(x, y), strict=True):
        assert made.dtype == expected.dtype
        torch.testing.assert_close(made, expected, rtol=2e-6, atol=1e-44, equal_nan=True)
    assert parts(compiled)


@needs_thunder
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_whole_numbers_wrap(dtype, device):
    top = torch.iinfo(dtype).max
    x = torch.tensor([top, -top - 1, 0, 3, -7, 1], dtype=dtype)

    def function(x):
        return (
            x * 3 + 1,
            x + x,
            -x,
            x.abs(),
            x * x,
            x.sum(),
            x.prod(),
            x / 7,
            torch.remainder(x, -4),
            torch.floor_divide(x, -2),
        )

    made, expected = jit(function)(x), function(x)
    assert all(map(torch.equal, made, expected))


@needs_thunder
def test_whole_division_by_zero_is_an_error_on_the_cpu():
    a, b = torch.tensor([6, 7]), torch.tensor([2, 0])
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        jit(lambda a, b: (a * 2) // b + a * 3)(a, b)


@needs_thunder
def test_sums_and_extremes_with_nan_and_of_nothing(device):
    x = torch.tensor([[1.0, float("nan"), -2.0], [3.0, 4.0, float("inf")]])

    def function(x):
        return (
            x.sum(), x.sum(1), x.mean(0), x.amax(1), x.amin(0), x.argmax(1), x.var(0), x.prod(1),
            (x * 2).softmax(1), x.logsumexp(1),
        )  # fmt: skip

    close(jit(function)(x), function(x))
    none = torch.zeros(2, 0)

    def of_none(x):
        y = x * 2 + 1
        return y.sum(), y.sum(1), y.prod(1), y.mean(1), y.reshape(0, 2), (y > 0).any()

    close(jit(of_none)(none), of_none(none))


@needs_thunder
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (1, 1, 1)], ids=str)
def test_scalars_and_nothing(shape, device):
    def function(x, y):
        z = x * y + 2
        return z, z.sum(), z.exp() * 2, z.reshape(-1), (z > 0).any()

    check(function, torch.randn(shape), torch.randn(()))


@needs_thunder
def test_an_index_out_of_range(device):
    def function(table, at):
        return (table[at] * 2).exp() + 1

    table, at = torch.randn(5, 3), torch.tensor([0, 4, 2])
    compiled = check(function, table, at)
    if device == "cpu":
        with pytest.raises(segfuse.UsageError, match="index 5 is out of range"):
            compiled(table, torch.tensor([0, 5, 2]))


# --- memory and sizes ---


@needs_thunder
def test_in_place_operations(device):
    def function(x, y):
        z = x * 2
        z += y
        z.mul_((y - 1).exp())
        return z.relu_() + 1, (z * 2).tanh()

    x, y = torch.randn(4, 5), torch.randn(4, 5)
    compiled = jit(function)
    close(compiled(x, y), function(x, y))
    assert parts(compiled)


@needs_thunder
def test_a_part_of_a_tensor_is_overwritten(device):
    def function(x, y):
        z = (x * 2).exp() + y
        z[:, 1:3].mul_(3)
        return (z * 2).tanh() + 1, z

    x, y = torch.randn(4, 5), torch.randn(4, 5)
    compiled = jit(function)
    close(compiled(x, y), function(x, y))
    assert len(parts(compiled)) == 2


@needs_thunder
def test_inputs_are_overwritten(device):
    def function(x, y):
        x.add_(y.exp()).mul_(2)
        return x.sum() * y

    xs = [torch.randn(3, 4) for _ in range(2)]
    ours, theirs = [x.clone() for x in xs], [x.clone() for x in xs]
    compiled = jit(function)
    close(compiled(*ours), function(*theirs))
    close(ours, theirs)


@needs_thunder
def test_buffers_are_overwritten(device):
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU())
    twin = copy.deepcopy(model)
    compiled = jit(model)
    for _ in range(3):
        x = torch.randn(7, 5)
        close(compiled(x), twin(x))
        close(list(model.buffers()), list(twin.buffers()))


@needs_thunder
def test_results_share_memory_as_thunders_do(device):
    def function(x):
        y = (x * 2).exp()
        return x, x[1:], y, y.t(), y[:, 2], x.view(-1), y + 0, y.clone(), x.to(torch.float64)

    x = torch.randn(4, 5)
    made, alone = jit(function)(x), thunder.jit(function, executors=["torch"])(x)
    close(made, alone)

    def memory(results):
        starts = [r.untyped_storage().data_ptr() for r in results]
        return [starts.index(start) for start in starts]

    assert memory(made) == memory(alone)
    assert [r.stride() for r in made] == [r.stride() for r in alone]


@needs_thunder
def test_a_region_copies_where_thunder_copies(device):
    x = torch.randn(3, 4)
    made = jit(lambda x: (x.to(torch.float32, copy=True), (x * 2).exp()))(x)
    assert made[0].data_ptr() != x.data_ptr() and torch.equal(made[0], x)


@needs_thunder
@pytest.mark.parametrize("change", ["t", "step", "expand", "offset", "channels_last", "negative"])
def test_layouts_of_inputs(change, device):
    x = torch.randn(4, 6)
    x = {
        "t": lambda: x.t(), "step": lambda: x[::2, ::3], "expand": lambda: x[:1].expand(5, 6),
        "offset": lambda: x[1:, 2:],
        "channels_last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "negative": lambda: torch.view_as_complex(torch.randn(4, 5, 2)).conj().imag,
    }[change]()  # fmt: skip

    def function(x):
        y = (x * 3).tanh() + 1
        return y, y.sum(0), x.transpose(0, -1) * 2

    compiled = jit(function)
    made, expected = compiled(x), function(x)
    close(made, expected)
    assert [r.stride() for r in made] == [r.stride() for r in expected]
    made, expected = compiled(y := x.contiguous()), function(y)  # by the same trace
    close(made, expected)
    assert [r.stride() for r in made] == [r.stride() for r in expected]


@needs_thunder
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_other_sizes_and_numbers(cache, device):
    def function(x, a):
        return ((x * a).exp() + 1).sum(-1) / x.shape[0]

    compiled = jit(function, cache=cache)
    for size, a in ((3, 2.0), (5, 2.0), (3, -1.5), (1, 3.0), (3, 2.0), (3, 1), (3, True)):
        x = torch.linspace(-1, 1, size * 4).view(size, 4)
        close(compiled(x, a), function(x, a))
    assert parts(compiled)


@needs_thunder
def test_numbers_that_are_equal_are_not_the_same(device):
    """Symbolic numbers are part of a region's graph."""
    compiled = jit(lambda x, a: 1 / (x * a) + x, cache="symbolic values")
    x = torch.tensor([1.0, -2.0])
    for a in (0.0, -0.0, 1, True, 0.0, float("nan"), float("nan")):
        close(compiled(x, a), 1 / (x * a) + x)
    (region,) = regions(compiled)
    assert len(region.divided) <= 5


@needs_thunder
@pytest.mark.parametrize("fusion", ["consecutive", "dataflow"])
def test_regions_around_what_segfuse_has_not(fusion, device):
    def function(x, y):
        a = (x * 2).exp() + y
        b = torch.sort(a, -1)[0]
        c = (y - 1).tanh() * x
        return (b * c).sum(0), a.cumsum(1) * 2 + c

    compiled = check(function, torch.randn(4, 5), torch.randn(4, 5), fusion_type=fusion)
    assert len(regions(compiled)) >= 2
    assert "sort" in st.executor.refused and "cumsum" in st.executor.refused


@needs_thunder
def test_the_same_bits_at_every_run(device):
    model, args = gpt()
    found = []
    for _ in range(2):
        compiled = jit(copy.deepcopy(model))
        for _ in range(2):
            loss = compiled(*args)
            found.append([loss, *torch.autograd.grad(loss, [*compiled.parameters()])])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@needs_thunder
def test_dropout_is_pytorchs(device):
    def function(x):
        return F.dropout((x * 2).exp() + 1, 0.5) * 3

    x = torch.randn(50)
    torch.manual_seed(3)
    expected = thunder.jit(function, executors=["torch"])(x)
    torch.manual_seed(3)
    compiled = jit(function)
    close(compiled(x), expected)
    assert parts(compiled)


@needs_thunder
def test_autocast(device):
    model, x = Block(), torch.randn(2, 6, 32)
    twin = copy.deepcopy(model)
    with torch.autocast(device, dtype=torch.bfloat16):
        compiled = jit(model)
        made, expected = compiled(x), twin(x)
    close(made, expected, 5e-2)
    assert parts(compiled)


# --- what a user of Thunder sees ---


@needs_thunder
def test_regions_are_in_the_trace():
    compiled = jit(lambda x: ((x * 2).exp() + 1).sum())
    compiled(torch.randn(5))
    text = str(thunder.last_traces(compiled)[-1])
    assert "segfuse0(x)" in text and "prims.exp" in text
    (part,) = parts(compiled)
    assert len(part.inputs) == 1 and len(part.outputs) == 1
    assert thunder.extend.get_executor("segfuse") is st.executor


@needs_thunder
@pytest.mark.parametrize(
    "function",
    [lambda x: x * 2, lambda x: x.t().reshape(2, -1), lambda x: x @ x.t(), lambda x: (x * 2).t()],
    ids=["one", "views", "product", "one and a view"],
)
def test_what_gains_nothing_stays(function):
    compiled = jit(function)
    x = torch.randn(3, 4)
    close(compiled(x), function(x))
    assert not regions(compiled)


@needs_thunder
def test_fuel():
    def function(x):
        return torch.sort((x * 2).exp() + 1)[0].exp() * 3

    x = torch.randn(5)
    try:
        for fuel, expected in ((0, 0), (1, 1), (5, 2)):
            st.executor.set_fuel(fuel)
            compiled = jit(function)
            close(compiled(x), function(x))
            assert len(regions(compiled)) == expected
        with pytest.raises(segfuse.UsageError, match="found the fuel -1"):
            st.executor.set_fuel(-1)
    finally:
        st.executor.set_fuel(thunder.extend.FUEL_LEVEL.UNLIMITED)


@needs_thunder
def test_attention_is_left_to_who_has_it(device):
    def function(q, k, v):
        return F.scaled_dot_product_attention(q * 2 + 1, k, v) * 3 - 1

    args = [torch.randn(2, 3, 5, 8) for _ in range(3)]
    compiled = jit(function)
    close(compiled(*args), function(*args))
    names = [bsym.sym.name for bsym in thunder.last_traces(compiled)[-1].bound_symbols]
    assert "scaled_dot_product_attention" in names and len(regions(compiled)) == 2
    if device == "cuda":
        compiled = check(function, *args, others=["sdpa"])
        assert "sdpaex" in str(thunder.last_traces(compiled)[-1])


@needs_thunder
def test_options():
    x = torch.randn(5)
    compiled = jit(lambda x: (x * 2).exp() + 1, segfuse_threads=1)
    close(compiled(x), (x * 2).exp() + 1)
    with pytest.raises(segfuse.UsageError, match="threads"):
        jit(lambda x: (x * 2).exp() + 1, segfuse_threads=-1)(x)
