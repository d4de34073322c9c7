"""`torch.compile(model, backend="segfuse")` against eager PyTorch."""

import copy
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
import torch_models as models
from eager import TOLERANCE, close, gradients, leaves
from torch import nn

import segfuse
import segfuse.torch as st
from segfuse.torch._compile.stages import find_stages


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Watched:
    """The backend, with what it makes of the graphs that PyTorch hands over."""

    def __init__(self):
        self.graphs, self.parts = [], []

    def __call__(self, module, inputs, **how):
        return torch._dynamo.lookup_backend("segfuse")(module, inputs, watch=self._see, **how)

    def _see(self, name, divided):
        self.graphs.append(name)
        self.parts += divided.parts

    def traces(self):
        return [part.compiled.cache_info().traces for part in self.parts]


def compiled(model, **how):
    return torch.compile(model, backend="segfuse", **how)


def check(function, *args, tolerance=None, **how):
    """Results and gradients of a function of tensors against eager ones."""
    ours, theirs = leaves(args), leaves(args)
    made, expected = compiled(function, **how)(*ours), function(*theirs)
    close(made, expected, tolerance)
    for a, b in zip(ours, theirs, strict=True):  # they may have been overwritten
        close(a, b, tolerance) if isinstance(a, torch.Tensor) and not a.requires_grad else None
    close(gradients(made, ours), gradients(expected, theirs), tolerance)


# --- models that nobody here wrote ---


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", models.NAMES)
def test_models(name, dtype):
    """Loss, all gradients and all buffers; those of float32 also against float64."""
    model, args = models.make(name)
    exact = copy.deepcopy(model).double()
    expected = exact(*(exact_args := leaves(args, torch.float64) if name != "classifier" else args))
    by_all = gradients(expected, [*exact_args, *exact.parameters()])
    model = model.to(dtype)
    ours = leaves(args, dtype) if name != "classifier" else args
    made = compiled(model, fullgraph=True)(*ours)
    close(made.double(), expected, TOLERANCE[dtype])
    for a, b in zip(gradients(made, [*ours, *model.parameters()]), by_all, strict=True):
        close(a.double(), b, 10 * TOLERANCE[dtype])
    for a, b in zip(model.buffers(), exact.buffers(), strict=True):
        close(a.to(b.dtype), b, TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["resnet", "encoder", "mlp"])
def test_inference(name):
    model, args = models.make(name)
    model.eval()
    with torch.no_grad():
        made = compiled(model)(*args)
        assert not made.requires_grad
        close(made, model(*args))


def test_train_and_eval_of_one_module():
    model, args = models.make("resnet")
    twin = copy.deepcopy(model)
    both = compiled(model)
    for training in (True, False, True):
        model.train(training), twin.train(training)
        close(both(*args), twin(*args))
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        close(a, b)


def test_training_goes_as_in_eager():
    model, (words, targets) = models.make("classifier")
    twin = copy.deepcopy(model)
    losses = []
    for m, step in ((model, compiled(model)), (twin, twin)):
        optimizer = torch.optim.AdamW(m.parameters(), lr=0.05)
        found = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = step(words, targets)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] < 0.7 * losses[0][0]


@pytest.mark.parametrize("name", ["llama", "llama_fused", "encoder"])
def test_twenty_lengths_compile_once(name):
    """Neither PyTorch nor a part looks at a second length."""
    model, (x,) = models.make(name)
    backend = Watched()
    step = torch.compile(model, backend=backend, dynamic=True, fullgraph=True)
    graphs = None
    for frames in range(3, 23):
        ours = torch.randn(2, frames, x.shape[2])
        theirs = ours.clone().requires_grad_()
        made, expected = step(ours.requires_grad_()), model(theirs)
        close(made, expected)
        close(gradients(made, [ours]), gradients(expected, [theirs]), 1e-4)
        graphs = graphs or len(backend.graphs)
    assert len(backend.graphs) == graphs
    assert set(backend.traces()) <= {0, 1} and len(backend.parts) >= 2


