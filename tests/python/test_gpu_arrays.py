"""Compiled functions on arrays in the memory of a GPU. What the extension does there is tested in C++
on a simulated device; what Python decides is tested here with a stand-in for the extension, and all
of it on a GPU where there is one."""

import gc

import numpy as np
import pytest

import segfuse
import segfuse.ops as sf
from segfuse import _gpu, _native

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no two CUDA devices here")


# --- without a GPU ---


class There:
    """An array of a library of its own, said to lie on a CUDA device."""

    def __init__(self, array, device=0):
        self.array, self.place = np.asarray(array), device
        self.dtype, self.shape = self.array.dtype, self.array.shape
        self.streams = []

    def __dlpack_device__(self):
        return 2, self.place

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        return self.array  # the stand-in takes any array for a capsule


class StandIn:
    """Runs programs on the CPU, in the place of `_native.DeviceProgram`."""

    made = []

    def __init__(self, program, device):
        self.program, self.device = program, device
        self.checked = 0
        StandIn.made.append(self)

    def prepare(self, shapes):
        self.shapes = shapes
        return self

    def run_apart(self, prepared, inputs):
        assert prepared is self
        return [Result(x, self.device) for x in self.program.run(inputs, [], False)]

    def run_on_copies(self, arrays, overwritten):
        return self.program.run(arrays, overwritten, False)

    def check(self):
        self.checked += 1

    def stream(self):
        return 77


class Result:
    def __init__(self, array, device):
        self.array, self.device = array, device

    def dtype(self):
        return str(self.array.dtype)

    def shape(self):
        return list(self.array.shape)

    def capsule(self, device, stream):
        return ("capsule", device, stream)


@pytest.fixture
def stand_in(monkeypatch):
    StandIn.made = []
    monkeypatch.setattr(_native, "DeviceProgram", StandIn)
    return StandIn


class Elsewhere(There):
    def __dlpack_device__(self):
        return 8, 0


X = np.arange(6, dtype="f4").reshape(2, 3)


def test_arrays_of_others_go_through_dlpack_on_our_stream(stand_in):
    f = segfuse.compile(lambda x, s: {"y": x * s, "n": 3})
    x = There(X)
    result = f(x, np.float32(2))
    assert result["n"] == 3
    assert isinstance(result["y"], _gpu.DeviceArray)
    np.testing.assert_array_equal(result["y"]._tensor.array, 2 * X)
    assert x.streams == [77]
    assert (result["y"].shape, result["y"].dtype, result["y"].device) == (
        (2, 3),
        "float32",
        "cuda:0",
    )
    assert repr(result["y"]) == "DeviceArray(float32, shape=(2, 3), device=cuda:0)"
    f(x, np.float32(3))
    assert len(stand_in.made) == 1
    f.check()
    assert stand_in.made[0].checked == 1


def test_a_device_array_is_handed_out_in_the_order_of_its_reader(stand_in):
    y = segfuse.compile(lambda x: x + 1)(There(X, 1))
    assert y.__dlpack_device__() == (2, 1)
    assert y.__dlpack__(stream=1234, max_version=(1, 0)) == ("capsule", 1, 1234)
    assert y.__dlpack__() == ("capsule", 1, 1)  # the default stream
    assert y.__dlpack__(stream=-1) == ("capsule", 1, 0)  # the host waits
    for wrong in ({"stream": 2}, {"copy": True}):
        with pytest.raises(BufferError):
            y.__dlpack__(**wrong)


def test_each_device_has_a_program_and_all_share_the_trace(stand_in):
    f = segfuse.compile(lambda x: x * 2)
    for device in (0, 1, 0):
        assert f(There(X, device)).device == f"cuda:{device}"
    np.testing.assert_array_equal(f(X), 2 * X)
    assert [one.device for one in stand_in.made] == ["cuda:0", "cuda:1"]
    assert f.cache_info().traces == 1
    assert f.cache_info().signatures == 3


