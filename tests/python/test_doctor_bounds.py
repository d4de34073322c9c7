"""Bounds of results by `_watch/recorder/rules.h`: no result is beyond its bound, whatever the
operands; and a result that is not read for its bound is one that is finite."""

import itertools
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import segfuse.torch
from segfuse.torch._watch import compiled, numerics

aten = torch.ops.aten
INDEX = torch.tensor([[0, 2, 1, 1], [3, 3, 0, 2], [1, 0, 2, 3]])
MASK = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])


def lists(*xs):
    return [[x, x.t().contiguous().t()] for x in xs]


def cases():
    """By operator of the table: a function of tensors of 3 x 4, and what it gives."""
    c = {}

    def case(names, function):
        for name in names.split():
            c.setdefault(name, []).append(function)

    # numbers that are given
    case("zero", lambda x, y, z: x.clone().zero_())
    case("zeros", lambda x, y, z: torch.zeros(3, dtype=x.dtype))
    case("zeros_like", lambda x, y, z: torch.zeros_like(x))
    case("new_zeros", lambda x, y, z: x.new_zeros(3))
    case("_foreach_zero", lambda x, y, z: written(torch._foreach_zero_, [x.clone()]))
    case("ones", lambda x, y, z: torch.ones(3, dtype=x.dtype))
    case("ones_like", lambda x, y, z: torch.ones_like(x))
    case("new_ones", lambda x, y, z: aten.new_ones(x, [3]))
    case("rand", lambda x, y, z: torch.rand(9, dtype=x.dtype))
    case("rand.generator", lambda x, y, z: torch.rand(9, generator=torch.Generator()).to(x.dtype))
    case("bernoulli", lambda x, y, z: torch.bernoulli(x.sigmoid()))
    case("bernoulli.p", lambda x, y, z: torch.bernoulli(x, 0.5))
    case("bernoulli.float", lambda x, y, z: x.clone().bernoulli_(0.5))
    case("bernoulli.Tensor", lambda x, y, z: x.clone().bernoulli_(torch.tensor(0.5)))
    case("full", lambda x, y, z: torch.full((3,), 5.5, dtype=x.dtype))
    case("full_like", lambda x, y, z: torch.full_like(x, -5.5))
    case("fill.Scalar", lambda x, y, z: x.clone().fill_(-5.5))
    case("fill.Tensor", lambda x, y, z: x.clone().fill_(y.amax()))
    case("new_full", lambda x, y, z: x.new_full((3,), 5.5))
    case("scalar_tensor", lambda x, y, z: torch.scalar_tensor(-5.5, dtype=x.dtype))
    # other places
    for name in ("clone", "neg", "abs", "relu"):
        case(name, lambda x, y, z, n=name: getattr(torch, n)(x))
    case("_unsafe_view", lambda x, y, z: aten._unsafe_view(x.clone(), [12]))
    case("flip", lambda x, y, z: x.flip(0))
    case("roll", lambda x, y, z: x.roll(1, 0))
    case("tril", lambda x, y, z: x.tril())
    case("triu", lambda x, y, z: x.triu())
    case("repeat", lambda x, y, z: x.repeat(2, 2))
    case("expand_copy", lambda x, y, z: torch.expand_copy(x[:1], (5, 4)))
    case("index.Tensor", lambda x, y, z: x[torch.tensor([0, 2])])
    case("index_select", lambda x, y, z: x.index_select(0, torch.tensor([0, 2])))
    case("gather", lambda x, y, z: x.gather(1, INDEX))
    case("embedding", lambda x, y, z: F.embedding(torch.tensor([2, 1]), x))
    case("cat", lambda x, y, z: torch.cat([x, y]))
    case("stack", lambda x, y, z: torch.stack([x, y]))
    case("slice_backward", lambda x, y, z: aten.slice_backward(x, [6, 4], 0, 1, 4, 1))
    case("select_backward", lambda x, y, z: aten.select_backward(x, [3, 4, 2], 2, 1))
    case("masked_select", lambda x, y, z: x.masked_select(MASK))
    case("amax", lambda x, y, z: x.amax(1))
    case("amin", lambda x, y, z: x.amin(1))
    case("max", lambda x, y, z: x.max())
    case("min", lambda x, y, z: x.min())
    case("max.dim", lambda x, y, z: x.max(1)[0])
    case("min.dim", lambda x, y, z: x.min(1)[0])
    case("topk", lambda x, y, z: x.topk(2)[0])
    case("sort", lambda x, y, z: aten.sort.default(x)[0])
    case("sort.stable", lambda x, y, z: torch.sort(x, stable=True)[0])
    case("threshold_backward", lambda x, y, z: aten.threshold_backward(x, y, 0))
    case(
        "max_pool2d_with_indices", lambda x, y, z: aten.max_pool2d_with_indices(x[None], [2, 2])[0]
    )
    case("_foreach_neg", lambda x, y, z: torch._foreach_neg([x, y]))
    case("_to_copy", lambda x, y, z: x.to(torch.float64))
    case("_to_copy", lambda x, y, z: x.to(torch.float16))
    case("_to_copy", lambda x, y, z: x.to(torch.bfloat16))
    case("copy", lambda x, y, z: x.clone().copy_(y))
    case("copy", lambda x, y, z: x.clone().half().copy_(y))
    case("_foreach_copy", lambda x, y, z: written(torch._foreach_copy_, [x.clone()], [y]))
    case("constant_pad_nd", lambda x, y, z: F.pad(x, (1, 1), value=7.0))
    case("masked_fill.Scalar", lambda x, y, z: x.masked_fill(MASK, -9.0))
    case("masked_fill.Tensor", lambda x, y, z: x.masked_fill(MASK, y.amax()))
    case("scatter.value", lambda x, y, z: x.scatter(1, INDEX, -9.0))
    case("scatter.src", lambda x, y, z: x.scatter(1, INDEX, y))
    case("where.self", lambda x, y, z: torch.where(MASK, x, y))
    case("maximum", lambda x, y, z: torch.maximum(x, y))
    case("minimum", lambda x, y, z: torch.minimum(x, y))
    case("clamp_min", lambda x, y, z: x.clamp_min(0.5))
    case("clamp_max", lambda x, y, z: x.clamp_max(-0.5))
    case("clamp_min.Tensor", lambda x, y, z: x.clamp_min(y))
    case("clamp_max.Tensor", lambda x, y, z: x.clamp_max(y))
    for name, kind in itertools.product(("maximum", "clamp_min", "clamp_max"), ("Scalar", "List")):
        function = getattr(aten, "_foreach_" + name)
        case(f"_foreach_{name}.{kind}", lambda x, y, z, f=function, k=kind: f(
            [x, y], 0.5 if k == "Scalar" else [y, z]))  # fmt: skip
    case("clamp", lambda x, y, z: x.clamp(-2, 3))
    case("clamp", lambda x, y, z: x.clamp(max=-3))
    case("clamp.Tensor", lambda x, y, z: x.clamp(y, z))
    case("hardtanh", lambda x, y, z: F.hardtanh(x, -2, 3))
    case("index_put", lambda x, y, z: x.index_put((torch.tensor([1, 0, 2]),), y))
    # arithmetic
    for number in (-3.0, 1e-20, 1e20):
        case("mul.Tensor", lambda x, y, z, n=number: x * n)
        case("add.Tensor", lambda x, y, z, n=number: torch.add(x, y, alpha=n))
        case("sub.Tensor", lambda x, y, z, n=number: torch.sub(x, y, alpha=n))
        case("rsub.Tensor", lambda x, y, z, n=number: torch.rsub(x, y, alpha=n))
        case("addcmul", lambda x, y, z, n=number: torch.addcmul(x, y, z, value=n))
        case("addcmul", lambda x, y, z, n=number: x.clone().addcmul_(y, z, value=n))
        case("div.Tensor", lambda x, y, z, n=number: x / n)
        case("_foreach_addcmul.Scalar", lambda x, y, z, n=number: torch._foreach_addcmul(
            *lists(x, y, z), n))  # fmt: skip
        case("_foreach_addcmul.ScalarList", lambda x, y, z, n=number: torch._foreach_addcmul(
            *lists(x, y, z), [n, 2.0]))  # fmt: skip
        case("_foreach_add.List", lambda x, y, z, n=number: torch._foreach_add(
            *lists(x, y), alpha=n))  # fmt: skip
        case("_foreach_sub.List", lambda x, y, z, n=number: written(
            torch._foreach_sub_, [x.clone(), y.clone()], [z, x], alpha=n))  # fmt: skip
        case("_foreach_div.Scalar", lambda x, y, z, n=number: torch._foreach_div([x, y], n))
        case("_foreach_div.ScalarList", lambda x, y, z, n=number: torch._foreach_div(
            [x, y], [n, 0.5]))  # fmt: skip
        case("mul.Scalar", lambda x, y, z, n=number: aten.mul.Scalar(x, n))
        case("add.Scalar", lambda x, y, z, n=number: aten.add.Scalar(x, 2.0, n))
        case("sub.Scalar", lambda x, y, z, n=number: aten.sub.Scalar(x, n))
        case("rsub.Scalar", lambda x, y, z, n=number: aten.rsub.Scalar(x, n))
        case("div.Scalar", lambda x, y, z, n=number: aten.div.Scalar(x, n))
    case("mul.Tensor", lambda x, y, z: x * y)
    case("mul.Tensor", lambda x, y, z: x * INDEX)
    case("mul.Tensor", lambda x, y, z: x.clone().mul_(x))
    case("add.Tensor", lambda x, y, z: x.clone().add_(y))
    case("_foreach_mul.Scalar", lambda x, y, z: torch._foreach_mul([x, y], -3.0))
    case("_foreach_mul.List", lambda x, y, z: torch._foreach_mul([x, y], [y, z]))
    case("_foreach_mul.ScalarList", lambda x, y, z: torch._foreach_mul([x, y], [3.0, 5.0]))
    case("_foreach_mul.Tensor", lambda x, y, z: torch._foreach_mul([x, y], z.amax()))
    case("_foreach_add.Tensor", lambda x, y, z: torch._foreach_add([x, y], z.amax(), alpha=2))
    for sign in ("add", "sub"):
        function = getattr(torch, "_foreach_" + sign)
        case(f"_foreach_{sign}.Scalar", lambda x, y, z, f=function: f([x, y], 3.0))
        case(f"_foreach_{sign}.ScalarList", lambda x, y, z, f=function: f([x, y], [3.0, 4.0]))
    for weight in (0.0, 0.1, 0.7, 1.0):
        case("lerp.Scalar", lambda x, y, z, w=weight: x.lerp(y, w))
        case("_foreach_lerp.Scalar", lambda x, y, z, w=weight: torch._foreach_lerp(
            [x, y], [y, z], w))  # fmt: skip
    for exponent in (1, 2, 3, 7):
        case("pow.Tensor_Scalar", lambda x, y, z, n=exponent: x**n)
    case("exp", lambda x, y, z: x.exp())
    # sums of products
    case("mm", lambda x, y, z: x @ y.t())
    case("mm.dtype", lambda x, y, z: x @ y.t())  # on a GPU only
    case("bmm.dtype", lambda x, y, z: x @ y.t())
    case("addmm.dtype", lambda x, y, z: x @ y.t())
    case("baddbmm.dtype", lambda x, y, z: x @ y.t())
    case("bmm", lambda x, y, z: torch.bmm(x[None], y.t()[None]))
    case("mv", lambda x, y, z: torch.mv(x, y[0]))
    case("dot", lambda x, y, z: torch.dot(x[0], y[0]))
    for a, b in ((1, 1), (0.5, -3), (1e20, 1), (1, 1e20)):
        case("addmm", lambda x, y, z, a=a, b=b: torch.addmm(
            x[0, :3], y, z.t(), beta=a, alpha=b))  # fmt: skip
        case("addmv", lambda x, y, z, a=a, b=b: torch.addmv(
            x[0, :3], y, z[0], beta=a, alpha=b))  # fmt: skip
        case("baddbmm", lambda x, y, z, a=a, b=b: torch.baddbmm(
            x[None, :, :3], y[None], z.t()[None], beta=a, alpha=b))  # fmt: skip
        case("_addmm_activation", lambda x, y, z, a=a, b=b: aten._addmm_activation(
            x[0, :3], y, z.t(), beta=a, alpha=b, use_gelu=True))  # fmt: skip
    case("convolution", lambda x, y, z: aten.convolution(
        x[None], y[:2, None, :2].expand(2, 3, 2), z[0, :2], [1], [1], [1], False, [0], 1))  # fmt: skip
    case("convolution", lambda x, y, z: aten.convolution(
        x[None], y[:, None, :2].expand(3, 2, 2), None, [2], [0], [1], True, [0], 1))  # fmt: skip
    # sums
    case("sum", lambda x, y, z: x.repeat(50, 1).sum())
    case("sum.dim_IntList", lambda x, y, z: x.sum(0))
    case("mean", lambda x, y, z: x.repeat(50, 1).mean())
    case("mean.dim", lambda x, y, z: x.mean(1))
    case("cumsum", lambda x, y, z: x.cumsum(0))
    case("embedding_dense_backward", lambda x, y, z: aten.embedding_dense_backward(
        x, torch.tensor([1, 1, 0]), 3, -1, False))  # fmt: skip
    case("scatter_add", lambda x, y, z: x.scatter_add(1, INDEX, y))
    case("index_add", lambda x, y, z: x.index_add(0, torch.tensor([1, 1, 0]), y, alpha=3))
    # functions
    for name in ("sigmoid", "tanh", "sin", "cos", "erf", "sign", "sgn"):
        case(name, lambda x, y, z, n=name: getattr(torch, n)(x))
    for how in ("none", "tanh"):
        case("gelu", lambda x, y, z, how=how: F.gelu(x, approximate=how))
        case("gelu_backward", lambda x, y, z, how=how: aten.gelu_backward(x, y, approximate=how))
    case("silu", lambda x, y, z: F.silu(x))
    case("silu_backward", lambda x, y, z: aten.silu_backward(x, y))
    case("sigmoid_backward", lambda x, y, z: aten.sigmoid_backward(x, y))
    case("tanh_backward", lambda x, y, z: aten.tanh_backward(x, y))
    case("native_dropout", lambda x, y, z: torch.native_dropout(x, 0.3, True)[0])
    case("native_dropout_backward", lambda x, y, z: aten.native_dropout_backward(x, MASK, 1.5))
    # rows
    case("_softmax", lambda x, y, z: x.softmax(1))
    case("_log_softmax", lambda x, y, z: x.log_softmax(1))
    case("_softmax_backward_data", lambda x, y, z: aten._softmax_backward_data(
        x, y.softmax(1), -1, x.dtype))  # fmt: skip
    case("_log_softmax_backward_data", lambda x, y, z: aten._log_softmax_backward_data(
        x, y.log_softmax(1), -1, x.dtype))  # fmt: skip
    for eps in (1e-5, 1e-12):
        case("native_layer_norm", lambda x, y, z, e=eps: torch.native_layer_norm(
            x, [4], y[0], z[0], e))  # fmt: skip
        case("native_layer_norm", lambda x, y, z, e=eps: torch.native_layer_norm(
            x, [4], None, None, e))  # fmt: skip
        case(
            "native_layer_norm_backward", lambda x, y, z, e=eps: layer_norm_gradient(x, y, z[0], e)
        )
    # losses
    case("nll_loss_backward", lambda x, y, z: nll_gradient(x, y.log_softmax(1)))
    for reduction in (0, 1, 2):
        case("mse_loss", lambda x, y, z, r=reduction: aten.mse_loss(x, y, r))
        case("mse_loss_backward", lambda x, y, z, r=reduction: aten.mse_loss_backward(x, y, z, r))
    return c