# --- what functions do with tensors ---


def test_no_import_is_needed():
    code = (
        "import torch; f = torch.compile(lambda x: (x.sin() * 2).sum(), backend='segfuse');"
        "x = torch.arange(5.0); assert abs(f(x) - (x.sin() * 2).sum()) < 1e-6"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr


def test_importing_segfuse_torch_leaves_the_compiler_alone():
    code = "import sys, segfuse.torch; assert 'torch._dynamo' not in sys.modules"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr


def test_in_place_operations():
    def function(x, y):
        z = x * 2
        z += y
        z[:, 1:3].mul_(3)
        z[0] = y[0] - 1
        return z.relu_(), z

    check(function, torch.randn(4, 5), torch.randn(4, 5))


def test_inputs_are_overwritten():
    def function(x, y):
        x.add_(y.exp())
        x[:, 0].copy_(y[:, 1] * 3)
        return x.sum() * y

    xs = [torch.randn(3, 4) for _ in range(2)]
    ours, theirs = [x.clone() for x in xs], [x.clone() for x in xs]
    close(compiled(function)(*ours), function(*theirs))
    close(ours, theirs)


def test_a_part_of_an_input_is_overwritten():
    def function(x):
        x[1:].mul_(2).add_(1)
        return x.t().sum(0)

    base, twin = (torch.arange(24.0).view(4, 6) for _ in range(2))
    close(compiled(function)(base[:, ::2]), function(twin[:, ::2]))
    close(base, twin)


def test_buffers_are_overwritten():
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("calls", torch.tensor(0))

        def forward(self, x):
            self.mean.lerp_(x.mean(0), 0.1)
            self.calls += 1
            return (x - self.mean) * self.calls

    model, twin = Mean(), Mean()
    step = compiled(model)
    for _ in range(3):
        x = torch.randn(5, 3)
        close(step(x), twin(x))
        close(list(model.buffers()), list(twin.buffers()))


def test_results_share_memory_as_in_eager():
    def function(x):
        y = (x * 2).exp()
        return x, x[1:], y, y.t(), y[:, 2], x.view(-1), y + 0, y.detach()

    x = torch.randn(4, 5)
    made, expected = compiled(function)(x), function(x)
    close(made, expected)

    def memory(results):
        starts = [r.untyped_storage().data_ptr() for r in results]
        return [starts.index(start) for start in starts]

    assert memory(made) == memory(expected)
    assert [r.stride() for r in made] == [r.stride() for r in expected]
    assert made[0] is x
    made[2].add_(1)
    close(made[3], made[2].t())


def test_results_do_not_share_memory_by_chance():
    def function(x):
        y = (x * 2).exp()
        return y, y.clone(), x.clone(), x + 0

    x = torch.randn(3, 4)
    made = compiled(function)(x)
    assert len({r.untyped_storage().data_ptr() for r in (x, *made)}) == 5


@pytest.mark.parametrize("change", ["t", "step", "expand", "channels_last", "offset", "negative"])
def test_layouts_of_inputs(change):
    x = torch.randn(4, 6)
    x = {
        "t": lambda: x.t(), "step": lambda: x[::2, ::3], "expand": lambda: x[:1].expand(5, 6),
        "channels_last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "offset": lambda: x[1:, 2:],
        "negative": lambda: torch.view_as_complex(torch.randn(4, 5, 2)).conj().imag,
    }[change]()  # fmt: skip

    def function(x):
        y = (x * 3).tanh() + 1
        return y, y.sum(0), x.transpose(0, -1) * 2

    made, expected = compiled(function)(x), function(x)
    close(made, expected)
    assert [r.stride() for r in made] == [r.stride() for r in expected]
    close(gradients(compiled(function)(a := x.detach().requires_grad_()), [a]),
          gradients(function(b := x.detach().requires_grad_()), [b]))  # fmt: skip


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (0, 4), (1, 1, 1)], ids=str)
def test_scalars_and_nothing(shape):
    def function(x, y):
        z = x * y + 2
        return z, z.sum(), z.exp().sum(-1) if z.ndim else z, z.reshape(-1), (z > 0).any()

    check(function, torch.randn(shape), torch.randn(()))