@pytest.mark.parametrize(
    ("arguments", "device", "message"),
    [
        ((There(X, 0), There(X, 1)), None, "argument 1 lies on cuda:1, but argument 0 on cuda:0"),
        (
            (There(X), X),
            None,
            r"argument 1 lies on the CPU, but argument 0 on cuda:0.*only numbers",
        ),
        ((X, There(X, 2)), None, r"argument 0 lies on the CPU, but argument 1 on cuda:2"),
        ((There(X, 1), X), "cuda", "argument 0 lies on cuda:1, but the function was .* for cuda:0"),
        ((There(X, 1), X), "cpu", "argument 0 lies on cuda:1, but the function was .* for the CPU"),
        ((There(X.astype("c8")), X), None, "arrays may be bool"),
        ((Elsewhere(X), X), None, "argument 0 lies on a device; .* the CPU and on CUDA devices"),
    ],
)
def test_places_that_do_not_fit(stand_in, arguments, device, message):
    f = segfuse.compile(lambda x, y: x + y, device=device)
    with pytest.raises(segfuse.UsageError, match=message):
        f(*arguments)


def test_device_takes_arrays_of_the_host_there_and_back(stand_in):
    f = segfuse.compile(lambda x: x * 2, device="cuda:3")
    found = f(X)
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, 2 * X)
    assert stand_in.made[0].device == "cuda:3"
    found = f(torch.from_numpy(X))
    assert isinstance(found, torch.Tensor)
    by_x = segfuse.grad(lambda x: (x * x).sum(), device="cuda")(X)
    np.testing.assert_array_equal(by_x, 2 * X)
    np.testing.assert_array_equal(segfuse.compile(lambda x: x * 2, device="cpu")(X), 2 * X)
    with pytest.raises(segfuse.UsageError, match="'cuda:x', expected 'cpu'"):
        segfuse.compile(lambda x: x, device="cuda:x")


def test_arrays_from_outside_have_to_stay_where_they_are(stand_in):
    scale = There(np.float32([1, 2, 3]))
    f = segfuse.compile(lambda x: x * scale)
    np.testing.assert_array_equal(f(There(X))._tensor.array, X * [1, 2, 3])
    scale.place = 1
    with pytest.raises(
        segfuse.UsageError, match=r"has another shape, or lies elsewhere.*cache_clear"
    ):
        f(There(X))


def test_arrays_of_numpy_from_outside_travel_at_each_call(stand_in):
    scale, order = np.float32([1, 2, 3]), np.array([2, 0])
    f = segfuse.compile(lambda x: (x * scale)[:, order])
    np.testing.assert_array_equal(f(There(X))._tensor.array, (X * scale)[:, order])
    scale[0] = 7
    np.testing.assert_array_equal(f(There(X))._tensor.array, (X * scale)[:, order])
    here = torch.ones(3)
    with pytest.raises(segfuse.UsageError, match="lies on the CPU.*move it there"):
        segfuse.compile(lambda x: x * here)(There(X))


def test_programs_of_a_fusion(stand_in):
    fusion = segfuse.Fusion("twice")
    fusion.output(fusion.input("x", "float32", ("N",)) * 2)
    program = fusion.build()
    (found,) = program(There(np.float32([1, 2])))
    np.testing.assert_array_equal(found._tensor.array, [2, 4])
    program.check()
    with pytest.raises(segfuse.UsageError, match="the reference runs on the CPU"):
        program.reference(There(np.float32([1, 2])))


# --- autograd, on the CPU and on a GPU ---

DEVICES = ["cpu", pytest.param("cuda", marks=cuda)]


def layer(x, weights, *, power):
    y = sf.layer_norm(x, weights["scale"], weights["shift"]) @ weights["w"]
    return {"y": sf.gelu(y) + x, "n": y.shape[0], "norm": (y**power).sum(), "best": sf.argmax(y, 1)}


def torch_layer(x, weights, *, power):
    functional = torch.nn.functional
    y = functional.layer_norm(x, x.shape[-1:], weights["scale"], weights["shift"]) @ weights["w"]
    return {"y": functional.gelu(y) + x, "norm": (y**power).sum(), "best": y.argmax(1)}