def written(function, tensors, *more, **options):
    function(tensors, *more, **options)
    return tensors


def layer_norm_gradient(g, x, w, eps):
    _, mean, rstd = torch.native_layer_norm(x, [4], w, w, eps)
    return aten.native_layer_norm_backward(g, x, [4], mean, rstd, w, w, [True, True, True])


def nll_gradient(g, scores):
    targets = torch.tensor([1, -100, 3])
    _, weight = aten.nll_loss_forward(scores, targets, None, 1, -100)
    return aten.nll_loss_backward(g.amax(), scores, targets, None, 1, -100, weight)


CASES = cases()
ELSEWHERE = {  # on a GPU only, or decomposed on the CPU before the recorder sees them
    "mm.dtype", "bmm.dtype", "addmm.dtype", "baddbmm.dtype",
}  # fmt: skip


@pytest.fixture(scope="module")
def recorder():
    recorder, note = compiled.compiled_here()
    if recorder is None:
        pytest.skip(note)
    return recorder


@pytest.fixture
def watch(recorder, monkeypatch):
    monkeypatch.setattr(numerics, "wants_compiled", lambda: True)
    monkeypatch.setattr(compiled, "BOUNDS", compiled.EVERYWHERE)
    # Another test may have compiled kernels of Triton, after which nothing is bounded.
    monkeypatch.delitem(sys.modules, "torch._inductor.runtime.triton_heuristics", raising=False)
    watch = numerics.Numerics()
    watch.start()
    yield watch
    watch.stop()