def test_integers_and_bool():
    def function(a, b, m):
        c = a * 3 - b
        return (
            c, c.sum(), (c > 2) & m, m.sum(), c.float().mean(), torch.where(m, a, b), a // 2, a % 3,
            c.abs().max(), m | (a == b), ~m, a / b.clamp(min=1), c.to(torch.int32), a * m,
        )  # fmt: skip

    check(
        function, torch.randint(-9, 9, (4, 5)), torch.randint(-9, 9, (4, 5)), torch.rand(4, 5) > 0.5
    )


def test_what_segfuse_has_not_stays_pytorchs():
    def function(x):
        y = (x * 2).sin() + 1
        y, order = y.sort(-1)
        z = y.cumsum(-1).exp() * order
        return torch.linalg.norm(z.int().to(torch.int8).float() / 7), (z + 1).log()

    check(function, torch.randn(3, 7))


@pytest.mark.parametrize("index_device, reason", [("cuda", None), ("cpu", "lies on cpu")])
def test_an_index_on_the_cpu_for_data_on_a_gpu_stays_pytorchs(index_device, reason):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        graph = torch.fx.Graph()
        data, index = graph.placeholder("data"), graph.placeholder("index")
        data.meta["val"] = torch.empty(5, 3, device="cuda")
        index.meta["val"] = torch.empty(2, dtype=torch.int64, device=index_device)
        taken = graph.call_function(torch.ops.aten.index.Tensor, (data, [index]))
        taken.meta["val"] = torch.empty(2, 3, device="cuda")
        found = find_stages(graph)
    assert (taken in found.steps) == (reason is None)
    assert reason is None or reason in found.reasons[taken]


def test_random_numbers_are_pytorchs():
    def function(x):
        return F.dropout(x.sin() * 2, 0.4) + torch.rand_like(x) * torch.randn(x.shape), x * 2

    for training in (False, True):
        x = torch.randn(40, 5, requires_grad=training)
        eager = torch.compile(function, backend="aot_eager")
        results = []
        for f in (compiled(function), eager):
            torch.manual_seed(7)
            results.append(f(x))
        close(*results)


def test_random_numbers_keep_their_order():
    """The first is used last, by what runs late."""

    def function(x):
        first = torch.rand(3, 4)
        y = (x * 2).sin() + torch.rand(3, 4).sort().values
        return (y.cumsum(0) * 2 + 1).exp() * first

    x = torch.randn(3, 4)
    made, expected = [], []
    for f, found in ((compiled(function), made), (function, expected)):
        torch.manual_seed(3)
        found.append(f(x))
    close(made, expected)


@pytest.mark.parametrize("needs", [(1, 0, 0), (0, 1, 1), (0, 0, 1), (0, 0, 0)], ids=str)
def test_some_require_gradients(needs):
    def function(x, w, b):
        return torch.tanh(x @ w + b), (x * 2).exp()

    tensors = [torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)]
    sets = [
        [t.clone().requires_grad_(bool(n)) for t, n in zip(tensors, needs, strict=True)]
        for _ in range(2)
    ]
    made, expected = compiled(function)(*sets[0]), function(*sets[1])
    assert [r.requires_grad for r in made] == [r.requires_grad for r in expected]
    close(made, expected)
    close(gradients(made, sets[0]), gradients(expected, sets[1]))


def test_the_graph_is_retained():
    x = torch.randn(5, requires_grad=True)
    y = compiled(lambda x: (x.exp() * x).sum())(x)
    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    (second,) = torch.autograd.grad(y, x)
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x)


def test_second_derivatives_are_refused():
    x = torch.randn(5, requires_grad=True)
    y = compiled(lambda x: (x.exp() * x).sum())(x)
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