def layer_inputs(device, dtype=torch.float64, requires_grad=True):
    torch.manual_seed(0)
    made = [torch.randn(*s, dtype=dtype) for s in ((5, 8), (8,), (8,), (8, 8))]
    x, scale, shift, w = (t.to(device).requires_grad_(requires_grad) for t in made)
    return x, {"scale": scale, "shift": shift, "w": w}


@pytest.mark.parametrize("device", DEVICES)
def test_autograd_goes_through_compiled_functions(device):
    compiled = segfuse.compile(layer)
    x, weights = layer_inputs(device)
    leaves = [x, *weights.values()]

    def gradients(function):
        found = function(x, weights, power=2)
        loss = (found["y"] ** 3).sum() + 2 * found["norm"]
        return [found["y"], found["norm"], *torch.autograd.grad(loss, leaves)], found["best"]

    found, best = gradients(compiled)
    expected, expected_best = gradients(torch_layer)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert torch.equal(best, expected_best)
    assert not best.requires_grad
    for other in (x.detach(), x):  # what needs no gradient gets none
        fixed = {name: value.detach() for name, value in weights.items()}
        y = compiled(other, fixed, power=2)["y"]
        assert y.requires_grad == other.requires_grad
    assert compiled.cache_info().traces == 1


@pytest.mark.parametrize("device", DEVICES)
def test_second_derivatives(device):
    f = segfuse.compile(lambda x, w: sf.tanh(x @ w).sum(1))
    x = torch.randn(3, 4, dtype=torch.float64, device=device, requires_grad=True)
    w = torch.randn(4, 2, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(f, (x, w))
    assert torch.autograd.gradgradcheck(f, (x, w))


@pytest.mark.parametrize("device", DEVICES)
def test_a_model_trains_as_in_pytorch(device):
    def losses(function):
        x, weights = layer_inputs(device, torch.float32)
        optimizer = torch.optim.SGD(list(weights.values()), lr=0.01)
        found = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = function(x.detach(), weights, power=2)["norm"]
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    found = losses(segfuse.compile(layer))
    np.testing.assert_allclose(found, losses(torch_layer), rtol=1e-4)
    assert found[-1] < found[0]


def test_autograd_sees_what_changed_in_place():
    x = torch.ones(3, requires_grad=True)
    twice = x * 1
    y = segfuse.compile(lambda x: x * x)(twice)
    twice.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# --- on a GPU ---


def on_gpu(array, device="cuda"):
    return torch.as_tensor(array).to(device)


@cuda
@pytest.mark.parametrize(
    "dtype", ["bool", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
)
def test_results_are_those_of_the_cpu(dtype):
    x = torch.arange(-6, 6).reshape(3, 4).to(getattr(torch, dtype))
    f = segfuse.compile(
        lambda x: (x.T, x[1:]) if dtype == "bool" else (x.T, sf.where(x > 0, x, x * x))
    )
    for a, b in zip(f(x.cuda()), f(x), strict=True):
        assert a.is_cuda and a.dtype == b.dtype
        torch.testing.assert_close(a.cpu(), b)


@cuda
def test_nothing_is_copied_and_nothing_waits():
    f = segfuse.compile(layer)
    x, weights = layer_inputs("cuda", torch.float32, requires_grad=False)
    expected = torch_layer(x, weights, power=2)["y"]
    f(x, weights, power=2)
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = f(x, weights, power=2)["y"]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_allocated() > held  # PyTorch's memory
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@cuda
@pytest.mark.parametrize("count", [1, 3, 40])
def test_streams_of_the_caller(count):
    """Work before and after on the same stream, long enough to be overtaken if there is no order."""
    f = segfuse.compile(lambda x, y: (x * 2 + y, (x * y).sum()))
    streams = [torch.cuda.Stream() for _ in range(count)]
    busy = torch.randn(2048, 2048, device="cuda")
    torch.cuda.synchronize()
    found = []
    for step in range(2):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                for _ in range(3):
                    busy @ busy
                x = torch.full((1000,), float(i + step), device="cuda")
                y = torch.full((1000,), 2.0, device="cuda")
                a, b = f(x, y)
                x.zero_()
                found.append((2.0 * (i + step) + 2, 2000.0 * (i + step), a + 0, b + 0))
                a.fill_(-1)
                del a, b, x, y
    torch.cuda.synchronize()
    for first, second, a, b in found:
        assert a.eq(first).all() and b.item() == second


@cuda
def test_views():
    x = torch.arange(60.0, device="cuda").reshape(3, 4, 5)
    f = segfuse.compile(lambda x: x * 2)
    for view in (
        x.permute(2, 0, 1), x[1:], x[:, ::2], x[0, 1:, 1:3], x[1, 1, 1:], x.expand(2, 3, 4, 5)[1],
        x[:0], x[..., 3], torch.complex(x, x).conj().imag, x.reshape(-1)[1:],
    ):  # fmt: skip
        torch.testing.assert_close(f(view), view * 2)


@cuda
def test_products():
    a, b = torch.randn(64, 33, device="cuda"), torch.randn(33, 17, device="cuda")
    f = segfuse.compile(lambda a, b: a @ b)
    for x, y in ((a, b), (b.T, a.T), (a[1:, 1:], b[1:])):
        torch.testing.assert_close(f(x, y), x @ y, rtol=1e-4, atol=1e-4)


@cuda
def test_numbers_may_be_on_the_host():
    x = torch.arange(4.0, device="cuda")
    f = segfuse.compile(lambda x, s: x * s)
    for s in (
        np.float32(2),
        np.array(2, "f4"),
        torch.tensor(2.0),
        torch.tensor(2.0, device="cuda"),
    ):
        torch.testing.assert_close(f(x, s), x * 2)
    with pytest.raises(
        segfuse.UsageError, match="argument 1 lies on the CPU, but argument 0 on cuda:0"
    ):
        f(x, torch.ones(4))
    with pytest.raises(
        segfuse.UsageError, match="argument 0 lies on the CPU, but argument 1 on cuda:0"
    ):
        f(np.ones(4, "f4"), x)


@cuda
def test_weights_from_outside():
    scale = torch.tensor([2.0], device="cuda")
    f = segfuse.compile(lambda x: x * scale)
    x = torch.ones(3, device="cuda")
    assert f(x).tolist() == [2, 2, 2]
    scale.fill_(3)
    assert f(x).tolist() == [3, 3, 3]


@cuda
def test_inputs_are_overwritten_in_place():
    fusion = segfuse.Fusion("step")
    w, g = (fusion.input(name, "float32", ("N",)) for name in "wg")
    new = w - 0.5 * g
    fusion.output(new, "new")
    fusion.alias(new, w)
    step = fusion.build()
    weights, gradient = torch.ones(64, device="cuda"), torch.ones(64, device="cuda")
    (result,) = step(w=weights, g=gradient)
    assert weights.eq(0.5).all() and result.eq(0.5).all()
    assert result.data_ptr() != weights.data_ptr()
    with pytest.raises(segfuse.UsageError, match="'w' is overwritten .*contiguous"):
        step(torch.ones(64, 2, device="cuda")[:, 0], gradient)


@cuda
def test_indices_are_told_by_the_check():
    f = segfuse.compile(lambda x, i: sf.take(x, i, 0))
    x = torch.arange(4.0, device="cuda")
    assert f(x, torch.tensor([3, 0], device="cuda")).tolist() == [3, 0]
    f.check()
    f(x, torch.tensor([0, 9], device="cuda"))
    with pytest.raises(segfuse.UsageError, match="out of range"):
        f.check()
    f.check()


@cuda
def test_check_numerics():
    f = segfuse.compile(lambda x: sf.log(x), check_numerics=True)
    with pytest.raises(segfuse.DataError, match="log gave nan"):
        f(torch.tensor([-1.0], device="cuda"))
    assert f(torch.ones(2, device="cuda")).tolist() == [0, 0]


@cuda
def test_the_crf():
    def loss(emission, transition, duration, ends, *gold):
        return sf.semicrf_loss(emission, transition[None], duration, ends, ends, *gold).sum()

    torch.manual_seed(0)
    scores = [torch.randn(*s) for s in ((3, 12, 4), (4, 4), (5, 4), (4,))]
    lengths, time = torch.tensor([12, 0, 7]), torch.arange(12)
    labels = time.div(3, rounding_mode="floor").remainder(4).int().repeat(3, 1)
    gold = (lengths, labels, (time % 3 == 0).repeat(3, 1))
    f = segfuse.value_and_grad(loss, argnums=(0, 1, 2))
    value, gradients = f(*(s.cuda() for s in scores), *(g.cuda() for g in gold))
    expected, expected_gradients = f(*scores, *gold)
    f.check()
    for stream in (torch.cuda.Stream(), torch.cuda.Stream()):  # faults are kept from run to run
        with torch.cuda.stream(stream):
            f(*(s.cuda() for s in scores), lengths.cuda(), labels.cuda() + 9, gold[2].cuda())
        with pytest.raises(segfuse.DataError, match="label"):
            f.check()
    torch.testing.assert_close(value.cpu(), expected)
    for a, b in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)


@cuda
def test_device_copies_there_and_back():
    x = np.arange(6, dtype="f4").reshape(2, 3)
    f = segfuse.compile(lambda x: x * 2, device="cuda:0")
    np.testing.assert_array_equal(f(x), 2 * x)
    assert not f(torch.from_numpy(x)).is_cuda
    assert f(torch.from_numpy(x).cuda()).is_cuda


@two
def test_two_devices():
    f = segfuse.compile(lambda x: x * 2)
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        found = f(torch.ones(5, device=device))
        assert found.device == torch.device(device) and found.eq(2).all()


def library(name):
    module = pytest.importorskip(name, reason=f"{name} is not installed")
    if name == "jax" and not any(d.platform == "gpu" for d in module.devices()):
        pytest.skip("JAX has no GPU here")
    return module.numpy if name == "jax" else module


@cuda
@pytest.mark.parametrize("name", ["jax", "cupy"])
def test_other_libraries(name):
    xp = library(name)
    f = segfuse.compile(lambda x, y, s: (x @ y * s, x.T, x > 0))
    for step in range(20):  # arrays that nobody else holds, and results that go at once
        x = xp.arange(12.0, dtype="float32").reshape(3, 4) + step
        found = f(x * 1, xp.ones((4, 5), "float32") * 2, np.float32(3))
        for a, b in zip(found, (x @ xp.ones((4, 5), "float32") * 6, x.T, x > 0), strict=True):
            assert type(a) is type(b) and a.dtype == b.dtype
            np.testing.assert_allclose(to_numpy(a + 0), to_numpy(b + 0), rtol=1e-6)
    large = xp.ones((1 << 24,), "float32")
    for step in range(12):  # more than what may wait for an idle device
        result = f2(large, np.float32(step))
        assert float(result[-1]) == step + 1
        del result
    gc.collect()


f2 = segfuse.compile(lambda x, s: x + s)


def to_numpy(array):
    return array.get() if hasattr(array, "get") else np.asarray(array)


@cuda
def test_the_cuda_array_interface():
    class Only:
        """What has nothing but the interface."""

        def __init__(self, tensor):
            self.tensor, self.shape, self.dtype = tensor, tuple(tensor.shape), np.dtype("f4")
            self.__cuda_array_interface__ = tensor.__cuda_array_interface__

    x = torch.arange(6.0, device="cuda").reshape(2, 3)
    torch.cuda.synchronize()
    y = segfuse.compile(lambda x: x * 2)(Only(x.T))
    assert isinstance(y, _gpu.DeviceArray)
    torch.testing.assert_close(torch.from_dlpack(y), x.T * 2)
    torch.testing.assert_close(torch.as_tensor(y, device="cuda"), x.T * 2)


@cuda
def test_a_mixture_is_pytorchs():
    cupy = library("cupy")
    x = torch.ones(3, device="cuda")
    found = segfuse.compile(lambda x, y: x + y)(x, cupy.ones(3, "float32"))
    assert isinstance(found, torch.Tensor) and found.tolist() == [2, 2, 2]