class Names(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, _, overload = str(func).removeprefix("aten.").partition(".")
        self.names.add(name.rstrip("_") + ("" if overload == "default" else "." + overload))
        return func(*args, **(kwargs or {}))


def test_all_rules_have_a_case(recorder):
    assert set(recorder.bounded_operators()) == set(CASES)


@pytest.mark.parametrize("name", [n for n in CASES if n not in ELSEWHERE])
def test_a_case_runs_its_operator(name):
    for function in CASES[name]:
        with Names() as seen:
            function(*(torch.rand(3, 4) for _ in range(3)))
        assert name in seen.names


SCALES = {
    torch.float32: (0.0, 1e-38, 1e-20, 1.0, 30.0, 1e4, 1e9, 1e18, 1e25, 1e32, 3e36, 7e37, 3e38),
    torch.bfloat16: (0.0, 1e-38, 1e-20, 1.0, 30.0, 1e4, 1e9, 1e18, 1e32, 3e36, 7e37, 3e38),
    torch.float16: (0.0, 6e-8, 1e-4, 1.0, 30.0, 120.0, 1000.0, 4000.0, 1.6e4, 6e4),
}


def results(value):
    values = value if isinstance(value, (tuple, list)) else [value]
    return [v for v in values if v is not None and v.dtype.is_floating_point]


def operands(dtype, scale, generator):
    signs = torch.randint(2, (3, 4), generator=generator) * 2 - 1
    sizes = torch.rand(3, 4, generator=generator, dtype=torch.float64)
    sizes[1] = 1  # the scale itself, all of one sign
    signs[1] = 1
    return (sizes * signs * scale).clamp(-3e38, 3e38).to(dtype)


@pytest.mark.parametrize("dtype", SCALES, ids=str)
def test_no_result_is_beyond_its_bound(watch, recorder, dtype):
    generator = torch.Generator().manual_seed(0)
    known = set()
    scales, middle = SCALES[dtype], SCALES[dtype][3]
    for a, b, c in (
        *zip(scales, scales, scales, strict=True),
        *zip(scales, reversed(scales), scales, strict=True),
        *((scale, middle, middle) for scale in scales),
        *((middle, scale, middle) for scale in scales),
        *((middle, middle, scale) for scale in scales),
    ):
        with watch.looks.quiet():
            raw = [operands(dtype, scale, generator) for scale in (a, b, c)]
        x, y, z = (t.clone() for t in raw)
        watch.looks.flush()  # their magnitudes are exact from here on
        for name, functions in CASES.items():
            for function in functions:
                try:
                    value = function(x, y, z)
                except (RuntimeError, IndexError):  # not for this type
                    continue
                for result in results(value):
                    bound, _ = recorder.bound_of(result)
                    if bound == float("inf"):
                        continue
                    known.add(name)
                    with watch.looks.quiet():
                        most = result.double().abs().max().item() if result.numel() else 0.0
                    where = (name, (a, b, c), result)
                    assert most <= bound or recorder_guessed(recorder, result), where
    missing = set(CASES) - known - ELSEWHERE
    assert not missing, missing


def recorder_guessed(recorder, result):
    return recorder.bound_of(result)[1]


# --- what is not read ---


def test_a_step_reads_little(watch, recorder):
    net = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(6)])
    for step in range(3):
        before = recorder.counts()
        net(torch.ones(4, 16)).square().mean().backward()
        proven, pending, read, _ = (b - a for a, b in zip(before, recorder.counts(), strict=True))
        for p in net.parameters():
            p.grad = None
        watch.looks.flush()
        if step > 0:
            assert proven >= 8 and read == 0, (proven, pending, read)