def test_keywords_and_nested_results():
    def function(x, *, scale, parts):
        return {"a": x * scale, "b": [x + p for p in parts], "c": (x.sum(), None, "text")}

    x, parts = torch.randn(3), [torch.randn(3), torch.randn(1)]
    made = compiled(function, fullgraph=True)(x, scale=2.5, parts=parts)
    expected = function(x, scale=2.5, parts=parts)
    assert made.keys() == expected.keys() and made["c"][1:] == (None, "text")
    close([made["a"], *made["b"], made["c"][0]], [expected["a"], *expected["b"], expected["c"][0]])


def test_results_of_one_operation_are_needed_at_different_times():
    """The gradient of a batch norm with sizes that are symbols: the mean before, the variance after
    an operation that stays PyTorch's."""

    def function(x):
        zeros, ones = torch.zeros(3, dtype=x.dtype), torch.ones(3, dtype=x.dtype)
        return F.batch_norm(x, zeros, ones, training=True) * 2

    x = torch.randn(5, 3, dtype=torch.float64)
    made = torch.compile(function, backend="segfuse", dynamic=True)(a := x.clone().requires_grad_())
    expected = function(b := x.clone().requires_grad_())
    close(made, expected)
    close(gradients(made.sin(), [a]), gradients(expected.sin(), [b]))


def test_a_break_in_the_graph():
    def function(x):
        y = x.sin() * 2
        if y.sum() > 0:
            return (y + 1).exp()
        return (y - 1).exp()

    for sign in (1, -1):
        check(function, sign * torch.rand(6))


