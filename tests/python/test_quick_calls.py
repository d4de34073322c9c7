"""Parts of graphs on a GPU, called by addresses (decision 201)."""

import threading

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch import nn

import segfuse.torch as st
from segfuse import _native
from segfuse.torch._compile import alive

TABLE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
CPU = 1  # as DLPack numbers devices


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def calls_of(orders, doubtful=(), types=(torch.Tensor, nn.Parameter)):
    if TABLE is None:
        pytest.skip("this PyTorch has no table of C functions")
    assert _native.QuickCalls.reads(TABLE)
    return _native.QuickCalls(TABLE, types, CPU, torch.empty, lambda: 0, orders, list(doubtful))


class Other(torch.Tensor):
    pass


X = torch.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("orders", "tensors", "fits"),
    [
        ([[], []], (X, X[0]), True),
        ([[]], (nn.Parameter(X),), True),
        ([[]], (X.requires_grad_(False)[1:],), True),
        ([[]], (X[:, :1],), False),
        ([[]], (X.transpose(0, 1),), False),
        ([[1, 0, 2]], (X.transpose(0, 1),), True),
        ([[1, 0, 2]], (X,), False),
        ([[1, 0]], (X,), False),
        ([[]], (X[:1].transpose(0, 1),), True),  # axes of one element lie anywhere
        ([[]], (torch.empty(3, 0, 2).transpose(0, 2),), True),  # and so does what is empty
        ([[]], (torch.tensor(2.0),), True),
        ([[]], (X[0, 0].expand(5, 4),), False),
        ([[]], (X.as_subclass(Other),), False),
        ([[]], (X.numpy(),), False),
        ([[]], (3,), False),
        ([[]], (X.to("meta"),), False),
        ([[]], (X, X), False),
        ([[], []], (X,), False),
        ([], (), False),
        ([[]], (torch.complex(X, X).conj().imag[..., 0],), False),  # a negated view with gaps
    ],
)
def test_only_plain_tensors_without_gaps_can_be_called_with(orders, tensors, fits):
    found = calls_of(orders).call(tensors)
    assert found is (None if fits else False)


def test_a_negated_view_is_refused_where_it_may_be_one():
    negated = torch._neg_view(X)
    assert negated.is_neg()
    assert calls_of([[]]).call((negated,)) is None
    assert calls_of([[]], [0]).call((negated,)) is False


class Block(nn.Module):
    """Parts before, between and behind attention, with views at their borders."""

    def __init__(self, width=64, heads=4):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.up = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(x)))


def stepped(function, model, x):
    model.zero_grad(set_to_none=True)
    y = function(x)
    y.square().mean().backward()
    return [y.detach().clone(), *(p.grad.clone() for p in model.parameters())]


def same_bits(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def slow(part):
    quick, part._quick = part._quick, None
    return quick


@cuda
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bits_are_those_of_the_general_way(dtype, dynamic):
    before = set(alive)
    model = Block().to("cuda", dtype)
    step = torch.compile(model, backend="segfuse", dynamic=dynamic)
    for t in (16, 33, 16) if dynamic else (16,):
        x = torch.randn(2, t, 64, device="cuda", dtype=dtype)
        runs = [stepped(step, model, x) for _ in range(4)]
        parts = [part for part in alive if part not in before]
        assert parts and all(part._quick is not None for part in parts)
        kept = {part: slow(part) for part in parts}
        runs.append(stepped(step, model, x))
        for part, quick in kept.items():
            part._quick = quick
        assert all(same_bits(run, runs[0]) for run in runs)
        eager = stepped(model, model, x)
        tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-5
        for found, expected in zip(runs[0], eager, strict=True):
            scale = float(expected.abs().max())
            torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * scale)


@cuda
def test_inputs_may_be_views_and_unaligned_and_the_same():
    def f(x, y):
        return (x * y + x).sum(-1), x.exp() * y

    g = torch.compile(f, backend="segfuse")
    whole = torch.rand(1000, device="cuda")
    plain = whole[:96].view(8, 12)
    cases = [
        (plain, plain), (whole[1:97].view(8, 12), plain), (whole[::2][:96].view(8, 12), plain),
        (whole[:96].view(12, 8).t(), plain), (plain[:1].expand(8, 12), plain),
        (plain, torch._neg_view(plain)), (plain, torch.tensor(3.0)),
    ]  # fmt: skip
    for x, y in cases * 2:
        for found, expected in zip(g(x, y), f(x, y), strict=True):
            torch.testing.assert_close(found, expected)


@cuda
def test_other_streams_threads_and_inference_mode():
    model = Block().cuda()
    step = torch.compile(model, backend="segfuse")
    x = torch.randn(2, 16, 64, device="cuda")
    with torch.inference_mode():
        expected = step(x).clone()
    expected_step = stepped(step, model, x)
    torch.cuda.synchronize()
    right = []
    first = threading.Lock()  # PyTorch traces in one thread at a time, while no other calls
    traced = threading.Barrier(4, timeout=60)

    def work():
        with torch.cuda.stream(torch.cuda.Stream()), torch.inference_mode():
            with first:
                step(x.clone() * 1)  # as below: an inference tensor is traced anew
            traced.wait()
            right.extend(torch.equal(step(x.clone() * 1), expected) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert right == [True] * 200
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert same_bits(stepped(step, model, x), expected_step)
    torch.cuda.synchronize()


@cuda
def test_calls_in_a_capture_are_refused():
    f = torch.compile(lambda x: (x * 2).sum(-1), backend="segfuse")
    x = torch.rand(8, 16, device="cuda")
    expected = f(x)
    refusal = pytest.raises(Exception, match="captured into a CUDA graph")
    for _ in range(2):
        with refusal, torch.cuda.graph(torch.cuda.CUDAGraph()):
            f(x)
        assert torch.equal(f(x), expected)


@cuda
def test_a_wrong_index_is_told_by_check():
    table = nn.Embedding(10, 8).cuda()
    f = torch.compile(lambda i: (table(i) * 2).sum(-1), backend="segfuse")
    good = torch.tensor([1, 2, 3], device="cuda")
    for _ in range(3):
        torch.testing.assert_close(f(good), (table(good) * 2).sum(-1))
    st.check()
    f(torch.tensor([1, 2, 10], device="cuda"))
    with pytest.raises(Exception, match="out of range"):
        st.check()
    torch.testing.assert_close(f(good), (table(good) * 2).sum(-1))
    st.check()


@cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device here")
def test_another_current_device():
    f = torch.compile(lambda x: (x * 2).exp() + 1, backend="segfuse")
    x = torch.rand(7, 5, device="cuda:1")
    for device in (1, 0, 1):
        with torch.cuda.device(device):
            torch.testing.assert_close(f(x), (x * 2).exp() + 1)