def test_a_wrong_guess_hides_nothing(watch):
    source = torch.full((64,), 1e30).numpy()
    for turn in range(3):  # the second time nothing is guessed there
        x = torch.from_numpy(source) * torch.from_numpy(source[:1] * 0 + 1).expand(64)
        y = x * x  # 1e60, which a guess of x would exclude
        print(y.sum().item())
        watch.looks.flush()
        operations = [finding.operation for finding in watch.judge.findings]
        assert operations == ["mul"] * (turn + 1), watch.judge.suspects


def test_a_guess_that_holds_becomes_a_bound(watch, recorder):
    x = torch.from_numpy(torch.full((64,), 3.0).numpy()).clone()
    assert recorder.bound_of(x) == pytest.approx((65536, True))
    y = x * 2
    assert recorder.bound_of(y)[1]
    watch.looks.flush()
    assert recorder.bound_of(x) == pytest.approx((3, False))
    assert recorder.bound_of(y) == pytest.approx((2 * 65536, False))


def unknown(recorder, tensor):
    return recorder.bound_of(tensor)[0] == float("inf")


def test_what_may_have_been_written_is_unknown(watch, recorder):
    x = torch.ones(8)
    assert recorder.bound_of(x) == pytest.approx((1, False))
    x[:4].fill_(7)  # a part
    assert recorder.bound_of(x)[0] == pytest.approx(7)
    x[:4].fill_(1)
    assert recorder.bound_of(x)[0] == pytest.approx(7)
    assert unknown(recorder, x.view(torch.int32).view(torch.float64))
    x.view(torch.int32)[3] = 0x7F800000
    assert unknown(recorder, x)
    x.fill_(2)
    assert recorder.bound_of(x)[0] == pytest.approx(2)
    torch.mul(x, 1e30, out=x)
    assert recorder.bound_of(x)[1] or unknown(recorder, x)
    y = torch.ones(4)
    y.resize_(8)
    assert unknown(recorder, y)
    z = torch.ones(8)
    torch.fft.fft(z)  # an operation without a rule
    assert unknown(recorder, z)
    part = torch.empty(8)
    part[:4].zero_()
    assert unknown(recorder, part)