def test_sizes_are_numbers_in_results():
    def function(x):
        rows, columns = x.shape
        y = x.reshape(rows * columns) * rows
        grown = y.view(columns, rows).repeat(2, 1)
        return y / columns, grown, torch.full((rows, 2), columns) + 1, torch.arange(columns) * 2

    backend = Watched()
    step = torch.compile(function, backend=backend, dynamic=True, fullgraph=True)
    for shape in ((3, 5), (4, 6), (7, 2)):
        ours = leaves([torch.randn(shape)])
        theirs = [ours[0].detach().clone().requires_grad_()]
        made, expected = step(*ours), function(*theirs)
        close(made, expected)
        close(gradients(made, ours), gradients(expected, theirs))
    assert set(backend.traces()) <= {0, 1}


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: F.pad(x * 2, (0, 1 - n % 2)).sin(),  # the backward of a pad is one below 0
        lambda x, n: F.pad(x.cos(), (3 - n // 3, n // 2 - 3)).sin(),
        lambda x, n: (x * 2)[:, -(n // 2) :].sin(),
        lambda x, n: (x * 2)[:, n // 2 - 6 : n // 2 + 6].sin(),
        lambda x, n: (x * 2).select(1, n // 2 - 3).sin(),
        lambda x, n: x.sin() * (n - 9) + (5 - n),
        lambda x, n: (x[:, :, None] * x[:, None, :]).tril(n // 2 - 4).sin(),
        lambda x, n: x * torch.arange(8 - n, 8).sin(),
        lambda x, n: torch.full((2, n), n - 9) * x,
    ],
)
def test_a_calculated_size_below_zero(function):
    step = compiled(lambda x: function(x, x.shape[1]), dynamic=True)
    for n in (9, 12, 5, 17, 8, 6):
        ours = leaves([torch.randn(2, n, dtype=torch.float64)])
        theirs = leaves(ours)
        made, expected = step(*ours), function(*theirs, n)
        close(made, expected)
        close(gradients(made, ours), gradients(expected, theirs))


def test_a_size_that_only_the_result_has():
    """The backward of a sum needs sizes that none of its tensors shows."""

    def function(x):
        return (x.sum() * 2).sin()

    step = compiled(function, dynamic=True)
    for n in (3, 5, 8):
        x, y = (torch.linspace(0, 1, n).requires_grad_() for _ in range(2))
        close(step(x), function(y))
        close(gradients(step(x), [x]), gradients(function(y), [y]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(dtype):
    model, args = models.make("llama")
    model, (x,) = model.to(dtype), [a.to(dtype) for a in args]
    exact = copy.deepcopy(model).double()
    ours, theirs = leaves([x]), leaves([x], torch.float64)
    made, expected = compiled(model)(*ours), exact(*theirs)
    close(made.double(), expected, TOLERANCE[torch.bfloat16])
    close(gradients(made, ours)[0].double(), gradients(expected, theirs)[0], 0.1)


@pytest.mark.parametrize("name", ["mlp", "llama_fused", "encoder"])
def test_autocast(name):
    """Products are bfloat16, sums float32, as in eager: the types of all results are the same."""
    model, args = models.make(name)
    ours, theirs = leaves(args), leaves(args)
    with torch.autocast("cpu", torch.bfloat16):
        made, expected = compiled(model)(*ours), model(*theirs)
    close(made, expected, 0.05)
    found = gradients(made, [*ours, *model.parameters()])
    close(found, gradients(expected, [*theirs, *model.parameters()]), 0.1)


def test_options():
    model, args = models.make("mlp")
    close(compiled(model, options={"threads": 1, "excess_precision": True})(*args), model(*args))
    with pytest.raises(Exception, match=r"found the options \['fast'\], expected some of"):
        compiled(model, options={"fast": True})(*args)
    torch._dynamo.reset()


@pytest.fixture
def tf32_as_before():
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = "none"


def test_products_are_tf32_where_pytorch_allows_it(tf32_as_before):
    """However it was said; a model that is compiled already is compiled again."""
    model, args = models.make("mlp")
    watched = Watched()
    function = torch.compile(model, backend=watched)

    def precision():
        function(*args)
        return watched.parts[-1].compiled._how["precision"]

    assert precision() == "float32"
    torch.set_float32_matmul_precision("high")
    assert precision() == "tf32"
    graphs = len(watched.graphs)
    torch.backends.cuda.matmul.allow_tf32 = False
    function(*args)
    assert len(watched.graphs) == graphs  # the first one, again
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch._dynamo.reset()
    function = torch.compile(model, backend=watched)
    assert precision() == "tf32"
    with pytest.raises(Exception, match="found the mode 'max-autotune', expected none"):
        compiled(model, mode="max-autotune")(*args)


@pytest.mark.parametrize("at", [-1, 4])
@pytest.mark.parametrize(
    "function",
    [
        lambda w, i: F.embedding(i, w) * 2 + 1,
        lambda w, i: w.index_select(0, i) * 2 + 1,
        lambda w, i: w.gather(0, i[:, None].expand(-1, 4)) * 2 + 1,
        lambda w, i: F.cross_entropy(w[:2], i) * 2 + 1,
        lambda w, i: F.cross_entropy(w[:2], i, weight=w[3]) * 2 + 1,
        lambda w, i: F.cross_entropy(w[:2], i, label_smoothing=0.1) * 2 + 1,
        lambda w, i: w[i - 4 * (i < 0)] * 2 + 1,
        lambda w, i: w.index_add(0, i, w[:2]) * 2 + 1,
        lambda w, i: w.index_copy(0, i, w[:2]) * 2 + 1,
    ],
)
def test_an_index_out_of_range_is_an_error(function, at):
    """Also one that another library would count from the end."""
    w, i = torch.randn(4, 4), torch.tensor([1, at])
    with torch.no_grad():
        with pytest.raises((IndexError, RuntimeError), match="out of (range|bounds)"):
            function(w, i)
        with pytest.raises(
            (segfuse.Error, IndexError, RuntimeError), match="out of (range|bounds)"
        ):
            compiled(function)(w, i)


def test_indices_from_the_end():
    w, i = torch.randn(4, 3), torch.tensor([0, -1, 3, -4])
    check(lambda w, i: w[i] * 2 + 1, w, i)
    check(lambda w, i: F.cross_entropy(w, i.abs() - 1, ignore_index=-1) * 2, w, torch.arange(4) % 3)


def test_class_weights_are_not_rounded():
    w = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    scores, targets = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 0, 1, 2, 2])
    check(lambda x, w, t: F.cross_entropy(x, t, weight=w.detach()) * 2, scores, w, targets)


# --- arguments that are numbers ---


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: (x * n).sin(),
        lambda x, n: (x * (n // 3) + n % 3).sin(),
        lambda x, n: (x[n:] + n * n).sin(),
        lambda x, n: x.roll(n, 0).clamp(max=n) * 2,
        lambda x, n: (x.to(torch.int64) * n + n) * 2,
    ],
)
def test_a_whole_number_that_changes_may_be_below_zero(function):
    watched = Watched()
    step = torch.compile(function, backend=watched)
    x = torch.randn(8, 3, dtype=torch.float64) * 4
    for n in (4, 5, -2, -3, 7, -1, 0, 1, 2):
        close(step(x, n), function(x, n))
    assert len(watched.graphs) <= 5


def test_a_whole_number_of_an_item_may_be_below_zero():
    def function(x, i):
        return (x * i.item()).sin() * 2

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        step = compiled(function, fullgraph=True)
        for n in (3, -3, 0, 1, -1):
            close(step(torch.ones(4), torch.tensor(n)), function(torch.ones(4), torch.tensor(n)))


def test_a_whole_number_that_no_double_holds_is_an_error():
    step = compiled(lambda x, n: (x * n + 1) * 2, dynamic=True)
    assert step(torch.arange(4), 2**52).tolist() == [2 + 2**53 * i for i in range(4)]
    with pytest.raises(segfuse.Error, match=r"found the number -9007199254740993, expected one"):
        step(torch.arange(4), -(2**53) - 1)


# --- what explain says ---


def test_what_a_decomposition_refuses_runs_in_pytorch():
    x = torch.arange(6).reshape(2, 3)

    def f(x):
        return torch.addcmul(x + 1, x, x, value=0.5) * 2

    close(compiled(f)(x), f(x))


def test_what_a_decomposition_does_wrong_runs_in_pytorch():
    check(lambda x: torch.linspace(-7, 5, 51, dtype=torch.int64) * x + 1, torch.randn(51))


def test_explain():
    model, args = models.make("conv")
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    found = st.explain(model, *args)
    assert torch.equal(state, torch.get_rng_state())
    close(list(model.state_dict().values()), list(before.values()))
    assert all(p.grad is None for p in model.parameters())
    assert found.graphs == 2 and 0.5 < found.share < 1
    assert {part.name.partition("_")[0] for part in found.parts} == {"forward", "backward"}
    kept = {left.operation: left for left in found.left}
    assert kept["convolution"].reason == "segfuse has no such operation"
    assert kept["convolution"].count == 2
    assert sum(len(part.operations) for part in found.parts) == found.operations
    text = str(found)
    assert "PyTorch runs" in text and "2 x convolution" in text and f"{found.share:.1%}" in text


def test_explain_leaves_buffers_alone():
    model, args = models.make("resnet")
    before = copy.deepcopy(model.state_dict())
    st.explain(model, *args)
    close(list(model.state_dict().values()), list(before.values()))


def test_explain_of_one_operation():
    found = st.explain(lambda x: x * 2, torch.randn(3))
    assert found.operations == 0 and found.share == 0
    assert found.left[0].reason == "a part would have no other operation"


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.cat([x, x * 2, x.narrow(-2, 0, 1)], -2).chunk(2, 1)[0],
        lambda x: torch.cat([x * 3, x], 1).split(3, -1)[1].transpose(0, 1),
        lambda x: (x.exp() + 1).unbind(0)[1].unsqueeze(0),
        lambda x: [(x * 2 + 1).tensor_split(2, -1)[1], (x * 2 + 1)[1:, ::2]],
    ],
)
def test_a_result_that_is_cut_into_a_list_of_views(f, dynamic):
    x = torch.randn(3, 4, 7)
    found = torch.compile(f, backend="segfuse", dynamic=dynamic)(x)
    close(
        list(found) if isinstance(found, list) else [found],
        f(x) if isinstance(found, list) else [f(x)],
    )