def test_operators_of_others_leave_nothing_known(watch, recorder):
    library = torch.library.Library("segfuse_bounds_test", "DEF")
    library.define("spoil(Tensor x) -> ()")  # writes, and does not say so
    library.impl("spoil", lambda x: x.numpy().fill(float("nan")), "CPU")
    x = torch.ones(8)
    torch.ops.segfuse_bounds_test.spoil(x)
    assert unknown(recorder, x)
    (x * 2).sum().item()
    watch.looks.flush()
    assert watch.findings and watch.findings[0].operation == "input"


def test_sparse_tensors_are_not_guessed(watch, recorder):
    values = torch.ones(2)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1]]), values, (3,), check_invariants=False)
    sparse.mul_(float("inf"))
    assert unknown(recorder, values)


def test_lists_that_share_memory(watch, recorder):
    x = torch.ones(8)
    torch._foreach_mul_([x, x], 3.0)
    assert recorder.bound_of(x)[0] >= x.max().item() == 9


def test_statistics_read_all(recorder, monkeypatch):
    monkeypatch.setattr(numerics, "wants_compiled", lambda: True)
    monkeypatch.setattr(compiled, "BOUNDS", compiled.EVERYWHERE)
    with segfuse.torch.check_numerics(statistics=True):
        torch.ones(8) * 2
        assert recorder.counts()[:2] == (0, 0)
